//! The event log, for operators and scripts (ADR 0028).
//!
//! Events are queued under the cluster's lock, and a separate task writes them, so that no move waits for the log; a client receives an event
//! only when it is durable. If the coordinator was killed before it wrote an event, its successor reconstructs the event from the store.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use api::{Event, LoggedEvent, MoveFigures, MoveReport, Occurrence, Outcome, Phase};
use moves::MoveId;
use moves::journal::{Exit, Instance, MoveRecord, Stage};
use store::{EventLog, MAX_EVENTS, StoreError};
use tokio::sync::Notify;

use crate::cluster::{Cluster, Inner};
use crate::server::Client;
use crate::{failure, follow};

/// Maximum number of events per read and per write.
const BATCH: usize = 256;

/// The longest reason that is stored, in bytes.
const MAX_REASON: usize = 1000;

/// The event log and its queue.
pub struct Log {
    file: EventLog,
    state: Mutex<State>,
    noted: Notify,
    settled: Notify,
}

/// Events that are not in the file yet.
#[derive(Default)]
struct State {
    waiting: VecDeque<Vec<u8>>,
    noted: u64,
    /// Number of events that have been written or dropped.
    settled: u64,
}

impl Log {
    /// Opens the log in the file at `path`.
    pub fn open(path: &Path) -> Result<Arc<Self>, StoreError> {
        let file = EventLog::open(path)?;
        Ok(Arc::new(Self { file, state: Mutex::default(), noted: Notify::new(), settled: Notify::new() }))
    }

    /// Queues an event.
    pub fn note(&self, what: &Occurrence) {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let time_ms = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
        let Ok(line) = api::to_line(&(time_ms, what)) else { return };
        let mut state = self.lock();
        state.noted += 1;
        if state.waiting.len() as u64 >= MAX_EVENTS {
            state.waiting.pop_front();
            state.settled += 1;
        }
        state.waiting.push_back(line.into_bytes());
        self.noted.notify_one();
    }

    /// Writes queued events, for as long as it is polled.
    pub async fn write(self: Arc<Self>) {
        loop {
            let batch: Vec<_> = {
                let mut state = self.lock();
                let count = state.waiting.len().min(BATCH);
                state.waiting.drain(..count).collect()
            };
            if batch.is_empty() {
                self.noted.notified().await;
                continue;
            }
            let (log, count) = (self.clone(), batch.len() as u64);
            let written = tokio::task::spawn_blocking(move || log.file.append(&batch)).await;
            if let Ok(Err(error)) = written {
                tracing::warn!(
                    "lost {count} events, because the event log is not writable: {error}; {}",
                    error.remedy()
                );
            }
            self.lock().settled += count;
            self.settled.notify_waiters();
        }
    }

    /// Waits until all events queued so far are written.
    async fn flushed(&self) {
        let noted = self.lock().noted;
        loop {
            let mut settled = std::pin::pin!(self.settled.notified());
            settled.as_mut().enable();
            if self.lock().settled >= noted {
                return;
            }
            settled.await;
        }
    }

    /// The first events after number `after`. Skips events of another release that this one cannot decode.
    fn after(&self, after: u64) -> Result<Read, StoreError> {
        let kept = self.file.after(after, BATCH)?;
        let last = kept.last().map(|(number, _)| *number);
        let understood = kept.into_iter().filter_map(|(number, bytes)| {
            let (time_ms, what) = api::from_line(str::from_utf8(&bytes).ok()?).ok()?;
            Some(LoggedEvent { number, time_ms, what })
        });
        Ok(Read { events: understood.collect(), last })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A part of the log.
struct Read {
    events: Vec<LoggedEvent>,
    /// The last number, if any event was read.
    last: Option<u64>,
}

/// Sends past events to the client, and with `follow` also new ones, until the client disconnects.
///
/// # Errors
/// If the client cannot be told.
pub async fn tell(
    cluster: &Cluster,
    mut after: u64,
    since_ms: u64,
    follow: bool,
    client: &mut Client,
) -> io::Result<()> {
    let log = cluster.lock().log.clone();
    log.flushed().await;
    loop {
        let mut settled = std::pin::pin!(log.settled.notified());
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

/// The event of an instance that runs.
pub fn started(instance: &Instance) -> Occurrence {
    let (host, group) = (instance.host.to_string(), instance.group.clone());
    Occurrence::Started { instance: instance.name.clone(), host, group }
}

/// The event of an instance that has ended.
pub fn ended(instance: &Instance, exit: &Exit) -> Occurrence {
    let (instance, host) = (instance.name.clone(), instance.host.to_string());
    match exit {
        Exit::Code(code) => Occurrence::Exited { instance, host, code: *code },
        Exit::Lost { reason } => Occurrence::Lost { instance, host, reason: cut(reason) },
        Exit::NotStarted => Occurrence::NotStarted { instance, host },
    }
}

/// The event of a move that has begun, of the instance `name` and possibly in a `group`.
pub fn move_began(name: &str, id: MoveId, record: &MoveRecord, group: Option<&str>) -> Occurrence {
    Occurrence::MoveBegan {
        instance: name.into(),
        from: record.source.to_string(),
        to: record.destination.to_string(),
        id: id.0,
        group: group.map(Into::into),
    }
}

/// The event of a move that is over.
pub fn move_over(id: MoveId, report: &MoveReport) -> Occurrence {
    let MoveReport { name, from, to, .. } = report;
    let (instance, from, to, id) = (name.clone(), from.clone(), to.clone(), id.0);
    let figures = (!report.restarted).then_some(MoveFigures {
        total_us: report.total_us,
        blackout_us: report.blackout_us,
        image_bytes: report.engine.image_bytes,
        precopied_bytes: report.engine.precopied_bytes,
        fetched_bytes: report.engine.demanded_bytes + report.engine.pushed_bytes,
    });
    match &report.outcome {
        Outcome::Ended(why) if report.phases.iter().any(|time| time.phase == Phase::Fetch) => {
            Occurrence::EndedInMove { instance, from, to, id, reason: cut(&why.message) }
        }
        Outcome::Moved => Occurrence::Moved { instance, from, to, id, epoch: report.epoch, figures },
        Outcome::Saved => Occurrence::Saved { instance, host: from, directory: to, id, figures },
        Outcome::Restored => Occurrence::Restored { instance, directory: from, host: to, id, figures },
        Outcome::RolledBack(why) | Outcome::Ended(why) => {
            let reason = cut(&why.message);
            Occurrence::MoveRolledBack { instance, from, to, id, reason, figures }
        }
    }
}

fn cut(reason: &str) -> String {
    reason[..reason.floor_char_boundary(MAX_REASON)].into()
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
pub fn catch_up(inner: &mut Inner) -> Result<(), StoreError> {
    let (mut open, mut after) = (Open::default(), 0);
    loop {
        let read = inner.log.after(after)?;
        for event in read.events {
            if let Occurrence::Moved { figures: Some(figures), .. } = event.what {
                inner.experience.learn(figures);
            }
            open.take(event.what);
        }
        match read.last {
            Some(last) => after = last,
            None => break,
        }
    }
    for (id, name) in open.moves.into_iter().map(|(id, name)| (MoveId(id), name)) {
        let present = inner.machine.image().moves.get(&id).cloned();
        let record = match present {
            Some(record) => Some(record),
            None => inner.store.ended_move(id)?,
        };
        // Moves in progress are followed, and logged at their end.
        let is_over = |record: &MoveRecord| record.stage != Stage::Began && !inner.follows.contains_key(&id);
        if let Some(record) = record.filter(is_over) {
            let mut report = follow::report(&name, &record);
            report.restarted = true;
            inner.log.note(&move_over(id, &report));
        }
    }
    let gone = open.instances.into_keys().filter(|name| inner.find(name).is_none());
    for name in gone {
        if let Some(known) = inner.ended.iter().find(|known| known.instance.name == name) {
            inner.log.note(&ended(&known.instance, &known.exit));
        }
    }
    inner.log.note(&Occurrence::CoordinatorStarted);
    Ok(())
}

#[cfg(test)]
mod tests {
    use fabric::{Epoch, FabricId, Vid};
    use moves::HostName;
    use moves::journal::Record;
    use moves::placement::Placement;
    use store::Store;

    use super::*;

    fn instance(name: &str) -> Instance {
        Instance {
            name: name.into(),
            fabric: FabricId(1),
            group: None,
            placement: Placement::default(),
            host: HostName::new("h1").unwrap(),
            epoch: Epoch(0),
            spec: Vec::new(),
        }
    }

    fn record(vid: u16) -> MoveRecord {
        let host = |name| HostName::new(name).unwrap();
        let (source, destination) = (host("h1").into(), host("h2").into());
        let vid = Vid::new(vid).unwrap();
        let (dry_run, post_copy) = (false, false);
        MoveRecord { vid, source, destination, epoch: Epoch(0), dry_run, post_copy, stage: Stage::Began }
    }

    fn all(log: &Log) -> Vec<(u64, Occurrence)> {
        log.after(0).unwrap().events.into_iter().map(|event| (event.number, event.what)).collect()
    }

    #[tokio::test]
    async fn what_was_decided_and_not_written_any_more_is_told_by_the_next_coordinator() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("store");
        let store = Store::open(&path).unwrap();
        let log = Log::open(&directory.path().join("events.redb")).unwrap();
        let writer = tokio::spawn(log.clone().write());
        for (lid, name) in [(1, "a"), (2, "b"), (3, "c")] {
            let (vid, id, record) = (Vid::new(lid).unwrap(), MoveId(lid.into()), record(lid));
            store.apply(&Record::InstanceAdded { vid, instance: instance(name) }).unwrap();
            log.note(&started(&instance(name)));
            store.apply(&Record::MoveBegan { id, record: record.clone() }).unwrap();
            log.note(&move_began(name, id, &record, None));
        }
        log.flushed().await;
        // The moves of a and b are committed; that of c is not, and is rolled back. b ends.
        let (one, two) = (MoveId(1), MoveId(2));
        store.apply(&Record::MovesCommitted { ids: [one].into() }).unwrap();
        store.apply(&Record::MoveConfirmed { id: one }).unwrap();
        store.apply(&Record::MoveEnded { id: one }).unwrap();
        store.apply(&Record::MoveRolledBack { id: two, reasons: vec!["no room".into()] }).unwrap();
        store.apply(&Record::MoveEnded { id: two }).unwrap();
        store.apply(&Record::InstanceEnded { vid: Vid::new(2).unwrap(), exit: Exit::Code(3) }).unwrap();
        drop((store, log));
        writer.abort();
        assert!(writer.await.unwrap_err().is_cancelled());
        let cluster = Cluster::open(&path).unwrap();
        let log = cluster.lock().log.clone();
        tokio::spawn(log.clone().write());
        log.flushed().await;
        let told = all(&log);
        let numbers: Vec<_> = told.iter().map(|(number, _)| *number).collect();
        assert_eq!(numbers, (1..=10).collect::<Vec<_>>());
        let moved = |what: &Occurrence| matches!(what, Occurrence::Moved { id: 1, figures: None, .. });
        assert!(moved(&told[6].1), "{told:?}");
        let expected =
            "MoveRolledBack { instance: \"b\", from: \"h1\", to: \"h2\", id: 2, reason: \"no room\"";
        assert!(format!("{:?}", told[7].1).starts_with(expected), "{told:?}");
        assert!(matches!(&told[8].1, Occurrence::Exited { code: 3, .. }), "{told:?}");
        assert_eq!(told[9].1, Occurrence::CoordinatorStarted);
    }

    #[tokio::test]
    async fn a_log_that_cannot_be_written_holds_nothing_up() {
        let directory = tempfile::tempdir().unwrap();
        let log = Log::open(&directory.path().join("events")).unwrap();
        (0..=MAX_EVENTS).for_each(|_| log.note(&Occurrence::CoordinatorStarted));
        let state = log.lock();
        assert_eq!((state.waiting.len() as u64, state.settled), (MAX_EVENTS, 1), "the oldest are dropped");
    }

    #[test]
    fn a_reason_is_cut_between_characters() {
        assert_eq!(cut("short"), "short");
        assert_eq!(cut(&"é".repeat(MAX_REASON)).chars().count(), MAX_REASON / 2);
    }
}
