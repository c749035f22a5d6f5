//! When the thread sleeps on links.
//!
//! A program that spins in `ibv_poll_cq` drives the links itself; a thread that woke for the same bytes
//! would only steal its processor. One that blocks, or spins on memory (as `ib_write_lat` does),
//! needs the thread. So the thread is *armed* (sleeps on links) or not:
//!
//! ```text
//!           woke `patience` times in a row, and each time the program had spun meanwhile
//!   armed ────────────────────────────────────────────────────────────────────▶ disarmed
//!         ◀────────────────────────────────────────────────────────────────────
//!           no poll for a tick (1 ms), or the program armed a CQ (it is about to block),
//!           or a tick found work that the program had not polled for
//! ```
//!
//! In the last case disarming was a mistake, and patience grows.
//! Timers are the thread's in both states, and so is what a program has left behind at its last poll, such as
//! acknowledgements that were to ride on its next request: the thread looks each tick, or each few ticks of a program
//! that spins, and after a quiet while it sleeps soundly until a call wakes it.

use std::ops::RangeInclusive;

/// Polls since the thread last looked after which the program is taken to spin.
const SPINNING: u32 = 32;

/// The least and the most wake-ups in a row after which the program is taken to poll for itself.
const PATIENCE: RangeInclusive<u32> = 4..=16 * 1024;

/// Quiet ticks after which the thread sleeps until something wakes it.
const DROWSY: u32 = 10;

/// Ticks after which disarming counts as right.
const PROVEN: u32 = 20;

/// What the thread has seen of the program.
pub(crate) struct Arming {
    /// The program's polls when the thread last looked.
    seen: u32,
    /// Wake-ups in a row of a program that spins.
    streak: u32,
    patience: u32,
    /// Ticks since the thread was disarmed.
    ticks: u32,
    /// Ticks without traffic or polls.
    quiet: u32,
}

impl Default for Arming {
    fn default() -> Self {
        Self { seen: 0, streak: 0, patience: *PATIENCE.start(), ticks: 0, quiet: 0 }
    }
}

impl Arming {
    /// True if the program, with so many `polls` by now, spins.
    pub(crate) fn spins(&self, polls: u32) -> bool {
        polls.wrapping_sub(self.seen) >= SPINNING
    }

    /// A tick has passed in which the thread did not look for more than the program's `polls`.
    pub(crate) fn glance(&mut self, polls: u32) {
        self.seen = polls;
        self.ticks += 1;
    }

    /// True if there has been nothing to do for long.
    pub(crate) fn is_drowsy(&self) -> bool {
        self.quiet >= DROWSY
    }

    /// Whether the thread is to be armed, who now is or is not. `by_link`: a link has woken the thread; `did_work`: it
    /// found something to do there.
    pub(crate) fn judge(&mut self, armed: bool, polls: u32, by_link: bool, did_work: bool) -> bool {
        let spins = self.spins(polls);
        let has_polled = polls != self.seen;
        self.seen = polls;
        self.quiet = if by_link || has_polled { 0 } else { self.quiet.saturating_add(1) };
        if !armed {
            self.ticks += 1;
            let mistaken = did_work && !spins;
            self.learn(mistaken);
            return mistaken || !has_polled;
        }
        if !by_link {
            return true;
        }
        self.streak = if spins { self.streak + 1 } else { 0 };
        self.ticks = 0;
        self.streak < self.patience
    }

    fn learn(&mut self, mistaken: bool) {
        self.streak = 0;
        if mistaken {
            self.patience = (self.patience * 4).min(*PATIENCE.end());
        } else if self.ticks > PROVEN {
            self.patience = *PATIENCE.start();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Wake-ups by links of a program that spins until the thread is disarmed.
    fn until_disarmed(arming: &mut Arming, polls: &mut u32) -> u32 {
        let armed_after = |_: &u32| {
            *polls += SPINNING;
            arming.judge(true, *polls, true, true)
        };
        1 + (1..).take_while(armed_after).count() as u32
    }

    #[test]
    fn a_program_that_spins_is_left_alone_until_it_stops() {
        let (mut arming, mut polls) = (Arming::default(), 0);
        assert_eq!(until_disarmed(&mut arming, &mut polls), *PATIENCE.start());
        polls += SPINNING;
        assert!(!arming.judge(false, polls, false, true));
        assert!(arming.judge(false, polls, false, false), "no poll since");
    }

    #[test]
    fn a_program_that_is_about_to_block_is_believed() {
        let (mut arming, mut polls) = (Arming::default(), 0);
        until_disarmed(&mut arming, &mut polls);
        assert!(arming.judge(true, polls + SPINNING, false, false), "the program has armed it");
    }

    #[test]
    fn a_mistake_makes_patient_and_time_forgets_it() {
        let (mut arming, mut polls) = (Arming::default(), 0);
        until_disarmed(&mut arming, &mut polls);
        assert!(arming.judge(false, polls + 1, false, true), "there was work, and hardly a poll");
        polls += 1;
        assert_eq!(until_disarmed(&mut arming, &mut polls), 4 * PATIENCE.start());
        for _ in 0..=PROVEN {
            polls += SPINNING;
            arming.glance(polls);
        }
        assert!(!arming.judge(false, polls + SPINNING, false, false));
        polls += SPINNING;
        assert!(arming.judge(false, polls, false, false));
        assert_eq!(until_disarmed(&mut arming, &mut polls), *PATIENCE.start());
    }

    #[test]
    fn a_program_that_blocks_keeps_the_thread_and_lets_it_rest() {
        let mut arming = Arming::default();
        assert!((0..100).all(|polls| arming.judge(true, polls, true, true)));
        assert!(!arming.is_drowsy());
        assert!((0..DROWSY).all(|_| arming.judge(true, 99, false, false)));
        assert!(arming.is_drowsy());
    }
}
