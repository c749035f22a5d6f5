//! `transhume logs`

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use api::{Client, Event, Failure as Obstacle, Position, Request};
use clap::Args;
use fabric::attach::OutputStream;

use super::lasting;
use super::target::Target;
use super::wait::exit_code;
use crate::failure::{Failure, Result, unexpected};
use crate::output;

/// Prints the output of an instance's command
///
/// Standard output and standard error are copied to those of this command. The last MiB of output is kept; each
/// host keeps the output of the last 64 ended instances until its node restarts. `--follow` survives
/// a restart of the coordinator. A followed command that writes faster than its output is read
/// is throttled, but not if the reader stalls for 30 seconds.
#[derive(Args)]
#[command(after_help = "Examples:\n  transhume logs job1\n  transhume logs --follow job1")]
pub struct Arguments {
    /// Continues until the command ends, and returns its exit code
    #[arg(short, long)]
    follow: bool,
    /// The instance's name
    name: String,
}

impl Arguments {
    pub fn run(self, target: &Target) -> Result<ExitCode> {
        let reading = Reading { name: &self.name, follow: self.follow, after: None, dropped: 0 };
        let events = target.send(&reading.request())?;
        let copied = reading.copy(&target.socket(), events, |failure| failure);
        copied.map_err(|failure| target.suggest_instance(failure, &self.name))
    }
}

/// A read of an instance's output.
pub struct Reading<'a> {
    /// The instance.
    pub name: &'a str,
    /// Continues until the command ends, also across a restart of the coordinator.
    pub follow: bool,
    /// The position to resume from.
    pub after: Option<Position>,
    /// Number of output pieces that were dropped after that position.
    pub dropped: u64,
}

impl Reading<'_> {
    fn incomplete(&self) -> Failure {
        let why = "the reader stalled for 30 seconds, or the coordinator was unreachable";
        Failure::new(
            format!("{} pieces of the output of `{}` are missing: {why}", self.dropped, self.name),
            "read without long pauses, or redirect the command's output to a file",
        )
    }

    /// Output in flight to a node that dies is lost; whether there was any is unknown.
    fn perhaps_incomplete(&self) -> Failure {
        Failure::new(
            format!("some output of `{}` may be missing: the node of its host restarted", self.name),
            "redirect output that must not be lost to a file",
        )
    }

    /// The command has ended, but its host cannot return the last output.
    fn unread(&self, why: &Obstacle) -> Failure {
        let name = self.name;
        Failure::new(
            format!("the last output of `{name}` may be missing: {}", why.message),
            format!(
                "try `transhume logs {name}` when the host answers; its node keeps the output until it restarts"
            ),
        )
    }

    /// The request for the next output.
    pub fn request(&self) -> Request {
        Request::Logs { name: self.name.to_owned(), follow: self.follow, after: self.after }
    }

    /// Copies output to standard output and standard error until the last event. If a write fails,
    /// `unwritable` completes the failure.
    pub fn copy(
        mut self,
        socket: &Path,
        mut events: Client,
        unwritable: impl Fn(Failure) -> Failure,
    ) -> Result<ExitCode> {
        loop {
            match events.next_event() {
                Ok(Event::Output { stream, bytes, position }) => {
                    write(stream, &bytes.0).map_err(&unwritable)?;
                    self.after = Some(position);
                }
                Ok(Event::Dropped { pieces: Some(pieces) }) => {
                    self.dropped += pieces;
                    eprintln!("{}", self.incomplete());
                }
                Ok(Event::Dropped { pieces: None }) => eprintln!("{}", self.perhaps_incomplete()),
                Ok(Event::Unread(why)) => eprintln!("{}", self.unread(&why)),
                Ok(Event::Exited { code: 0 }) if self.dropped > 0 => return Err(self.incomplete()),
                Ok(Event::Exited { code }) => return Ok(exit_code(code)),
                Ok(Event::Done) => return Ok(ExitCode::SUCCESS),
                Ok(Event::Failed(failure)) => return Err(failure.into()),
                Ok(event) => return Err(unexpected(&event)),
                Err(error) if self.follow && error.is_loss() => events = self.again(socket)?,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Resumes after the last output, with the restarted coordinator.
    pub fn again(&self, socket: &Path) -> Result<Client> {
        lasting::send_again(socket, &self.request(), &format!("while `{}` continues to run", self.name))
    }
}

/// Writes output to the stream that the command used.
pub fn write(stream: OutputStream, bytes: &[u8]) -> Result<()> {
    match stream {
        OutputStream::Stdout => output::write(bytes),
        OutputStream::Stderr => Ok(io::stderr().lock().write_all(bytes)?),
    }
}
