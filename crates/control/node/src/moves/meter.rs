//! The counters of a courier, from which progress is reported.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use tokio::time::Instant;

use crate::lock::lock;

/// Counters that only rise, except the bytes expected of a round.
#[derive(Default)]
pub struct Meter {
    expected: AtomicU64,
    seen: AtomicU64,
    given: AtomicU64,
    sent: AtomicU64,
    sending_us: AtomicU64,
    waited: Mutex<Waited>,
}

/// The total time that rounds have waited, and the begin of the present wait.
#[derive(Default)]
struct Waited {
    before: Duration,
    since: Option<Instant>,
}

/// The values of a meter at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reading {
    /// The bytes of memory expected in the current round.
    pub expected: u64,
    /// The bytes of memory read in all rounds.
    pub seen: u64,
    /// The bytes of these that must be sent.
    pub given: u64,
    /// The bytes of these that are sent.
    pub sent: u64,
    /// The time spent sending, including pauses of the rate limit.
    pub sending: Duration,
    /// The time that rounds have waited for sending.
    pub waited: Duration,
}

impl Meter {
    /// Sets the bytes expected in a round.
    pub fn expect(&self, bytes: u64) {
        self.expected.store(bytes, Ordering::Relaxed);
    }

    /// Adds bytes that were read.
    pub fn see(&self, bytes: u64) {
        self.seen.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Adds bytes that must be sent.
    pub fn give(&self, bytes: u64) {
        self.given.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Adds bytes that were sent in the time `took`.
    pub fn send(&self, bytes: u64, took: Duration) {
        self.sent.fetch_add(bytes, Ordering::Relaxed);
        self.sending_us.fetch_add(micros(took), Ordering::Relaxed);
    }

    /// Begins a round's wait for sending.
    pub fn begin_to_wait(&self) {
        self.waited().since = Some(Instant::now());
    }

    /// Ends that wait.
    pub fn end_to_wait(&self) {
        let mut waited = self.waited();
        waited.before = waited.until_now();
        waited.since = None;
    }

    fn waited(&self) -> MutexGuard<'_, Waited> {
        lock(&self.waited)
    }

    /// The current values.
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
