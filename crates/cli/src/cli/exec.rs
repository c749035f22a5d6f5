//! `transhume exec`

use std::env;
use std::io;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::thread;

use api::{Client, Event, ExecLine, ExecRequest, Request, Speaker};
use clap::Args;
use fabric::session::WindowSize;

use super::input::{Room, give_input, lock};
use super::logs;
use super::target::Target;
use super::wait::exit_code;
use super::words;
use crate::failure::{Failure, Result, unexpected};
use crate::terminal::{self, Lent};
use crate::{WRONG_USAGE, interrupt};

/// Exit code for failures of `transhume exec` itself, as with `ssh`.
const FAILED: u8 = 255;

const EXAMPLES: &str = "Examples:
  transhume exec --tty job1 -- bash
  transhume exec job1 -- ip address
  transhume exec --env LEVEL=2 --directory /tmp job1 -- sh -c 'echo $LEVEL in $PWD'
  tar c data | transhume exec -i job1 -- tar x -C /scratch";

const TERMINALS: &str = "Terminals and moves:
  A move loses what is buffered in the terminal itself: an unfinished input line, unless the command
  edits lines itself as bash does, and an unread end-of-file with the input after it. Finished lines
  that the command has not read are echoed once more.";

/// Runs a command in a running instance
///
/// The command gets the instance's user, directory, environment and RDMA device. It moves with the instance,
/// and its input and output arrive complete and in order. The exit code is the command's: 127 if
/// it was not found, 126 if it is not executable, and 255 if the instance ended, the connection to the
/// coordinator was lost, or something else failed. Without `--stdin`, standard input is `/dev/null`.
///
/// Ctrl-C, SIGTERM, SIGQUIT and SIGHUP are forwarded to the command. With `--tty` the command gets a terminal
/// that moves with it: keys such as Ctrl-C act there, while SIGTERM and SIGHUP end the client. When the client
/// ends, the command gets SIGHUP, and SIGKILL five seconds later. It ends with the instance's own command; its background
/// processes continue without output. An instance runs up to 64 such commands. If the instance is moving, the
/// command waits up to two minutes.
#[derive(Args)]
#[command(override_usage = "transhume exec [OPTIONS] <NAME> -- <CMD>...")]
#[command(after_help = EXAMPLES, after_long_help = format!("{EXAMPLES}\n\n{TERMINALS}"))]
pub struct Arguments {
    /// Forwards standard input until its end
    #[arg(short = 'i', long)]
    stdin: bool,
    /// Gives the command a terminal of the same size and type as this one
    #[arg(short = 't', long)]
    tty: bool,
    /// Sets an environment variable; may be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = words::variable)]
    env: Vec<(String, String)>,
    /// The working directory, as an absolute path [default: the instance's]
    #[arg(long, value_name = "DIR", value_parser = directory)]
    directory: Option<String>,
    /// Numeric user and group; GID defaults to UID [default: the instance's]
    #[arg(long, value_name = "UID[:GID]", value_parser = words::user)]
    user: Option<(u32, u32)>,
    /// The instance's name
    name: String,
    /// The command and its arguments
    #[arg(last = true, value_name = "CMD")]
    command: Vec<String>,
}

impl Arguments {
    pub fn run(self, target: &Target) -> Result<ExitCode> {
        if self.command.first().is_none_or(String::is_empty) {
            let help = "pass a program and its arguments after `--`: `transhume exec job1 -- ip address`";
            return Err(Failure::new("no command was given", help).with_code(WRONG_USAGE));
        }
        let window = self.window()?;
        let (name, input) = (self.name.clone(), self.stdin || self.tty);
        let events =
            target.send(&Request::Exec(self.request(window))).map_err(|failure| failure.with_code(FAILED))?;
        let room = Arc::new(Room::default());
        let speaker = Arc::new(Mutex::new(events.speaker()?));
        let (lent, told) = (Lent::default(), speaker.clone());
        if window.is_some() {
            let way_back = lent.way_back();
            // Keys reach the command as bytes of its terminal; when this client ends, the command gets SIGHUP.
            interrupt::on_each(move |signal| way_back.end(signal))?;
        } else {
            interrupt::on_each(move |signal| drop(lock(&told).say(&ExecLine::Signal(signal))))?;
        }
        // Until the command has started, keys act on this client.
        let begin = || {
            if window.is_some() {
                lent.lend()?;
                attend_window(&speaker)?;
            }
            if input {
                let room = room.clone();
                thread::spawn(move || drop(give_input(&speaker, &room)));
            }
            Ok(())
        };
        copy(events, &room, &name, begin).map_err(|failure| target.suggest_instance(failure, &name))
    }

    /// The size of the requested terminal.
    fn window(&self) -> Result<Option<WindowSize>> {
        if !self.tty {
            return Ok(None);
        }
        terminal::window().map(Some).ok_or_else(|| {
            let help = "omit `--tty`; use `--stdin` to forward a file or a pipe";
            Failure::new("standard input is not a terminal", help).with_code(WRONG_USAGE)
        })
    }

    fn request(self, terminal: Option<WindowSize>) -> ExecRequest {
        let kind = env::var("TERM").ok().filter(|_| terminal.is_some()).map(|kind| ("TERM".to_owned(), kind));
        ExecRequest {
            name: self.name,
            command: self.command,
            // The last value wins.
            environment: kind.into_iter().chain(self.env).collect(),
            directory: self.directory,
            user: self.user,
            input: self.stdin,
            terminal,
            for_own: false,
            console: false,
        }
    }
}

/// Sends the window size at every change, and once now for changes that came too early.
fn attend_window(speaker: &Arc<Mutex<Speaker>>) -> io::Result<()> {
    let told = speaker.clone();
    let tell = move || {
        if let Some(size) = terminal::window() {
            let _ended = lock(&told).say(&ExecLine::Window(size));
        }
    };
    interrupt::on_resize(tell.clone())?;
    tell();
    Ok(())
}

/// Copies output until the command has ended. Calls `begin` at the first event of the started command.
fn copy(
    mut events: Client,
    room: &Room,
    name: &str,
    begin: impl FnOnce() -> io::Result<()>,
) -> Result<ExitCode> {
    let mut begin = Some(begin);
    loop {
        let event = events.next_event();
        if let Ok(Event::Written { .. } | Event::InputTaken { .. }) = event
            && let Some(begin) = begin.take()
        {
            begin()?;
        }
        match event {
            Ok(Event::Written { stream, bytes }) => logs::write(stream, &bytes.0)?,
            Ok(Event::InputTaken { bytes }) => room.has_grown(bytes),
            Ok(Event::Exited { code }) => return Ok(exit_code(code)),
            Ok(Event::NotStarted { code, failure }) => return Err(Failure::from(failure).with_code(code)),
            Ok(Event::Failed(failure)) => return Err(Failure::from(failure).with_code(FAILED)),
            Ok(event) => return Err(unexpected(&event).with_code(FAILED)),
            Err(error) if error.is_loss() => return Err(lost(name)),
            Err(error) => return Err(Failure::from(error).with_code(FAILED)),
        }
    }
}

fn lost(name: &str) -> Failure {
    let what = "connection to the coordinator lost, and with it the session of the command";
    let help = format!("`{name}` continues to run; the command gets SIGHUP when the coordinator is back");
    Failure::new(what, help).with_code(FAILED)
}

fn directory(text: &str) -> std::result::Result<String, String> {
    if text.starts_with('/') { Ok(text.to_owned()) } else { Err("use an absolute path".to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_has_its_whole_path() {
        assert!(directory("/tmp").is_ok() && directory("tmp").is_err());
    }
}
