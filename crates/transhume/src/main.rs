//! The `transhume` command: the daemons, the tools for users, and the lab.

mod cli;
mod demo;
mod failure;
mod interrupt;
mod library;
mod logging;
mod output;
mod table;

use std::process::ExitCode;

use clap::Parser;

use failure::Result;

fn main() -> ExitCode {
    match cli::Cli::try_parse().map_or_else(|answer| tell(&answer), run) {
        Ok(code) => code,
        Err(failure) => {
            eprintln!("{failure}");
            failure.code().into()
        }
    }
}

fn run(command: cli::Cli) -> Result<ExitCode> {
    if !command.is_daemon() {
        end_with_the_reader();
    }
    command.run()
}

/// Says what is wrong with the command line, or the help or the version that it asks for.
fn tell(answer: &clap::Error) -> Result<ExitCode> {
    if answer.use_stderr() {
        answer.exit();
    }
    end_with_the_reader();
    output::written(answer.print())?;
    Ok(ExitCode::SUCCESS)
}

/// Lets a write to a pipe that nobody reads end the process, as people expect of `transhume ps | head`.
fn end_with_the_reader() {
    // SAFETY: no handler is installed, and no other thread runs yet.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}
