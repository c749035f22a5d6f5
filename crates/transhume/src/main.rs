//! The `transhume` command: the daemons, the tools for users, and the lab.

mod cli;
mod demo;
mod failure;
mod interrupt;
mod library;
mod logging;
mod table;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let command = cli::Cli::parse();
    if !command.is_daemon() {
        end_with_the_reader();
    }
    match command.run() {
        Ok(code) => code,
        Err(failure) => {
            eprintln!("{failure}");
            failure.code().into()
        }
    }
}

/// Lets a write to a pipe that nobody reads end the process, as people expect of `transhume ps | head`.
fn end_with_the_reader() {
    // SAFETY: no handler is installed, and no other thread runs yet.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}
