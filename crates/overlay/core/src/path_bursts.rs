//! Detects paths that lose datagrams sent in one call.
//!
//! The kernel, or a device, splits the data of one call (GSO). If it splits wrongly, or loses all but the first piece, no error
//! is reported: datagrams fail to open, or are missing. So on a new path, and after much loss, probes are sent both in one call and one by one,
//! and their answers counted:
//!
//! ```text
//!                   a new path, or much loss
//!   nothing is wrong ───────────────────────────▶ on trial ── only those sent in one call are lost, ────▶ wrong
//!           ▲                                        │         several times in a row
//!           └──────────── all else ──────────────────┘
//! ```
//!
//! If both kinds are lost, the path itself is lossy. The verdict *wrong* stays until the path changes.

use std::time::Duration;

/// Probes of either kind.
pub const PROBES: usize = 8;

/// How long answers may take.
const PATIENCE: Duration = Duration::from_secs(1);

/// So many trials in a row have to fail.
const FAILURES: u32 = 3;

/// The number of datagrams in a sample for loss: much is a quarter.
const SAMPLE: u64 = 8;

/// How long it takes at least from a trial that has found nothing to the next one: at first, and at most.
const PAUSE: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(60));

/// The fault of datagrams that are sent in one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// They are refused, and taken one by one.
    Refused,
    /// They are lost, while datagrams that leave one by one are not.
    Lost,
}

/// Bytes of a probe: no two kinds have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lengths {
    /// Of the datagrams that leave in one call.
    pub together: usize,
    /// Of the datagrams that leave one by one.
    pub alone: usize,
}

/// A trial, and how many of its probes were answered.
#[derive(Clone, Copy, Debug)]
struct Trial {
    since: Duration,
    lengths: Lengths,
    together: usize,
    alone: usize,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct PathBursts {
    wrong: Option<Wrong>,
    trial: Option<Trial>,
    failures: u32,
    /// The counts of sent and lost datagrams when the present sample began.
    sent: u64,
    lost: u64,
    /// Much was missing in the last sample.
    is_suspicious: bool,
    /// When there may be a trial.
    due: Duration,
    pause: Duration,
}

impl Default for PathBursts {
    /// Of a new way.
    fn default() -> Self {
        Self {
            wrong: None,
            trial: None,
            failures: 0,
            sent: 0,
            lost: 0,
            is_suspicious: true,
            due: Duration::ZERO,
            pause: PAUSE.0,
        }
    }
}

impl PathBursts {
    /// The verdict that carries over to the next session.
    #[must_use]
    pub fn of_next_session(&self) -> Self {
        Self { trial: None, sent: 0, lost: 0, ..self.clone() }
    }

    /// The fault, if there is one.
    #[must_use]
    pub fn wrong(&self) -> Option<Wrong> {
        self.wrong
    }

    /// Datagrams were refused in one call, and taken one by one.
    pub fn refused(&mut self) {
        self.wrong.get_or_insert(Wrong::Refused);
    }

    /// The lengths of probes to send now, [`PROBES`] of each, none longer than `longest`. `sent`, `lost`: counts of
    /// datagrams by the peer's reports.
    pub fn next_trial(&mut self, longest: usize, sent: u64, lost: u64, now: Duration) -> Option<Lengths> {
        if self.trial.is_some_and(|trial| now.saturating_sub(trial.since) < PATIENCE) {
            return None;
        }
        if let Some(trial) = self.trial.take() {
            self.judge(&trial, now);
        }
        self.look(sent, lost);
        if self.wrong.is_some() || !self.is_suspicious || now < self.due {
            return None;
        }
        // Probes of other kinds have the length that arrives.
        let lengths = Lengths { together: longest.checked_sub(1)?, alone: longest.checked_sub(2)? };
        self.trial = Some(Trial { since: now, lengths, together: 0, alone: 0 });
        Some(lengths)
    }

    /// The peer has answered a probe of `length` bytes.
    pub fn answered(&mut self, length: usize) {
        match &mut self.trial {
            Some(trial) if length == trial.lengths.together => trial.together += 1,
            Some(trial) if length == trial.lengths.alone => trial.alone += 1,
            _ => {}
        }
    }

    fn judge(&mut self, trial: &Trial, now: Duration) {
        let is_way_good = trial.alone * 4 >= PROBES * 3;
        if is_way_good && trial.together * 3 <= trial.alone {
            self.failures += 1;
            if self.failures >= FAILURES {
                self.wrong = Some(Wrong::Lost);
            }
            return;
        }
        if is_way_good {
            self.failures = 0;
        }
        (self.is_suspicious, self.due) = (self.failures > 0, now + self.pause);
        self.pause = (self.pause * 2).min(PAUSE.1);
    }

    /// Sees whether much is missing.
    fn look(&mut self, sent: u64, lost: u64) {
        let (more, missing) = (sent.saturating_sub(self.sent), lost.saturating_sub(self.lost));
        if more < SAMPLE {
            return;
        }
        (self.sent, self.lost) = (sent, lost);
        if missing * 4 >= more {
            self.is_suspicious = true;
        } else {
            self.pause = PAUSE.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: Duration = Duration::from_millis(100);
    const LONGEST: usize = 1472;

    /// A way, and its traffic.
    struct World {
        bursts: PathBursts,
        now: Duration,
        sent: u64,
        lost: u64,
        trials: u32,
        /// Of probes that leave together, and one by one, so many are answered.
        answered: [usize; 2],
    }

    impl World {
        fn new(answered: [usize; 2]) -> Self {
            let bursts = PathBursts::default();
            Self { bursts, now: Duration::from_secs(100), sent: 0, lost: 0, trials: 0, answered }
        }

        /// So many seconds. In each, so many datagrams are sent, and lost.
        fn pass(&mut self, seconds: u32, sent: u64, lost: u64) {
            for tick in 0..seconds * 10 {
                if tick % 10 == 0 {
                    (self.sent, self.lost) = (self.sent + sent, self.lost + lost);
                }
                self.now += TICK;
                let trial = self.bursts.next_trial(LONGEST, self.sent, self.lost, self.now);
                if let Some(Lengths { together, alone }) = trial {
                    self.trials += 1;
                    (0..self.answered[0]).for_each(|_| self.bursts.answered(together));
                    (0..self.answered[1]).for_each(|_| self.bursts.answered(alone));
                }
            }
        }
    }

    #[test]
    fn a_good_path_is_tried_once() {
        let mut world = World::new([8, 8]);
        world.pass(3600, 1000, 50);
        assert_eq!((world.trials, world.bursts.wrong()), (1, None));
    }

    #[test]
    fn only_the_first_of_each_burst_arrives() {
        let mut world = World::new([1, 8]);
        world.pass(4, 1, 0);
        assert_eq!((world.trials, world.bursts.wrong()), (3, Some(Wrong::Lost)));
        world.pass(100, 100, 90);
        assert_eq!(world.trials, 3, "it is known");
    }

    #[test]
    fn a_later_fault_is_noticed_by_missing_datagrams() {
        let mut world = World::new([8, 8]);
        world.pass(600, 100, 0);
        world.answered = [2, 7];
        world.pass(60, 100, 20);
        assert_eq!(world.bursts.wrong(), None, "that is not much");
        world.pass(5, 4, 2);
        assert_eq!(world.bursts.wrong(), Some(Wrong::Lost));
    }

    #[test]
    fn a_path_that_loses_everything_gives_no_verdict_and_is_tried_seldom() {
        let mut world = World::new([0, 1]);
        world.pass(600, 100, 90);
        assert_eq!(world.bursts.wrong(), None);
        assert!((10..20).contains(&world.trials), "{}", world.trials);
    }

    #[test]
    fn loss_is_not_taken_for_a_fault() {
        let mut rng = fastrand::Rng::with_seed(3);
        let mut world = World::new([8, 8]);
        for _ in 0..10_000 {
            let mut arrived = || (0..PROBES).filter(|_| rng.u8(..100) >= 30).count();
            world.answered = [arrived(), arrived()];
            world.pass(1, 100, 30);
        }
        assert_eq!(world.bursts.wrong(), None);
        assert!(world.trials > 100, "{}", world.trials);
    }

    #[test]
    fn the_verdict_carries_over_to_the_next_session() {
        let mut bursts = PathBursts::default();
        bursts.refused();
        let mut next = bursts.of_next_session();
        assert_eq!(next.wrong(), Some(Wrong::Refused));
        assert_eq!(next.next_trial(LONGEST, 100, 90, Duration::from_secs(9)), None);
    }

    #[test]
    fn counts_start_again_with_a_session() {
        let mut world = World::new([8, 8]);
        world.pass(10, 100, 0);
        world.bursts = world.bursts.of_next_session();
        (world.sent, world.lost, world.answered) = (0, 0, [1, 8]);
        world.pass(6, 10, 5);
        assert_eq!(world.bursts.wrong(), Some(Wrong::Lost));
    }
}
