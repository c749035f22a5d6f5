//! The periodic report of the workload: counts per interval, and the longest gap.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::Serialize;

use crate::initiator::Done;

/// A time without any completion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Gap {
    /// Its length, in microseconds.
    pub micros: u64,
    /// When it began, in seconds since 1970.
    pub began: f64,
}

/// Work that was checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Operations of this side that completed.
    pub operations: u64,
    /// Messages of the other side that were received.
    pub received: u64,
    /// Bytes of both.
    pub bytes: u64,
    /// Work completions.
    pub completions: u64,
}

/// One line of the report.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Interval {
    /// Its end, in seconds since 1970.
    pub at: f64,
    /// Its end, in seconds since the start.
    pub elapsed: f64,
    /// The completions in it.
    #[serde(flatten)]
    pub counts: Counts,
    /// The longest gap that ended in it or still lasts, in microseconds.
    pub gap_micros: u64,
}

/// Counts, with the times that belong to them.
#[derive(Debug)]
pub struct Meter {
    started: Instant,
    started_at: f64,
    total: Counts,
    reported: Counts,
    last_completion: Option<Instant>,
    longest: Gap,
    longest_of_interval: Duration,
}

impl Meter {
    /// A meter that starts at `now`.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self {
            started: now,
            started_at: since_1970(),
            total: Counts::default(),
            reported: Counts::default(),
            last_completion: None,
            longest: Gap::default(),
            longest_of_interval: Duration::ZERO,
        }
    }

    /// Notes that `count` work completions were taken at `now`.
    pub fn completed(&mut self, count: usize, now: Instant) {
        self.total.completions += count as u64;
        if let Some(last) = self.last_completion.replace(now) {
            self.note_gap(last, now);
        }
    }

    fn note_gap(&mut self, from: Instant, to: Instant) {
        let length = to.saturating_duration_since(from);
        self.longest_of_interval = self.longest_of_interval.max(length);
        let micros = u64::try_from(length.as_micros()).unwrap_or(u64::MAX);
        if micros > self.longest.micros {
            let began = self.started_at + from.saturating_duration_since(self.started).as_secs_f64();
            self.longest = Gap { micros, began };
        }
    }

    /// Notes checked operations of this side.
    pub fn sent(&mut self, done: Done) {
        self.total.operations += done.operations;
        self.total.bytes += done.bytes;
    }

    /// Notes checked messages of the other side.
    pub fn received(&mut self, done: Done) {
        self.total.received += done.operations;
        self.total.bytes += done.bytes;
    }

    /// The changes since the last call.
    pub fn interval(&mut self, now: Instant) -> Interval {
        let lasting = self.last_completion.map_or(Duration::ZERO, |last| now.saturating_duration_since(last));
        let gap = self.longest_of_interval.max(lasting);
        let counts = self.total.since(self.reported);
        self.reported = self.total;
        self.longest_of_interval = Duration::ZERO;
        let elapsed = self.elapsed(now).as_secs_f64();
        let gap_micros = u64::try_from(gap.as_micros()).unwrap_or(u64::MAX);
        Interval { at: self.started_at + elapsed, elapsed, counts, gap_micros }
    }

    /// The time since the last completion, or since the start.
    #[must_use]
    pub fn idle(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.last_completion.unwrap_or(self.started))
    }

    /// The time since the start.
    #[must_use]
    pub fn elapsed(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.started)
    }

    /// Everything so far.
    #[must_use]
    pub fn total(&self) -> Counts {
        self.total
    }

    /// The longest gap so far.
    #[must_use]
    pub fn longest_gap(&self) -> Gap {
        self.longest
    }
}

impl Counts {
    fn since(self, earlier: Self) -> Self {
        Self {
            operations: self.operations - earlier.operations,
            received: self.received - earlier.received,
            bytes: self.bytes - earlier.bytes,
            completions: self.completions - earlier.completions,
        }
    }
}

fn since_1970() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_gap_is_found_with_its_time() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let mut meter = Meter::new(start);
        for millis in [500, 501, 701, 702, 752] {
            meter.completed(1, at(millis));
        }
        let gap = meter.longest_gap();
        assert_eq!(gap.micros, 200_000);
        assert!((gap.began - meter.started_at - 0.501).abs() < 1e-6);
        assert_eq!(meter.interval(at(760)).gap_micros, 200_000);
        assert_eq!(meter.interval(at(770)).gap_micros, 18_000);
    }

    #[test]
    fn intervals_hold_new_values() {
        let mut meter = Meter::new(Instant::now());
        meter.sent(Done { operations: 2, bytes: 10 });
        meter.received(Done { operations: 1, bytes: 5 });
        let now = Instant::now();
        let first = meter.interval(now).counts;
        assert_eq!((first.operations, first.received, first.bytes), (2, 1, 15));
        assert_eq!(meter.interval(now).counts, Counts::default());
    }
}
