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
use super::target::{Target, unexpected};
use super::wait::exit_code;
use super::words;
use crate::failure::{Failure, Result};
use crate::terminal::{self, Lent};
use crate::{WRONG_USAGE, interrupt};

/// What this command ends with if the failure is not the other command's, as `ssh` has it.
const FAILED: u8 = 255;

/// Runs a command in an instance that runs
///
/// The command runs beside the instance's own one, with its user, directory, environment and RDMA device, and goes on when
/// the instance moves: its input and output, too, with nothing lost, doubled or reordered on its way. Its output comes here byte for
/// byte, and its exit code is that of this command: 127 if it was not found, 126 if it cannot be run, and 255 if something
/// else has failed, as when the instance ends, or the coordinator goes away.
/// Without `--stdin` it has no standard input (`/dev/null`). Ctrl-C, SIGTERM, SIGQUIT and a terminal that is closed are passed on
/// to it. With `--tty` the command has a terminal, which moves with it: once it has started, keys such as Ctrl-C have their meaning
/// there, not here, and SIGTERM and a terminal that is closed end this command. Of what is in the terminal itself a move loses a
/// line that is typed and not finished, unless the command edits lines itself as bash does, and an end of file that is typed and
/// not read, with what is behind it; lines that are typed and not read are echoed once more.
/// When this command is gone it gets SIGHUP, and SIGKILL five seconds later. It ends with the instance's own command; what
/// it leaves in the background runs on, without its output.
/// There may be 64 at a time in an instance. It waits for an instance that is being moved, for up to two minutes.
#[derive(Args)]
#[command(override_usage = "transhume exec [OPTIONS] <NAME> -- <CMD>...")]
#[command(after_help = "Examples:\n  transhume exec --tty job1 -- bash\n  \
                        transhume exec job1 -- ip address\n  \
                        transhume exec --env LEVEL=2 --directory /tmp job1 -- sh -c 'echo $LEVEL in $PWD'\n  \
                        tar c data | transhume exec -i job1 -- tar x -C /scratch")]
pub struct Arguments {
    /// Passes the standard input on, up to its end
    #[arg(short = 'i', long)]
    stdin: bool,
    /// Gives it a terminal, of the size and kind of this one, for its input, output and errors
    #[arg(short = 't', long)]
    tty: bool,
    /// Sets a variable of its environment; may be given several times
    #[arg(long, value_name = "NAME=VALUE", value_parser = words::variable)]
    env: Vec<(String, String)>,
    /// Its working directory, with its whole path [default: the instance's]
    #[arg(long, value_name = "DIR", value_parser = directory)]
    directory: Option<String>,
    /// Its user and group, as numbers; without GID the same number as UID [default: the instance's]
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
            let help = "give a program and its arguments after `--`: `transhume exec job1 -- ip address`";
            return Err(Failure::new("there is no command to run", help).with_code(WRONG_USAGE));
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
            // It has signals of its own, by its keys; and it is hung up when this command is gone.
            interrupt::on_each(move |signal| way_back.end(signal))?;
        } else {
            interrupt::on_each(move |signal| drop(lock(&told).say(&ExecLine::Signal(signal))))?;
        }
        // Until there is a command the keys have a meaning here.
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

    /// The size of the terminal that is asked for.
    fn window(&self) -> Result<Option<WindowSize>> {
        if !self.tty {
            return Ok(None);
        }
        terminal::window().map(Some).ok_or_else(|| {
            let help = "leave `--tty` out: `--stdin` passes on what comes from a file or a pipe";
            Failure::new("the standard input is no terminal", help).with_code(WRONG_USAGE)
        })
    }

    fn request(self, terminal: Option<WindowSize>) -> ExecRequest {
        let kind = env::var("TERM").ok().filter(|_| terminal.is_some()).map(|kind| ("TERM".to_owned(), kind));
        ExecRequest {
            name: self.name,
            command: self.command,
            // The last one counts.
            environment: kind.into_iter().chain(self.env).collect(),
            directory: self.directory,
            user: self.user,
            input: self.stdin,
            terminal,
            for_own: false,
        }
    }
}

/// Tells the command of the window's size: of each change, and of one that was made before those are seen.
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

/// Writes what comes until the command has ended. It `begin`s when the first word comes of a command that is there.
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
    let what = "the coordinator is lost, and with it the connection to the command";
    let help =
        format!("`{name}` runs on; the command in it is hung up as soon as there is a coordinator again");
    Failure::new(what, help).with_code(FAILED)
}

fn directory(text: &str) -> std::result::Result<String, String> {
    if text.starts_with('/') {
        Ok(text.to_owned())
    } else {
        Err("give its whole path, from `/` on".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_has_its_whole_path() {
        assert!(directory("/tmp").is_ok() && directory("tmp").is_err());
    }
}
