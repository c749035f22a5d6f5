//! `transhume logs`

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use api::{Client, Event, Failure as Obstacle, Position, Request};
use clap::Args;
use fabric::attach::OutputStream;

use super::lasting;
use super::target::{Target, unexpected};
use super::wait::exit_code;
use crate::failure::{Failure, Result};
use crate::output;

/// Writes what an instance's command has written
///
/// Both of its streams come byte for byte; of a long output the last MiB is kept, and each host keeps
/// that of the last 64 instances that ended there, until its node is restarted. With `--follow`
/// it waits for a coordinator that goes away, and goes on where it was; a command that writes faster
/// than its output is read here waits, but not for a reader that takes nothing for 30 seconds.
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
        let reading = Reading { name: &self.name, follow: self.follow, after: None, dropped: 0 };
        let events = target.send(&reading.request())?;
        let copied = reading.copy(&target.socket(), events, |failure| failure);
        copied.map_err(|failure| target.suggest_instance(failure, &self.name))
    }
}

/// Reads what an instance's command has written.
pub struct Reading<'a> {
    /// The instance.
    pub name: &'a str,
    /// Goes on until the command ends, and also when the coordinator is lost meanwhile.
    pub follow: bool,
    /// Where to go on.
    pub after: Option<Position>,
    /// Pieces of output that were dropped behind that.
    pub dropped: u64,
}

impl Reading<'_> {
    fn incomplete(&self) -> Failure {
        let why = "they were not taken within 30 seconds, or while the coordinator was away";
        Failure::new(
            format!("{} pieces of `{}`'s output are missing: {why}", self.dropped, self.name),
            "read without long pauses, or let the command write to a file",
        )
    }

    /// What is on its way to a node that dies is lost; whether anything was is not known.
    fn perhaps_incomplete(&self) -> Failure {
        Failure::new(
            format!("some of `{}`'s output may be missing: the node of its host was restarted", self.name),
            "let the command write to a file what must outlive that",
        )
    }

    /// The host has what the command wrote last, if it wrote anything that was not read.
    fn unread(&self, why: &Obstacle) -> Failure {
        let name = self.name;
        Failure::new(
            format!("the last of `{name}`'s output may be missing: {}", why.message),
            format!(
                "`transhume logs {name}` shows it if the host answers again and its node was not restarted"
            ),
        )
    }

    /// Asks for what comes next.
    pub fn request(&self) -> Request {
        Request::Logs { name: self.name.to_owned(), follow: self.follow, after: self.after }
    }

    /// Writes each piece of output where the command wrote it, until the last event; where that cannot be written to,
    /// `unwritable` makes the failure.
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

    /// Goes on where the output has ended so far, with the next coordinator.
    pub fn again(&self, socket: &Path) -> Result<Client> {
        lasting::send_again(socket, &self.request(), &format!("while `{}` runs on", self.name))
    }
}

/// Writes a piece of output where the command wrote it.
pub fn write(stream: OutputStream, bytes: &[u8]) -> Result<()> {
    match stream {
        OutputStream::Stdout => output::write(bytes),
        OutputStream::Stderr => Ok(io::stderr().lock().write_all(bytes)?),
    }
}
