//! The `transhume` command: the daemons, the tools for users, and the lab.

mod cli;
mod demo;
mod failure;
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

/// What a command ends with whose own arguments are wrong.
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

/// Says what is wrong with the command line, or the help or the version that it asks for.
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

/// Which arguments are not UTF-8.
fn not_text() -> Failure {
    let wrong = std::env::args_os().skip(1).filter(|argument| argument.to_str().is_none());
    let wrong: Vec<_> = wrong.map(|argument| format!("{argument:?}")).collect();
    let message = format!("not UTF-8 among the arguments: {}", wrong.join(", "));
    Failure::new(message, "give it in UTF-8, or a file under another name").with_code(WRONG_USAGE)
}

/// Lets a write to a pipe that nobody reads end the process, as people expect of `transhume ps | head`.
fn end_with_the_reader() {
    // SAFETY: no handler is installed.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}

/// Lets such a write fail instead, for a command that has something to end first.
fn outlive_the_reader() {
    // SAFETY: no handler is installed.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
}
