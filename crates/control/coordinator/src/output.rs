//! Output of instances' commands (`transhume logs`).

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use api::{Bytes, Event, Failure, Position};
use fabric::Vid;
use instance::{Chunk, Follower, Output};
use moves::HostName;
use moves::journal::Exit;
use rpc::wire::{Answer, Question};

use crate::client::Client;
use crate::core::{Cluster, State};
use crate::failure;
use crate::lifecycle::Lifecycle;

/// Time limit for a host's answer, in addition to the time that it waits for output.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// Interval before a host that did not answer is asked again, and before a moving instance is located again.
const RETRY: Duration = Duration::from_millis(100);

/// The length limit of output in one event, in bytes: as text it takes up to six times as many.
const EVENT_LIMIT: usize = 64 * 1024;

/// Sends the output of the instance's command after position `after`; with `follow`, goes on until the command ends. A
/// following client applies back-pressure to the command, as long as it reads now and then.
///
/// # Errors
/// If sending to the client fails.
pub async fn logs(
    cluster: &Cluster,
    name: &str,
    follow: bool,
    after: Option<Position>,
    client: &mut Client,
) -> io::Result<()> {
    let found = after.or_else(|| Some(Position { vid: find(&cluster.view(), name)?, next: 0 }));
    let Some(position) = found else {
        return client.say(&Event::Failed(failure::no_instance(name))).await;
    };
    let follower = follow.then(new_follower);
    let outcome = copy(cluster, name, (follower, after.is_some()), position, client).await;
    if let Some(follower) = follower {
        unfollow(cluster, position.vid, follower).await;
    }
    outcome
}

/// A unique follower number. The followers of a previous coordinator ended with it.
fn new_follower() -> Follower {
    static FOLLOWERS: AtomicU64 = AtomicU64::new(1);
    FOLLOWERS.fetch_add(1, Ordering::Relaxed)
}

/// If the host cannot be notified, it removes the follower after a timeout.
async fn unfollow(cluster: &Cluster, vid: Vid, follower: Follower) {
    let place = place(&cluster.view(), vid);
    if let Some(Place { host, exit: None }) = place {
        let _ = cluster.ask(&host, Question::Unfollow { vid, follower }, ANSWER_LIMIT).await;
    }
}

async fn copy(
    cluster: &Cluster,
    name: &str,
    (follower, mut gapless): (Option<Follower>, bool),
    mut position: Position,
    client: &mut Client,
) -> io::Result<()> {
    let follow = follower.is_some();
    loop {
        let place = place(&cluster.view(), position.vid);
        let Some(Place { host, exit }) = place else {
            return client.say(&Event::Failed(failure::no_instance(name))).await;
        };
        let answer = ask(cluster, &host, position, follower.filter(|_| exit.is_none())).await;
        let last = match answer {
            Ok(Read { chunks, next, .. })
                if !chunks.is_empty() || Output::died_between(position.next, next) =>
            {
                let first = next - chunks.len() as u64;
                if let Some(pieces) = missing(position.next, first, gapless) {
                    client.say(&Event::Dropped { pieces }).await?;
                }
                gapless = true;
                for event in events(chunks, Position { next, ..position }) {
                    client.say(&event).await?;
                }
                position.next = next;
                continue;
            }
            Ok(Read { exit: Some(code), .. }) if follow => Event::Exited { code },
            Ok(_) if !follow => Event::Done,
            Err(failure) if !follow => Event::Failed(failure),
            // No new output, or no answer: check whether the instance has ended.
            nothing => {
                let Some(exit) = exit else {
                    tokio::select! {
                        () = tokio::time::sleep(RETRY) => continue,
                        () = client.gone() => return Ok(()),
                    }
                };
                if let Err(why) = nothing
                    && exit != Exit::NotStarted
                {
                    client.say(&Event::Unread(why)).await?;
                }
                end_of(name, exit)
            }
        };
        return client.say(&last).await;
    }
}

/// The last event for an instance that has ended.
fn end_of(name: &str, exit: Exit) -> Event {
    match exit {
        Exit::Code(code) => Event::Exited { code },
        Exit::Lost { reason } => Event::Failed(failure::lost(name, &reason)),
        Exit::NotStarted => Event::Failed(failure::lost(name, failure::NOT_STARTED)),
    }
}

/// The gap before position `first` for a reader that expects position `next`: `None` if there is no gap, else the number of lost
/// pieces if it is known. A reader that starts at the beginning has no gap.
fn missing(next: u64, first: u64, gapless: bool) -> Option<Option<u64>> {
    if Output::died_between(next, first) {
        return Some(None);
    }
    (gapless && first > next).then_some(Some(first - next))
}

struct Place {
    host: HostName,
    exit: Option<Exit>,
}

fn find(state: &State, name: &str) -> Option<Vid> {
    let present = state.find(name).map(|(vid, _)| vid);
    present.or_else(|| {
        state.get::<Lifecycle>().ended().find(|ended| ended.instance.name == name).map(|ended| ended.vid)
    })
}

fn place(state: &State, vid: Vid) -> Option<Place> {
    if let Some(instance) = state.snapshot().instances.get(&vid) {
        return Some(Place { host: instance.host.clone(), exit: None });
    }
    let ended = state.get::<Lifecycle>().ended().rev().find(|ended| ended.vid == vid)?;
    Some(Place { host: ended.instance.host.clone(), exit: Some(ended.exit.clone()) })
}

/// Output that a host has returned.
struct Read {
    chunks: Vec<Chunk>,
    next: u64,
    /// The exit status of the command, if it has ended.
    exit: Option<i32>,
}

async fn ask(
    cluster: &Cluster,
    host: &HostName,
    from: Position,
    follower: Option<Follower>,
) -> Result<Read, Failure> {
    let question = Question::Output { vid: from.vid, from: from.next, follower };
    let limit = if follower.is_some() { ANSWER_LIMIT + Question::OUTPUT_PATIENCE } else { ANSWER_LIMIT };
    match cluster.ask(host, question, limit).await? {
        Answer::Output { chunks, next, exit } => Ok(Read { chunks, next, exit }),
        Answer::Done
        | Answer::NotStarted(_)
        | Answer::Net(_)
        | Answer::Macs(_)
        | Answer::Flows(_)
        | Answer::Available(_)
        | Answer::Weight { .. }
        | Answer::Tap(_) => Err(failure::host_silent(host)),
    }
}

/// Converts chunks that end at `end` to events, in order, and joins adjacent chunks of the same stream.
fn events(chunks: Vec<Chunk>, end: Position) -> Vec<Event> {
    let mut events: Vec<Event> = Vec::new();
    let mut next = end.next - chunks.len() as u64;
    for chunk in chunks {
        next += 1;
        match events.last_mut() {
            Some(Event::Output { stream, bytes, position })
                if *stream == chunk.stream && bytes.0.len() + chunk.bytes.len() <= EVENT_LIMIT =>
            {
                bytes.0.extend(chunk.bytes);
                position.next = next;
            }
            _ => {
                let position = Position { next, ..end };
                events.push(Event::Output { stream: chunk.stream, bytes: Bytes(chunk.bytes), position });
            }
        }
    }
    events
}

#[cfg(test)]
mod tests {
    use fabric::attach::OutputStream::{self, Stderr, Stdout};

    use super::*;

    fn at(next: u64) -> Position {
        Position { vid: Vid::new(1).unwrap(), next }
    }

    fn output(stream: OutputStream, bytes: &[u8], next: u64) -> Event {
        Event::Output { stream, bytes: Bytes(bytes.into()), position: at(next) }
    }

    #[test]
    fn chunks_keep_their_order_and_say_where_they_end() {
        let chunk = |stream, bytes: &[u8]| Chunk { stream, bytes: bytes.into() };
        let chunks =
            vec![chunk(Stdout, b"a\xe2"), chunk(Stdout, b"\x82"), chunk(Stderr, b"!"), chunk(Stdout, b"b")];
        let expected = [output(Stdout, b"a\xe2\x82", 7), output(Stderr, b"!", 8), output(Stdout, b"b", 9)];
        assert_eq!(events(chunks, at(9)), expected);
    }

    #[test]
    fn a_gap_is_reported_with_its_size_if_it_is_known() {
        assert_eq!((missing(0, 5, false), missing(5, 5, true)), (None, None));
        assert_eq!(missing(3, 5, true), Some(Some(2)));
        let later = Output::default().after_death().end();
        assert_eq!((missing(0, later, false), missing(9, later, true)), (Some(None), Some(None)));
    }

    #[test]
    fn every_event_fits_its_line() {
        let chunk = Chunk { stream: Stdout, bytes: vec![1; 16 * 1024] };
        let events = events(vec![chunk; 16], at(16));
        assert_eq!(events.len(), 4);
        assert!(events.iter().all(|event| api::to_line(event).is_ok()));
    }
}
