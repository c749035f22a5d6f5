//! Decides when the thread sleeps on links.
//!
//! A program that polls in a loop (`ibv_poll_cq`) drives the links itself; a thread that woke for the same bytes
//! would only steal its processor. A program that blocks, or polls memory (as `ib_write_lat` does),
//! needs the thread. So the thread is *armed* (sleeps on links) or not:
//!
//! ```text
//!           woken by links while the program polled, `patience` times more often than not
//!   armed ────────────────────────────────────────────────────────────────────▶ disarmed
//!         ◀────────────────────────────────────────────────────────────────────
//!           no poll for a tick (1 ms), or the program armed a CQ (it is about to block),
//!           or a tick found work that the program had not polled
//! ```
//!
//! In the last case disarming was a mistake, and patience grows; the first tick is a short one, so that a mistake costs little.
//! The thread handles timers in both states, and also the output that a program left pending at its last poll, such as
//! acknowledgements that were to be piggybacked on its next request: it checks each tick, or every few ticks while a program
//! polls. After some time without work it sleeps without a tick until a call leaves output behind and wakes it: a
//! program that only uses direct mappings of its neighbours' memory is not disturbed, however much it posts and polls.

use std::ops::RangeInclusive;
use std::time::Duration;

/// How often a disarmed thread looks whether the program still polls.
pub(crate) const TICK: Duration = Duration::from_millis(1);

/// The first time it looks sooner.
const TRIAL: Duration = Duration::from_micros(100);

/// Polls in a tick after which the program is taken to spin; in less time it takes fewer, but some.
const SPINNING: u32 = 10;
const SPINNING_FOR_A_MOMENT: u32 = 3;

/// The least and the most wake-ups after which the program is taken to poll for itself.
const PATIENCE: RangeInclusive<u32> = 4..=16 * 1024;

/// Ticks without anything to do after which the thread sleeps until something wakes it.
const DROWSY: u32 = 10;

/// Ticks after which disarming counts as right.
const PROVEN: u32 = 20;

/// The program's polls by some time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Polls {
    pub(crate) count: u32,
    pub(crate) at: Duration,
}

/// The thread's observations of the program.
pub(crate) struct Arming {
    /// When it last looked.
    seen: Polls,
    /// By how many more wake-ups the program has spun than it has not.
    lead: u32,
    patience: u32,
    /// Ticks since the thread was disarmed.
    ticks: u32,
    /// Ticks in a row without anything to do.
    quiet: u32,
}

impl Default for Arming {
    fn default() -> Self {
        let patience = *PATIENCE.start();
        Self { seen: Polls::default(), lead: 0, patience, ticks: 0, quiet: 0 }
    }
}

impl Arming {
    /// True if the program, which has polled so often by `now`, spins.
    pub(crate) fn spins(&self, now: Polls) -> bool {
        let elapsed = now.at.saturating_sub(self.seen.at).min(TICK);
        let enough = SPINNING * elapsed.subsec_micros() / TICK.subsec_micros();
        now.count.wrapping_sub(self.seen.count) >= enough.max(SPINNING_FOR_A_MOMENT)
    }

    /// A tick has passed in which the thread did not look for more than the program's polls.
    pub(crate) fn glance(&mut self, now: Polls) {
        self.seen = now;
        self.ticks += 1;
    }

    /// How long the disarmed thread sleeps before it looks again.
    pub(crate) fn tick(&self) -> Duration {
        if self.ticks == 0 { TRIAL } else { TICK }
    }

    /// Whether the program has polled since the thread last looked.
    pub(crate) fn has_polled(&self, now: Polls) -> bool {
        now.count != self.seen.count
    }

    /// The thread has woken, and there was something to do or not.
    pub(crate) fn note(&mut self, had_work: bool) {
        self.quiet = if had_work { 0 } else { self.quiet.saturating_add(1) };
    }

    /// True if there has been nothing to do for long.
    pub(crate) fn is_quiet_for_long(&self) -> bool {
        self.quiet >= DROWSY
    }

    /// True if the thread should be armed. `by_link`: a link has woken the thread; `did_work`: it found work
    /// there.
    pub(crate) fn judge(&mut self, armed: bool, now: Polls, by_link: bool, did_work: bool) -> bool {
        let spins = self.spins(now);
        let has_polled = self.has_polled(now);
        self.seen = now;
        if !armed {
            self.ticks += 1;
            let mistaken = did_work && !spins;
            self.learn(mistaken);
            return mistaken || !has_polled;
        }
        if !by_link {
            return true;
        }
        self.lead = if spins { self.lead + 1 } else { self.lead.saturating_sub(1) };
        self.ticks = 0;
        self.lead < self.patience
    }

    fn learn(&mut self, mistaken: bool) {
        self.lead = 0;
        if self.ticks > PROVEN {
            self.patience = *PATIENCE.start();
        } else if mistaken {
            self.patience = (self.patience * 4).min(*PATIENCE.end());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Polls {
        /// So many more polls, in a tick.
        fn poll(&mut self, count: u32) -> Self {
            self.count += count;
            self.at += TICK;
            *self
        }

        fn spin(&mut self) -> Self {
            self.poll(SPINNING)
        }
    }

    /// Wake-ups by links of a program that spins until the thread is disarmed.
    fn until_disarmed(arming: &mut Arming, polls: &mut Polls) -> u32 {
        1 + (1..).take_while(|_| arming.judge(true, polls.spin(), true, true)).count() as u32
    }

    #[test]
    fn a_polling_program_is_not_armed_until_it_stops() {
        let (mut arming, mut polls) = (Arming::default(), Polls::default());
        assert_eq!(until_disarmed(&mut arming, &mut polls), *PATIENCE.start());
        assert!(!arming.judge(false, polls.spin(), false, true));
        assert!(arming.judge(false, polls, false, false), "no poll since");
    }

    #[test]
    fn fewer_polls_suffice_in_less_time() {
        let (mut arming, mut polls) = (Arming::default(), Polls::default());
        arming.glance(polls.spin());
        let later = |count, micros| Polls {
            count: polls.count + count,
            at: polls.at + Duration::from_micros(micros),
        };
        assert!(arming.spins(later(SPINNING_FOR_A_MOMENT, 10)));
        assert!(!arming.spins(later(SPINNING_FOR_A_MOMENT - 1, 10)));
        assert!(!arming.spins(later(SPINNING - 1, 1000)));
        assert!(arming.spins(later(SPINNING, 60_000)));
    }

    #[test]
    fn a_polling_program_with_short_interruptions_is_not_armed() {
        let (mut arming, mut polls) = (Arming::default(), Polls::default());
        let stays_armed = |turn: &u32| {
            let count = if turn.is_multiple_of(3) { 0 } else { SPINNING };
            arming.judge(true, polls.poll(count), true, true)
        };
        assert!((1..100).take_while(stays_armed).count() < 99);
    }

    #[test]
    fn a_program_that_arms_before_blocking_gets_events() {
        let (mut arming, mut polls) = (Arming::default(), Polls::default());
        until_disarmed(&mut arming, &mut polls);
        assert!(arming.judge(true, polls.spin(), false, false), "the program has armed it");
    }

    #[test]
    fn a_wrong_guess_raises_the_threshold_for_a_while() {
        let (mut arming, mut polls) = (Arming::default(), Polls::default());
        until_disarmed(&mut arming, &mut polls);
        assert_eq!(arming.tick(), TRIAL);
        assert!(arming.judge(false, polls.poll(1), false, true), "there was work, and hardly a poll");
        assert_eq!(until_disarmed(&mut arming, &mut polls), 4 * PATIENCE.start());
        (0..=PROVEN).for_each(|_| arming.glance(polls.spin()));
        assert_eq!(arming.tick(), TICK);
        assert!(arming.judge(false, polls.poll(1), false, true), "it has stopped");
        assert_eq!(until_disarmed(&mut arming, &mut polls), *PATIENCE.start());
    }

    #[test]
    fn a_program_that_blocks_keeps_the_thread_and_lets_it_rest() {
        let (mut arming, mut polls) = (Arming::default(), Polls::default());
        for _ in 0..100 {
            assert!(arming.judge(true, polls.poll(1), true, true));
            arming.note(true);
        }
        assert!(!arming.is_quiet_for_long());
        (0..DROWSY).for_each(|_| arming.note(false));
        assert!(arming.is_quiet_for_long());
        arming.note(true);
        assert!(!arming.is_quiet_for_long());
    }
}
