//! Requests that outlive the coordinator to which they were made first.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use api::{Client, Event, Request};

use super::target::tell;
use super::transfer;
use crate::failure::{Failure, Result};

/// Before the first attempt to reach the next coordinator; each later one waits twice as long.
const FIRST_DELAY: Duration = Duration::from_millis(50);

/// The longest time between two attempts.
const LONGEST_DELAY: Duration = Duration::from_secs(1);

/// How long to wait for the next coordinator.
const PATIENCE: Duration = Duration::from_secs(600);

/// How long to wait if the socket is gone as well: as with a lab that was removed.
const PATIENCE_WITHOUT_SOCKET: Duration = Duration::from_secs(5);

/// Sends `request` to the next coordinator that listens on `socket`, after the connection to the
/// one before was lost. `errand` says what is waited for.
pub fn send_again(socket: &Path, request: &Request, errand: &str) -> Result<Client> {
    eprintln!("transhume: the coordinator is lost; waiting for it to come back, {errand}");
    let client = reconnect(socket, request)?;
    eprintln!("transhume: the coordinator is back");
    Ok(client)
}

/// As [`send_again`], and with `json` told as a line of JSON: `outlook` says what becomes of what was waited for.
pub fn send_again_as(
    json: bool,
    socket: &Path,
    request: &Request,
    errand: &str,
    outlook: &str,
) -> Result<Client> {
    if !json {
        return send_again(socket, request, errand);
    }
    transfer::tell(&Event::Waiting {
        host: "coordinator".into(),
        why: "it is lost".into(),
        outlook: outlook.into(),
    });
    reconnect(socket, request)
}

/// The last event that answers `request`, which `client` has sent to the first coordinator. For whom it waits is told.
pub fn last_event_of(mut client: Client, socket: &Path, request: &Request, errand: &str) -> Result<Event> {
    loop {
        match client.next_event() {
            Ok(event) if event.is_last() => return Ok(event),
            Ok(event) => tell(&event),
            Err(error) if error.is_loss() => client = send_again(socket, request, errand)?,
            Err(error) => return Err(error.into()),
        }
    }
}

/// The last event that answers `request`, from a coordinator that was there a moment ago.
pub fn ask(socket: &Path, request: &Request, errand: &str) -> Result<Event> {
    let client = match Client::send(socket, request) {
        Err(error) if error.is_loss() => send_again(socket, request, errand)?,
        answer => answer?,
    };
    last_event_of(client, socket, request, errand)
}

fn reconnect(socket: &Path, request: &Request) -> Result<Client> {
    let began = Instant::now();
    let mut delay = FIRST_DELAY;
    loop {
        thread::sleep(delay);
        match Client::send(socket, request) {
            Err(error) if error.is_loss() => {}
            answer => return Ok(answer?),
        }
        let patience = if socket.exists() { PATIENCE } else { PATIENCE_WITHOUT_SOCKET };
        if began.elapsed() >= patience {
            return Err(not_back());
        }
        delay = LONGEST_DELAY.min(2 * delay);
    }
}

fn not_back() -> Failure {
    Failure::new(
        "the coordinator has gone away and does not come back",
        "instances run on; start it again with its state, then `transhume ps` shows how things are",
    )
}
