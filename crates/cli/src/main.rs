//! The `transhume` command: daemons, user tools and the lab.

mod cli;
mod demo;
mod failure;
mod figures;
mod interrupt;
mod library;
mod logging;
mod output;
mod precedence;
mod table;
mod terminal;

use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;

use failure::{Failure, Result};

/// Exit code for wrong usage.
const WRONG_USAGE: u8 = 2;

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

/// Prints a usage error, or the requested help or version.
fn tell(answer: &clap::Error) -> Result<ExitCode> {
    if answer.kind() == ErrorKind::InvalidUtf8 {
        return Err(not_text());
    }
    if answer.use_stderr() {
        answer.exit();
    }
    end_with_the_reader();
    output::written(answer.print())?;
    Ok(ExitCode::SUCCESS)
}

/// The failure for arguments that are not UTF-8.
fn not_text() -> Failure {
    let wrong = std::env::args_os().skip(1).filter(|argument| argument.to_str().is_none());
    let wrong: Vec<_> = wrong.map(|argument| format!("{argument:?}")).collect();
    let message = format!("arguments are not UTF-8: {}", wrong.join(", "));
    Failure::new(message, "use UTF-8, or rename the file").with_code(WRONG_USAGE)
}

/// Ends the process when it writes to a closed pipe, as users expect of `transhume ps | head`.
fn end_with_the_reader() {
    // SAFETY: no handler is installed.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}

/// Makes such a write fail instead, for commands that have to clean up first.
fn outlive_the_reader() {
    // SAFETY: no handler is installed.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
}
