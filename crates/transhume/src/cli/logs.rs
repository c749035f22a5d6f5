//! `transhume logs`

use std::io::{self, Write};
use std::process::ExitCode;

use api::{Client, Event, Request};
use clap::Args;
use fabric::attach::OutputStream;

use super::target::{Target, unexpected};
use super::wait::exit_code;
use crate::failure::Result;

/// Writes what an instance's command has written
#[derive(Args)]
#[command(after_help = "Examples:\n  transhume logs job1\n  transhume logs --follow job1")]
pub struct Arguments {
    /// Goes on until the command ends, and ends with its exit code
    #[arg(short, long)]
    follow: bool,
    /// The instance's name
    name: String,
}

impl Arguments {
    pub fn run(self, target: &Target) -> Result<ExitCode> {
        let request = Request::Logs { name: self.name.clone(), follow: self.follow };
        copy_output(target.send(&request)?).map_err(|failure| target.suggest(failure, &self.name))
    }
}

/// Writes each piece of output where the command wrote it, until the last event.
pub fn copy_output(mut events: Client) -> Result<ExitCode> {
    loop {
        match events.next_event()? {
            Event::Output { stream, text } => write(stream, &text)?,
            Event::Exited { code } => return Ok(exit_code(code)),
            Event::Done => return Ok(ExitCode::SUCCESS),
            Event::Failed(failure) => return Err(failure.into()),
            event => return Err(unexpected(&event)),
        }
    }
}

fn write(stream: OutputStream, text: &str) -> io::Result<()> {
    match stream {
        OutputStream::Stdout => {
            let mut stdout = io::stdout().lock();
            stdout.write_all(text.as_bytes())?;
            stdout.flush()
        }
        OutputStream::Stderr => io::stderr().lock().write_all(text.as_bytes()),
    }
}
