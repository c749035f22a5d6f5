//! When to plan again after no move has paid: when a load is new or higher, else after a time that doubles.

use std::time::Duration;

use crate::history::HOUR;
use crate::trigger::{Cause, Triggers};

/// By how much a load must have risen, in percent.
const HIGHER: u64 = 25;

/// The loads for which no move has paid.
#[derive(Debug, Default)]
pub struct Backoff {
    causes: Vec<(Cause, u64)>,
    until: Duration,
    times: u32,
}

impl Backoff {
    /// No move has paid.
    pub fn note(&mut self, now: Duration, hold: Duration, causes: &[Cause], triggers: &Triggers) {
        let wait = hold.saturating_mul(1 << self.times.min(16)).min(HOUR);
        self.times += 1;
        self.until = now + wait;
        self.causes = causes.iter().map(|cause| (cause.clone(), triggers.level(cause))).collect();
    }

    /// Something has moved: everything is different now.
    pub fn reset(&mut self) {
        *self = Self::default();
    }

    /// The time to wait, unless a load is new or higher than it was.
    pub fn left(&self, now: Duration, causes: &[Cause], triggers: &Triggers) -> Option<Duration> {
        let left = self.until.saturating_sub(now);
        let is_known = |cause: &Cause| {
            let level = triggers.level(cause);
            self.causes.iter().any(|(known, at)| known == cause && level <= at + at * HIGHER / 100)
        };
        (!left.is_zero() && causes.iter().all(is_known)).then_some(left)
    }
}
