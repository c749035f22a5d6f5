//! `transhume net link`

use std::process::ExitCode;

use api::NetChange;
use clap::{Args, Subcommand};

use super::change;
use crate::cli::target::Target;
use crate::failure::Result;

/// Adds and removes links between hosts, while traffic goes on
#[derive(Args)]
#[command(after_help = "Examples:\n  transhume net link add h2 h3\n  transhume net link rm h2 h3")]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Add(Add),
    Rm(Rm),
}

/// Lets two hosts send to each other directly
#[derive(Args)]
#[command(after_help = "Examples:\n  transhume net link add h2 h3\n  transhume net link add h2 h3 --cost 5")]
struct Add {
    /// One host
    a: String,
    /// The other
    b: String,
    /// What the way over the link costs; frames take the way that costs least
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    cost: u32,
    /// Does not seal datagrams: for a way that nobody else has access to. Who has can read and write all
    #[arg(long)]
    plain: bool,
}

/// Takes the link between two hosts away, unless it is the only way to some host
#[derive(Args)]
#[command(after_help = "Example:\n  transhume net link rm h2 h3")]
struct Rm {
    /// One host
    a: String,
    /// The other
    b: String,
}

impl Arguments {
    pub fn run(self, target: &Target) -> Result<ExitCode> {
        match self.command {
            Command::Add(Add { a, b, cost, plain }) => {
                change(target, NetChange::AddLink { ends: [a, b], cost, plain })
            }
            Command::Rm(Rm { a, b }) => change(target, NetChange::RemoveLink { ends: [a, b] }),
        }
    }
}
