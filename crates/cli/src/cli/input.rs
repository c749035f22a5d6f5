//! Forwards standard input to a command in an instance.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;

use api::{Bytes, Client, ClientError, Event, ExecLine, ExecRequest, INPUT_WINDOW, Request, Speaker};

use crate::failure::{Failure, Result};

/// The most bytes of input at a time.
const PIECE: usize = 16 * 1024;

/// Forwards standard input to the instance's own command in the background. Failures are printed.
pub fn feed(socket: PathBuf, name: String) {
    thread::spawn(move || {
        if let Err(failure) = bring(&socket, &name) {
            eprintln!("{failure}");
        }
    });
}

/// Forwards it until the instance has ended.
fn bring(socket: &Path, name: &str) -> Result<()> {
    let request = ExecRequest { name: name.to_owned(), for_own: true, ..ExecRequest::default() };
    let mut events = Client::send(socket, &Request::Exec(request))?;
    let room = Arc::new(Room::default());
    let mut speaker = Some(events.speaker()?);
    loop {
        match events.next_event() {
            Ok(Event::InputTaken { bytes }) => {
                room.has_grown(bytes);
                if let Some(speaker) = speaker.take() {
                    let room = room.clone();
                    thread::spawn(move || drop(give_input(&Mutex::new(speaker), &room)));
                }
            }
            Ok(Event::NotStarted { failure, .. }) => return Err(failure.into()),
            Err(error) if error.is_loss() => return Err(lost(name)),
            // The session has ended; another task reports that.
            Ok(_) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

fn lost(name: &str) -> Failure {
    let what = format!("connection to the coordinator lost, and with it the standard input of `{name}`");
    Failure::new(
        what,
        "the command reads end-of-file when the coordinator is back; send more input to another command with `transhume exec -i`",
    )
}

/// Forwards standard input as the window permits, until its end.
pub fn give_input(speaker: &Mutex<Speaker>, room: &Room) -> std::result::Result<(), ClientError> {
    give_until(speaker, room, |_| None)?;
    lock(speaker).say(&ExecLine::InputEnd)
}

/// Forwards standard input as the window permits, until its end, or up to the byte that `find` returns the place of.
pub fn give_until(
    speaker: &Mutex<Speaker>,
    room: &Room,
    find: impl Fn(&[u8]) -> Option<usize>,
) -> std::result::Result<End, ClientError> {
    let (mut piece, mut given) = (vec![0; PIECE], 0);
    loop {
        let most = room.after(given).min(PIECE);
        let length = match io::stdin().lock().read(&mut piece[..most]) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Ok(0) | Err(_) => return Ok(End::OfInput),
            Ok(length) => length,
        };
        let found = find(&piece[..length]);
        let length = found.unwrap_or(length);
        if length > 0 {
            given += length as u64;
            lock(speaker).say(&ExecLine::Input(Bytes(piece[..length].to_vec())))?;
        }
        if found.is_some() {
            return Ok(End::Found);
        }
    }
}

/// Why forwarding has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// There is no more input.
    OfInput,
    /// The wanted byte has come.
    Found,
}

/// Flow control: input that may be in flight.
#[derive(Default)]
pub struct Room {
    taken: Mutex<u64>,
    grown: Condvar,
}

impl Room {
    /// The command has consumed this many bytes.
    pub fn has_grown(&self, taken: u64) {
        *lock(&self.taken) = taken;
        self.grown.notify_all();
    }

    /// Waits for room after `given` bytes, and returns its size.
    fn after(&self, given: u64) -> usize {
        let window = INPUT_WINDOW as u64;
        let is_full = |taken: &mut u64| *taken + window <= given;
        let taken = self
            .grown
            .wait_while(lock(&self.taken), is_full)
            .expect("no thread panics while it holds the lock");
        (*taken + window - given) as usize
    }
}

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no thread panics while it holds the lock")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn input_waits_for_room() {
        let room = Arc::new(Room::default());
        assert_eq!(room.after(1), INPUT_WINDOW - 1);
        let waiter = thread::spawn({
            let room = room.clone();
            move || room.after(INPUT_WINDOW as u64)
        });
        room.has_grown(5);
        assert_eq!(waiter.join().unwrap(), 5);
    }
}
