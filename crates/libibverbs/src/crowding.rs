//! Whether others want the processor that a program spins on.
//!
//! No hardware does a peer's part, so a program that spins may keep its own peer, or the peer's thread, from the
//! processor. A program that was interrupted for long while it polled in vain is taken to share its processor; from then
//! on, for some times as long, it sleeps a moment between rounds of such polls: what runs seldom costs it little. It does not call `sched_yield`: on kernels
//! that let a yielding thread forfeit its time (6.18), thousands of yields a second unsettle how time is shared among
//! groups, and processes that had nothing to do with either end stood still for seconds.

use std::time::Duration;

/// Polls in vain in a round, some microseconds.
const ROUND: u32 = 128;

/// A round that lasts longer was interrupted by another program's slice.
const INTERRUPTED: Duration = Duration::from_millis(1);

/// Others are taken to want the processor for so many times as long as they had it.
const MEMORY: u32 = 4;

/// How long a program leaves its processor to others.
pub(crate) const NAP: Duration = Duration::from_micros(20);

/// What one process' polls in vain have shown.
#[derive(Default)]
pub(crate) struct Crowding {
    /// Polls in vain since one that was not.
    polls: u32,
    /// When the round began.
    begun: Duration,
    /// Until then, others are taken to want the processor.
    until: Duration,
}

impl Crowding {
    /// A poll has found something.
    #[inline]
    pub(crate) fn found(&mut self) {
        self.polls = 0;
    }

    /// A poll was in vain. True if the program is to leave its processor to others for a [`NAP`]. `clock` runs on while
    /// the program is interrupted.
    #[inline]
    pub(crate) fn in_vain(&mut self, clock: impl FnOnce() -> Duration) -> bool {
        self.polls = self.polls.wrapping_add(1);
        self.polls.is_multiple_of(ROUND) && self.end_round(clock())
    }

    #[cold]
    fn end_round(&mut self, now: Duration) -> bool {
        let begun = std::mem::replace(&mut self.begun, now);
        // When the first round began is not known: the clock costs more than a poll.
        if self.polls != ROUND {
            let took = now.saturating_sub(begun);
            if took >= INTERRUPTED {
                self.until = now + took * MEMORY;
            }
        }
        now < self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A round of polls in vain, at the end of which the clock shows so many microseconds. True if a nap is due.
    fn round(crowding: &mut Crowding, clock: u64) -> bool {
        let naps = (0..ROUND).filter(|_| crowding.in_vain(|| Duration::from_micros(clock)));
        naps.count() == 1
    }

    #[test]
    fn who_was_interrupted_leaves_the_processor_to_others_for_some_times_as_long() {
        let mut crowding = Crowding::default();
        assert!(!round(&mut crowding, 50_000), "nobody knows when it began");
        assert!(!round(&mut crowding, 50_005));
        assert!(round(&mut crowding, 53_000));
        let end = 53_000 + 2_995 * u64::from(MEMORY);
        assert!((53_100..end).step_by(100).all(|clock| round(&mut crowding, clock)));
        assert!(!round(&mut crowding, end));
    }

    #[test]
    fn time_between_polls_that_found_something_counts_for_nothing() {
        let mut crowding = Crowding::default();
        for time in 1..100 {
            assert!(!round(&mut crowding, time * 1_000));
            crowding.found();
        }
    }
}
