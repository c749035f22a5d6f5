//! Time for deadlines that survive a move: another host has another `CLOCK_MONOTONIC`.

use std::time::Duration;

/// The most time that counts between two readings of the clock. It is read each second while there are deadlines, so
/// a longer time is a move or a stop, and peers do not know of it.
const MOST: Duration = Duration::from_secs(2);

/// How often the clock must be looked at while there are deadlines.
pub(crate) const LOOK: Duration = Duration::from_secs(1);

/// A clock that jumps neither back nor far ahead.
#[derive(Debug, Default)]
pub(crate) struct Clock {
    shown: Duration,
    last: Duration,
}

impl Clock {
    /// The time.
    pub(crate) fn now(&mut self) -> Duration {
        self.advance(monotonic())
    }

    fn advance(&mut self, real: Duration) -> Duration {
        self.shown += real.saturating_sub(self.last).min(MOST);
        self.last = real;
        self.shown
    }
}

fn monotonic() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` can be written.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_hosts_clock_moves_no_deadline_far() {
        let seconds = Duration::from_secs;
        let mut clock = Clock::default();
        let begin = clock.advance(seconds(1000));
        assert_eq!(clock.advance(seconds(1001)) - begin, seconds(1));
        assert_eq!(clock.advance(seconds(5)) - begin, seconds(1), "a host that booted later");
        assert_eq!(clock.advance(seconds(6)) - begin, seconds(2));
        assert_eq!(clock.advance(seconds(90_000)) - begin, seconds(4), "one that booted earlier");
    }
}
