//! The event log, for operators and scripts (ADR 0028).
//!
//! If the coordinator was killed before it wrote an event, its successor reconstructs the event from the store.

use std::collections::BTreeMap;
use std::io;

use api::{Event, Occurrence};
use moves::MoveId;
use moves::journal::{MoveRecord, Stage};
use store::StoreError;

use crate::client::Client;
use crate::core::{Cluster, State};
use crate::follows::Follows;
use crate::lifecycle::Lifecycle;
use crate::{failure, follow, occurrences};

/// Sends past events to the client, and with `follow` also new ones, until the client disconnects.
///
/// # Errors
/// If sending to the client fails.
pub async fn tell(
    cluster: &Cluster,
    mut after: u64,
    since_ms: u64,
    follow: bool,
    client: &mut Client,
) -> io::Result<()> {
    let log = cluster.view().log().clone();
    log.flushed().await;
    loop {
        let mut settled = std::pin::pin!(log.settled().notified());
        settled.as_mut().enable();
        let read = match log.after(after) {
            Ok(read) => read,
            Err(error) => return client.say(&Event::Failed(failure::of_store(&error))).await,
        };
        for event in read.events.into_iter().filter(|event| event.time_ms >= since_ms) {
            client.say(&Event::Logged(Box::new(event))).await?;
        }
        match read.last {
            Some(last) => after = last,
            None if !follow => return client.say(&Event::Done).await,
            None => tokio::select! {
                () = settled => {}
                () = client.gone() => return Ok(()),
            },
        }
    }
}

/// Starts in the log without a matching end.
#[derive(Default)]
struct Open {
    /// Running instances.
    instances: BTreeMap<String, String>,
    /// The instances of moves in progress.
    moves: BTreeMap<u64, String>,
}

impl Open {
    fn take(&mut self, what: Occurrence) {
        match what {
            Occurrence::Started { instance, host, .. } => drop(self.instances.insert(instance, host)),
            Occurrence::Exited { instance, .. } | Occurrence::Lost { instance, .. } => {
                self.instances.remove(&instance);
            }
            Occurrence::MoveBegan { instance, id, .. } => drop(self.moves.insert(id, instance)),
            Occurrence::Restored { instance, host, id, .. } => {
                self.moves.remove(&id);
                self.instances.insert(instance, host);
            }
            Occurrence::Moved { id, .. }
            | Occurrence::Saved { id, .. }
            | Occurrence::EndedInMove { id, .. }
            | Occurrence::MoveRolledBack { id, .. } => {
                self.moves.remove(&id);
            }
            _ => {}
        }
    }
}

/// Logs that the coordinator has started, after the decisions that its predecessor stored but did not log. Also feeds past moves to the
/// estimates.
///
/// # Errors
/// If the log or the store cannot be read.
pub fn catch_up(state: &mut State) -> Result<(), StoreError> {
    let log = state.log().clone();
    let (mut open, mut after) = (Open::default(), 0);
    loop {
        let read = log.after(after)?;
        for event in read.events {
            if let Occurrence::Moved { figures: Some(figures), .. } = event.what {
                state.get_mut::<Follows>().learn(figures);
            }
            open.take(event.what);
        }
        match read.last {
            Some(last) => after = last,
            None => break,
        }
    }
    let follows = state.get::<Follows>();
    for (id, name) in open.moves.into_iter().map(|(id, name)| (MoveId(id), name)) {
        let record = state.snapshot().moves.get(&id).or_else(|| follows.over(id));
        // Moves in progress are followed, and logged at their end.
        let is_over = |record: &&MoveRecord| record.stage != Stage::Began && !follows.contains(id);
        if let Some(record) = record.filter(is_over) {
            let mut report = follow::report(&name, record);
            report.restarted = true;
            log.note(&occurrences::move_over(id, &report));
        }
    }
    let gone = open.instances.into_keys().filter(|name| state.find(name).is_none());
    for name in gone {
        if let Some(known) = state.get::<Lifecycle>().ended().find(|known| known.instance.name == name) {
            log.note(&occurrences::ended(&known.instance, &known.exit));
        }
    }
    log.note(&Occurrence::CoordinatorStarted);
    Ok(())
}

#[cfg(test)]
mod tests;
