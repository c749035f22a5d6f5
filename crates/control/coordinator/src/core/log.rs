//! The event log (ADR 0028).
//!
//! Events are queued while the state is locked, and a separate task writes them, so that no move waits for the log; a client receives an event
//! only when it is durable. If the coordinator was killed before it wrote an event, its successor reconstructs the event from the store.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{SystemTime, UNIX_EPOCH};

use api::{LoggedEvent, Occurrence};
use store::{EventLog, MAX_EVENTS, StoreError};
use tokio::sync::Notify;

/// Maximum number of events per read and per write.
const BATCH: usize = 256;

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
    pub async fn flushed(&self) {
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
    pub fn after(&self, after: u64) -> Result<Read, StoreError> {
        let kept = self.file.after(after, BATCH)?;
        let last = kept.last().map(|(number, _)| *number);
        let understood = kept.into_iter().filter_map(|(number, bytes)| {
            let (time_ms, what) = api::from_line(str::from_utf8(&bytes).ok()?).ok()?;
            Some(LoggedEvent { number, time_ms, what })
        });
        Ok(Read { events: understood.collect(), last })
    }

    /// Notified when more events are written.
    pub fn settled(&self) -> &Notify {
        &self.settled
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics while it is held")
    }
}

/// A part of the log.
pub struct Read {
    pub events: Vec<LoggedEvent>,
    /// The last number, if any event was read.
    pub last: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_log_that_cannot_be_written_holds_nothing_up() {
        let directory = tempfile::tempdir().unwrap();
        let log = Log::open(&directory.path().join("events")).unwrap();
        (0..=MAX_EVENTS).for_each(|_| log.note(&Occurrence::CoordinatorStarted));
        let state = log.lock();
        assert_eq!((state.waiting.len() as u64, state.settled), (MAX_EVENTS, 1), "the oldest are dropped");
    }
}
