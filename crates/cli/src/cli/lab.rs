//! `transhume lab`

mod connection;
mod daemon;
mod down;
mod exec;
mod status;
mod up;

use std::process::ExitCode;

use clap::{Args, Subcommand};

use super::target::Target;
use crate::failure::Result;

/// Creates test hosts from network namespaces on this machine
#[derive(Args)]
#[command(
    after_help = "Examples:\n  transhume lab up --hosts 3\n  transhume lab status\n  transhume lab down"
)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Up(up::Arguments),
    Status(status::Arguments),
    Exec(exec::Arguments),
    Cut(connection::Cut),
    Heal(connection::Heal),
    Kill(daemon::Kill),
    Start(daemon::Start),
    Restart(daemon::Restart),
    Down(down::Arguments),
}

impl Arguments {
    pub fn run(self, target: &Target) -> Result<ExitCode> {
        match self.command {
            Command::Up(arguments) => arguments.run(target),
            Command::Status(arguments) => arguments.run(target),
            Command::Exec(arguments) => arguments.run(target),
            Command::Cut(arguments) => arguments.run(target),
            Command::Heal(arguments) => arguments.run(target),
            Command::Kill(arguments) => arguments.run(target),
            Command::Start(arguments) => arguments.run(target),
            Command::Restart(arguments) => arguments.run(target),
            Command::Down(arguments) => arguments.run(target),
        }
    }
}
