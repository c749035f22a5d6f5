//! What a courier counts, for who tells how far it is.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// See the module. All of it only rises, but for what a look is to show.
#[derive(Default)]
pub struct Meter {
    expected: AtomicU64,
    seen: AtomicU64,
    given: AtomicU64,
    sent: AtomicU64,
    sending_us: AtomicU64,
    waited: Mutex<Waited>,
}

/// For how long looks have waited, and since when one does.
#[derive(Default)]
struct Waited {
    before: Duration,
    since: Option<Instant>,
}

/// What a meter shows.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reading {
    /// The bytes of memory that the last look has to show.
    pub expected: u64,
    /// The bytes of memory that all looks have shown.
    pub seen: u64,
    /// Those of them that were to be sent.
    pub given: u64,
    /// Those of these that are.
    pub sent: u64,
    /// How long that took, with the pauses for a limit.
    pub sending: Duration,
    /// How long looks have waited for that.
    pub waited: Duration,
}

impl Meter {
    /// A look will show so many bytes.
    pub fn expect(&self, bytes: u64) {
        self.expected.store(bytes, Ordering::Relaxed);
    }

    /// So many more bytes were shown.
    pub fn see(&self, bytes: u64) {
        self.seen.fetch_add(bytes, Ordering::Relaxed);
    }

    /// So many more bytes are to be sent.
    pub fn give(&self, bytes: u64) {
        self.given.fetch_add(bytes, Ordering::Relaxed);
    }

    /// So many more bytes are sent, which took so long.
    pub fn send(&self, bytes: u64, took: Duration) {
        self.sent.fetch_add(bytes, Ordering::Relaxed);
        self.sending_us.fetch_add(micros(took), Ordering::Relaxed);
    }

    /// A look waits for something to be sent.
    pub fn begin_to_wait(&self) {
        self.waited().since = Some(Instant::now());
    }

    /// It goes on.
    pub fn end_to_wait(&self) {
        let mut waited = self.waited();
        waited.before = waited.until_now();
        waited.since = None;
    }

    fn waited(&self) -> MutexGuard<'_, Waited> {
        self.waited.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What it shows now.
    pub fn read(&self) -> Reading {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Reading {
            expected: of(&self.expected),
            seen: of(&self.seen),
            given: of(&self.given),
            sent: of(&self.sent),
            sending: Duration::from_micros(of(&self.sending_us)),
            waited: self.waited().until_now(),
        }
    }
}

impl Waited {
    fn until_now(&self) -> Duration {
        self.before + self.since.map_or(Duration::ZERO, |since| since.elapsed())
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
