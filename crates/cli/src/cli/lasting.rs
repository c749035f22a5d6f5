//! Requests that survive a restart of the coordinator.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use api::{Client, Event, Request};

use crate::failure::{Failure, Result};
use crate::output;

/// Delay before the first attempt to reconnect; it doubles with each attempt.
const FIRST_DELAY: Duration = Duration::from_millis(50);

/// The longest delay between two attempts.
const LONGEST_DELAY: Duration = Duration::from_secs(1);

/// How long to wait for the coordinator.
const PATIENCE: Duration = Duration::from_secs(600);

/// How long to wait if the socket file is gone too, as after the removal of a lab.
const PATIENCE_WITHOUT_SOCKET: Duration = Duration::from_secs(5);

/// Sends `request` again to the restarted coordinator on `socket`. `errand` completes the message
/// "waiting for the coordinator …".
pub fn send_again(socket: &Path, request: &Request, errand: &str) -> Result<Client> {
    eprintln!("transhume: connection to the coordinator lost; waiting for it to come back, {errand}");
    let client = reconnect(socket, request)?;
    eprintln!("transhume: the coordinator is back");
    Ok(client)
}

/// Like [`send_again`]; with `json` the message is a JSON line that contains `outlook`.
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
    output::json_aside(&Event::Waiting {
        host: "coordinator".into(),
        why: "the connection was lost".into(),
        outlook: outlook.into(),
    });
    reconnect(socket, request)
}

/// The last event for `request`, which `client` has already sent. Waiting messages are printed.
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

/// The last event for `request`, from a coordinator that was reachable a moment ago.
pub fn ask(socket: &Path, request: &Request, errand: &str) -> Result<Event> {
    let client = match Client::send(socket, request) {
        Err(error) if error.is_loss() => send_again(socket, request, errand)?,
        answer => answer?,
    };
    last_event_of(client, socket, request, errand)
}

/// Prints a waiting message, if the event is one.
pub fn tell(event: &Event) {
    if let Event::Waiting { host, why, outlook } = event {
        eprintln!("transhume: waiting for host {host}: {why}; {outlook}");
    }
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
        "the coordinator is unreachable and did not come back",
        "instances continue to run; restart the coordinator with its state directory, then check with `transhume ps`",
    )
}
