//! The `transhume` command: the daemons, the tools for users, and the lab.

mod cli;
mod failure;
mod interrupt;
mod library;
mod table;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let command = cli::Cli::parse();
    match command.run() {
        Ok(code) => code,
        Err(failure) => {
            eprintln!("{failure}");
            ExitCode::FAILURE
        }
    }
}
