//! Rate limits.

use std::time::{Duration, Instant};

/// A rate limit: allows a `burst`, and one more event per `interval`.
#[derive(Clone, Debug)]
pub struct Pace {
    burst: u32,
    interval: Duration,
    left: u32,
    counted: Instant,
}

/// The rate limit for log lines about connections: a burst of five, and then one a minute.
pub fn complaints() -> Pace {
    Pace::new(5, Duration::from_secs(60), Instant::now())
}

impl Pace {
    /// A rate limit with its full burst available `now`.
    pub fn new(burst: u32, interval: Duration, now: Instant) -> Self {
        Self { burst, interval, left: burst, counted: now }
    }

    /// Counts an event if it is allowed now, and returns whether it is.
    pub fn take(&mut self, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.counted);
        let earned = u32::try_from(passed.as_nanos() / self.interval.as_nanos().max(1)).unwrap_or(u32::MAX);
        if earned > 0 {
            self.left = self.left.saturating_add(earned).min(self.burst);
            self.counted = now;
        }
        let may = self.left > 0;
        self.left -= u32::from(may);
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_logged_five_times() {
        let mut pace = complaints();
        let now = Instant::now();
        assert_eq!((0..4000).filter(|_| pace.take(now)).count(), 5);
        assert!(pace.take(now + Duration::from_secs(61)));
    }

    #[test]
    fn allows_a_burst_and_then_one_per_interval() {
        let begin = Instant::now();
        let after = |milliseconds| begin + Duration::from_millis(milliseconds);
        let mut pace = Pace::new(2, Duration::from_millis(10), begin);
        assert!(pace.take(begin) && pace.take(begin) && !pace.take(begin));
        assert!(!pace.take(after(9)));
        assert!(pace.take(after(11)) && !pace.take(after(12)));
        assert!(pace.take(after(1000)) && pace.take(after(1000)) && !pace.take(after(1000)));
    }
}
