//! Detects that other threads want the processor on which a program polls.
//!
//! No hardware does a peer's part, so a program that polls in a loop may keep its own peer, or the peer's thread, from
//! the processor. A program that was interrupted for long during empty polls is taken to share its processor; from then
//! on, for a multiple of that time, it sleeps a moment between rounds of empty polls; other threads that run seldom
//! cost it little. It does not call `sched_yield`: on kernels that let a yielding thread forfeit its time (6.18),
//! thousands of yields a second unsettle the sharing of time among groups, and processes unrelated to either end stood
//! still for seconds.

use std::time::Duration;

/// Polls in vain in a round, some microseconds.
const ROUND: u32 = 128;

/// A round that lasts longer than its thread ran was interrupted by another program's slice.
const INTERRUPTED: Duration = Duration::from_millis(1);

/// Others are taken to want the processor for so many times as long as they had it.
const MEMORY: u32 = 4;

/// But not for longer than this: a move or a debugger may have stopped the program.
const LONGEST: Duration = Duration::from_millis(50);

/// For how long after a long round the thread's own clock is read with each.
const WATCH: Duration = Duration::from_millis(100);

/// How long a program leaves its processor to others.
pub(crate) const NAP: Duration = Duration::from_micros(20);

/// For how long a thread has run.
#[derive(Clone, Copy)]
pub(crate) struct OwnTime {
    /// Differs from that of each other thread.
    pub(crate) thread: usize,
    pub(crate) ran: Duration,
}

/// The evidence from one process' empty polls.
#[derive(Default)]
pub(crate) struct Crowding {
    /// Polls in vain since one that was not.
    polls: u32,
    /// When the round began.
    begun: Duration,
    /// Until then, rounds are watched.
    watched_until: Duration,
    /// The thread's own clock at that time, if rounds are watched.
    own: Option<OwnTime>,
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
        own_clock: impl FnOnce() -> OwnTime,
    ) -> bool {
        self.polls = self.polls.wrapping_add(1);
        self.polls.is_multiple_of(ROUND) && self.end_round(clock(), own_clock)
    }

    #[cold]
    fn end_round(&mut self, now: Duration, own_clock: impl FnOnce() -> OwnTime) -> bool {
        let took = now.saturating_sub(std::mem::replace(&mut self.begun, now));
        // When the first round began is not known: the clock costs more than a poll.
        let is_long = self.polls != ROUND && took >= INTERRUPTED;
        if is_long {
            self.watched_until = now + WATCH;
        }
        // So does the other clock. It tells an interrupted thread from one that computes between its polls.
        let own = is_before(now, self.watched_until, WATCH).then(own_clock);
        let before = std::mem::replace(&mut self.own, own);
        if let (true, Some(before), Some(own)) = (is_long, before, own)
            && before.thread == own.thread
        {
            let lost = took.saturating_sub(own.ran.saturating_sub(before.ran));
            if lost >= INTERRUPTED {
                self.until = now + (lost * MEMORY).min(LONGEST);
            }
        }
        is_before(now, self.until, LONGEST)
    }
}

/// Whether `now` is before `end`, which is `most` away when it is set. After a move the clock may be another.
fn is_before(now: Duration, end: Duration, most: Duration) -> bool {
    now < end && end - now <= most
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A round of empty polls. At its end the clock shows so many microseconds, and the thread's own `ran`. True if a
    /// nap is due.
    fn round(crowding: &mut Crowding, clock: u64, ran: u64) -> bool {
        let own = OwnTime { thread: 1, ran: Duration::from_micros(ran) };
        let in_vain = |_: &u32| crowding.in_vain(|| Duration::from_micros(clock), || own);
        (0..ROUND).filter(in_vain).count() == 1
    }

    #[test]
    fn an_interrupted_poller_yields_for_a_multiple_of_the_interruption() {
        let mut crowding = Crowding::default();
        assert!(!round(&mut crowding, 50_000, 0), "the begin is unknown");
        assert!(!round(&mut crowding, 50_005, 5));
        assert!(!round(&mut crowding, 53_000, 10), "the running time is unknown");
        assert!(!round(&mut crowding, 53_005, 15));
        assert!(round(&mut crowding, 56_000, 20));
        let end = 56_000 + 2_990 * u64::from(MEMORY);
        assert!((56_100..end).step_by(100).all(|clock| round(&mut crowding, clock, 20)));
        assert!(!round(&mut crowding, end, 20));
    }

    #[test]
    fn a_stopped_poller_does_not_nap_for_long() {
        let mut crowding = Crowding::default();
        for clock in [1_000, 5_000, 3_600_000_000] {
            round(&mut crowding, clock, 0);
        }
        assert!(round(&mut crowding, 3_600_000_005, 5));
        assert!(!round(&mut crowding, 3_600_060_000, 60_000));
    }

    #[test]
    fn computing_between_polls_is_not_an_interruption() {
        let mut crowding = Crowding::default();
        assert!((1..1000).all(|turn| !round(&mut crowding, turn * 2_000, turn * 1_950)));
        assert!(round(&mut crowding, 2_003_000, 1_950_000), "another thread ran");
    }

    #[test]
    fn a_clock_set_back_by_a_move_ends_all_naps() {
        let mut crowding = Crowding::default();
        for clock in [1_000_000, 1_003_000, 1_006_000] {
            round(&mut crowding, clock, 0);
        }
        assert!(round(&mut crowding, 1_006_005, 5));
        assert!(!round(&mut crowding, 500_000, 5));
    }

    #[test]
    fn time_between_successful_polls_does_not_count() {
        let mut crowding = Crowding::default();
        for time in 1..100 {
            assert!(!round(&mut crowding, time * 1_000, 0));
            crowding.found();
        }
    }
}
