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

/// What a round lasts longer than its thread ran was another program's slice.
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
    /// For how long the thread had run by then, if the round before it was long as well.
    ran: Option<Duration>,
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
    /// the program is interrupted, `own_clock` while its thread runs.
    #[inline]
    pub(crate) fn in_vain(
        &mut self,
        clock: impl FnOnce() -> Duration,
        own_clock: impl FnOnce() -> Duration,
    ) -> bool {
        self.polls = self.polls.wrapping_add(1);
        self.polls.is_multiple_of(ROUND) && self.end_round(clock(), own_clock)
    }

    #[cold]
    fn end_round(&mut self, now: Duration, own_clock: impl FnOnce() -> Duration) -> bool {
        let took = now.saturating_sub(std::mem::replace(&mut self.begun, now));
        // When the first round began is not known: the clock costs more than a poll.
        let is_long = self.polls != ROUND && took >= INTERRUPTED;
        // So does the other one, which a program needs that computes between its polls: all of its rounds are long.
        let ran = is_long.then(own_clock);
        let before = std::mem::replace(&mut self.ran, ran);
        if let Some(ran) = ran {
            let lost =
                took.saturating_sub(before.map_or(Duration::ZERO, |before| ran.saturating_sub(before)));
            if lost >= INTERRUPTED {
                self.until = now + lost * MEMORY;
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
        round_of(crowding, clock, 0)
    }

    /// The same if the thread's own clock shows `ran`.
    fn round_of(crowding: &mut Crowding, clock: u64, ran: u64) -> bool {
        let in_vain =
            |_: &u32| crowding.in_vain(|| Duration::from_micros(clock), || Duration::from_micros(ran));
        (0..ROUND).filter(in_vain).count() == 1
    }

    #[test]
    fn who_computes_between_polls_was_not_interrupted() {
        let mut crowding = Crowding::default();
        // The first long round may have been an interruption.
        let naps = (1..1000).filter(|turn| round_of(&mut crowding, turn * 2_000, turn * 1_950));
        assert!(naps.count() as u32 <= 1 + MEMORY);
        assert!(round_of(&mut crowding, 2_003_000, 1_950_000), "somebody else ran");
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
