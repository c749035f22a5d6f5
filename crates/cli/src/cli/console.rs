//! `transhume console`

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::thread;

use api::{Client, Event, ExecRequest, Position, Request, State};
use clap::Args;

use super::input::{End, Room, give_until};
use super::logs::Reading;
use super::target::Target;
use crate::failure::{Failure, Result, unexpected};
use crate::interrupt;
use crate::terminal::{Lent, WayBack};

/// Ctrl-], which leaves the console.
const ESCAPE: u8 = 0x1d;

/// Attaches to the serial console of a virtual machine
///
/// Prints what the guest writes from now on, and sends it what is typed. Ctrl-] leaves the console; all other keys, such as Ctrl-C,
/// reach the guest. The console stays attached while the machine moves. One client at a time can be attached; others
/// read along with `transhume logs --follow`. If standard input is no terminal, all of it is sent, and the command goes
/// on to print.
#[derive(Args)]
#[command(after_help = "Examples:\n  transhume console guest\n  echo reboot | transhume console guest")]
pub struct Arguments {
    /// The name of the virtual machine
    name: String,
}

impl Arguments {
    pub fn run(self, target: &Target) -> Result<ExitCode> {
        let (socket, name) = (target.socket(), self.name);
        let suggest = |failure| target.suggest_instance(failure, &name);
        let after = end_of_output(&socket, &name).map_err(suggest)?;
        let lent = Arc::new(Lent::default());
        let (way_back, keyboard) = (lent.way_back(), Keyboard::attach(&socket, &name)?);
        if io::stdin().is_terminal() {
            eprintln!("attached to the console of `{name}`; Ctrl-] leaves it");
            let way_back = way_back.clone();
            interrupt::on_each(move |signal| way_back.end(signal))?;
            lent.lend()?;
        }
        thread::spawn(move || keyboard.serve(&way_back));
        let reading = Reading { name: &name, follow: true, after, dropped: 0 };
        let events = Client::send(&socket, &reading.request())?;
        reading.copy(&socket, events, |failure| failure)
    }
}

/// The present end of the machine's output; `None` if there was no output.
fn end_of_output(socket: &Path, name: &str) -> Result<Option<Position>> {
    let request = Request::Logs { name: name.to_owned(), follow: false, after: None };
    let (mut events, mut end) = (Client::send(socket, &request)?, None);
    loop {
        match events.next_event()? {
            Event::Output { position, .. } => end = Some(position),
            Event::Failed(failure) => return Err(failure.into()),
            event if event.is_last() => return Ok(end),
            _ => {}
        }
    }
}

/// The session that carries what is typed.
struct Keyboard {
    events: Client,
    room: Arc<Room>,
    socket: PathBuf,
    name: String,
}

impl Keyboard {
    /// Begins a session, and waits until the machine has accepted it.
    fn attach(socket: &Path, name: &str) -> Result<Self> {
        let request = ExecRequest { name: name.to_owned(), console: true, ..ExecRequest::default() };
        let (mut events, room) = (Client::send(socket, &Request::Exec(request))?, Arc::new(Room::default()));
        match events.next_event()? {
            Event::InputTaken { bytes } => room.has_grown(bytes),
            Event::NotStarted { failure, .. } | Event::Failed(failure) => return Err(failure.into()),
            event => return Err(unexpected(&event)),
        }
        Ok(Self { events, room, socket: socket.to_owned(), name: name.to_owned() })
    }

    /// Sends what is typed. Ends the process at the escape key, or if the session fails; if it ends with the machine, the reader of the
    /// output reports that.
    fn serve(mut self, way_back: &WayBack) {
        if let Err(failure) = self.send(way_back)
            && !has_ended(&self.socket, &self.name)
        {
            eprintln!("\r\n{failure}\r");
            way_back.exit(1);
        }
    }

    fn send(&mut self, way_back: &WayBack) -> Result<()> {
        let (speaker, room) = (Mutex::new(self.events.speaker()?), self.room.clone());
        let way_back = way_back.clone();
        let is_at_terminal = io::stdin().is_terminal();
        thread::spawn(move || {
            let escape = |bytes: &[u8]| bytes.iter().position(|byte| is_at_terminal && *byte == ESCAPE);
            if let Ok(End::Found) = give_until(&speaker, &room, escape) {
                eprint!("\r\n");
                way_back.exit(0);
            }
        });
        loop {
            match self.events.next_event() {
                Ok(Event::InputTaken { bytes }) => self.room.has_grown(bytes),
                Ok(Event::NotStarted { failure, .. } | Event::Failed(failure)) => return Err(failure.into()),
                Err(error) if error.is_loss() => return Err(lost(&self.name)),
                Ok(event) => return Err(unexpected(&event)),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

fn has_ended(socket: &Path, name: &str) -> bool {
    let listed = Client::send(socket, &Request::List).and_then(|mut events| events.next_event());
    let Ok(Event::Instances(instances)) = listed else { return false };
    let mut own = instances.iter().filter(|instance| instance.name == name);
    own.all(|instance| matches!(instance.state, State::Exited { .. } | State::Lost { .. }))
}

fn lost(name: &str) -> Failure {
    let what = format!("connection to the coordinator lost, and with it the console of `{name}`");
    Failure::new(what, format!("attach again with `transhume console {name}` when the coordinator is back"))
}
