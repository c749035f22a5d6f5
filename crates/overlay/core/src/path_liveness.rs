//! Detects whether a path carries datagrams at all.
//!
//! A firewall may drop all datagrams, from the start or from some moment on, without an error. So a silent path is probed
//! at once, and a path without any answer counts as dead; it is then probed seldom, until it answers again:
//!
//! ```text
//!            ┌────────── the first answer ever, or answers for as long as it is on probation ───────────┐
//!            │                                                                                          ▼
//!   dead: probed seldom, often once it answers                    alive: probed when it has been silent for a while
//!            ▲                                                                                          │
//!            └──────────── several probes in a row, and for some time, without an answer ──────────────┘
//! ```
//!
//! Loss does not make a path dead, nor does a host that was suspended: many probes have to be lost. A path that dies soon after
//! it came back stays on probation for longer each time.

use std::time::Duration;

/// How long a way that is alive may be silent before it is asked.
const QUIET: Duration = Duration::from_millis(500);

/// The interval on an idle path, and on an idle path that is dead.
const IDLE_QUIET: Duration = Duration::from_secs(10);

/// How often it is asked while it is about to be found dead, or alive.
const OFTEN: Duration = Duration::from_millis(100);

/// How often one that is dead.
const SELDOM: Duration = Duration::from_secs(1);

/// So many questions in a row have to be lost until a way is dead,
const ATTEMPTS: u32 = 10;

/// and the first of them so long ago.
const PATIENCE: Duration = Duration::from_secs(1);

/// So many lost in a row end a probation.
const GAP: u32 = 5;

/// How long a way has to answer until it is alive again: at first, and at most.
const PROBATION: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(64));

/// A way that has been alive for so long has stood its test.
const PROVEN: Duration = Duration::from_secs(60);

/// See the module.
#[derive(Clone, Debug)]
pub struct PathLiveness {
    is_alive: bool,
    /// When it was found dead or alive last.
    since: Duration,
    answered_at: Duration,
    asked_at: Option<Duration>,
    /// Questions since the last answer,
    unanswered: u32,
    /// and when the first of them was asked.
    unanswered_since: Duration,
    /// Since when one that is dead answers.
    answers_since: Option<Duration>,
    /// How long it has to.
    probation: Duration,
}

impl PathLiveness {
    /// A path without a history: dead until its first answer.
    #[must_use]
    pub fn new(now: Duration) -> Self {
        Self {
            is_alive: false,
            since: now,
            answered_at: now,
            asked_at: None,
            unanswered: 0,
            unanswered_since: now,
            answers_since: None,
            probation: Duration::ZERO,
        }
    }

    /// The state after new keys were agreed: both nodes are alive, so a dead path may be probed at once. It
    /// is alive with its first answer, unless it had died soon after it came back.
    #[must_use]
    pub fn of_next_session(&self, now: Duration) -> Self {
        if self.is_alive {
            return self.clone();
        }
        let comes_and_goes = self.probation > PROBATION.0;
        let probation = if comes_and_goes { self.probation } else { Duration::ZERO };
        Self { probation, ..Self::new(now) }
    }

    /// True if the way carries datagrams there and back, by present knowledge.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.is_alive
    }

    /// True if a probe to the peer is due now; the probe and its answer both use this path. `is_idle`: no
    /// frames use it.
    pub fn next_question(&mut self, is_idle: bool, now: Duration) -> bool {
        if !self.is_due(is_idle, now) {
            return false;
        }
        self.judge(now);
        if self.unanswered == 0 {
            self.unanswered_since = now;
        }
        self.unanswered = self.unanswered.saturating_add(1);
        self.asked_at = Some(now);
        true
    }

    /// The peer has answered on this way.
    pub fn answered(&mut self, now: Duration) {
        (self.answered_at, self.unanswered) = (now, 0);
        if self.is_alive {
            return;
        }
        let since = *self.answers_since.get_or_insert(now);
        if now.saturating_sub(since) >= self.probation {
            (self.is_alive, self.since, self.answers_since) = (true, now, None);
        }
    }

    fn is_due(&self, is_idle: bool, now: Duration) -> bool {
        let Some(asked_at) = self.asked_at else { return true };
        let (since, pause) = match self.unanswered {
            0 if self.is_alive => (self.answered_at, if is_idle { IDLE_QUIET } else { QUIET }),
            0..ATTEMPTS => (asked_at, OFTEN),
            _ if self.is_alive => (asked_at, OFTEN),
            _ => (asked_at, if is_idle { IDLE_QUIET } else { SELDOM }),
        };
        now.saturating_sub(since) >= pause
    }

    /// Draws the conclusion from the missing answers of late.
    fn judge(&mut self, now: Duration) {
        if self.unanswered >= GAP {
            self.answers_since = None;
        }
        let is_over = self.unanswered >= ATTEMPTS && now.saturating_sub(self.unanswered_since) >= PATIENCE;
        if self.is_alive && is_over {
            let is_proven = self.probation.is_zero() || now.saturating_sub(self.since) >= PROVEN;
            self.probation = if is_proven { PROBATION.0 } else { (self.probation * 2).min(PROBATION.1) };
            (self.is_alive, self.since) = (false, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: Duration = Duration::from_millis(100);
    const SECOND: Duration = Duration::from_secs(1);
    const MINUTE: Duration = Duration::from_secs(60);

    /// A path, and the node that probes it.
    struct World {
        liveness: PathLiveness,
        now: Duration,
        /// How long a question and its answer take; `None` if it carries nothing.
        round_trip: Option<Duration>,
        /// Of so many questions one is answered.
        answered: u64,
        is_idle: bool,
        questions: u64,
        /// When answers come.
        under_way: Vec<Duration>,
        /// How often it was found dead or alive.
        changes: usize,
    }

    impl World {
        fn new(round_trip: Option<Duration>) -> Self {
            let now = Duration::from_secs(1000);
            Self {
                liveness: PathLiveness::new(now),
                now,
                round_trip,
                answered: 1,
                is_idle: false,
                questions: 0,
                under_way: Vec::new(),
                changes: 0,
            }
        }

        /// A way that is known to be alive.
        fn alive() -> Self {
            let mut world = Self::new(Some(TICK / 10));
            world.run(SECOND);
            assert!(world.liveness.is_alive());
            world.changes = 0;
            world
        }

        fn tick(&mut self) {
            let before = self.liveness.is_alive();
            let arrived: Vec<_> = self.under_way.extract_if(.., |at| *at <= self.now).collect();
            arrived.into_iter().for_each(|at| self.liveness.answered(at));
            if self.liveness.next_question(self.is_idle, self.now) {
                self.questions += 1;
                let is_answered = self.questions.is_multiple_of(self.answered);
                self.under_way.extend(self.round_trip.filter(|_| is_answered).map(|time| self.now + time));
            }
            self.changes += usize::from(self.liveness.is_alive() != before);
            self.now += TICK;
        }

        fn run(&mut self, time: Duration) {
            let end = self.now + time;
            while self.now < end {
                self.tick();
            }
        }

        /// How long it takes until the way is found dead or alive.
        fn until(&mut self, is_alive: bool) -> Duration {
            let begin = self.now;
            while self.liveness.is_alive() != is_alive {
                assert!(self.now < begin + 10 * MINUTE, "{:?}", self.liveness);
                self.tick();
            }
            self.now - begin
        }
    }

    #[test]
    fn a_path_is_alive_with_its_first_answer() {
        let mut world = World::new(Some(TICK / 2));
        assert!(!world.liveness.is_alive());
        assert!(world.until(true) <= 2 * TICK);
        assert_eq!(world.questions, 1);
    }

    #[test]
    fn a_path_that_never_answers_is_probed_seldom() {
        let mut world = World::new(None);
        world.run(10 * MINUTE);
        assert!(!world.liveness.is_alive());
        assert!((600..=620).contains(&world.questions), "{}", world.questions);
    }

    #[test]
    fn a_blocked_path_is_dead_within_two_seconds() {
        let mut world = World::alive();
        world.run(10 * SECOND);
        world.round_trip = None;
        let time = world.until(false);
        assert!(time >= PATIENCE && time <= 2 * SECOND, "{time:?}");
    }

    #[test]
    fn a_path_is_alive_again_after_its_probation() {
        let mut world = World::alive();
        world.round_trip = None;
        world.until(false);
        world.run(MINUTE);
        world.round_trip = Some(TICK);
        let time = world.until(true);
        assert!(time >= PROBATION.0 && time <= 3 * SECOND, "{time:?}");
        world.run(10 * MINUTE);
        assert_eq!(world.changes, 2);
    }

    #[test]
    fn a_dead_path_is_probed_at_once_with_new_keys() {
        let mut world = World::alive();
        let before = world.liveness.clone();
        assert!(before.of_next_session(world.now).is_alive());
        (world.round_trip, world.is_idle) = (None, true);
        world.until(false);
        world.run(MINUTE);
        assert!(!world.liveness.next_question(true, world.now));
        world.liveness = world.liveness.of_next_session(world.now);
        world.round_trip = Some(TICK / 2);
        assert!(world.until(true) <= 2 * TICK);
    }

    #[test]
    fn new_keys_do_not_end_the_probation_of_a_flapping_path() {
        let mut world = World::alive();
        for _ in 0..3 {
            world.round_trip = None;
            world.until(false);
            world.round_trip = Some(TICK / 2);
            world.until(true);
        }
        world.round_trip = None;
        world.until(false);
        world.liveness = world.liveness.of_next_session(world.now);
        assert!(world.liveness.next_question(true, world.now));
        world.round_trip = Some(TICK / 2);
        assert!(world.until(true) >= 4 * PROBATION.0);
    }

    #[test]
    fn a_flapping_path_is_dead_most_of_the_time() {
        let mut world = World::alive();
        let (mut alive, mut all) = (0, 0);
        for _ in 0..300 {
            for round_trip in [None, Some(TICK)] {
                world.round_trip = round_trip;
                world.run(4 * SECOND);
                alive += usize::from(world.liveness.is_alive());
                all += 1;
            }
        }
        assert!(alive * 10 < all && world.changes < 20, "{alive} of {all}, {} changes", world.changes);
        world.run(2 * PROBATION.1);
        assert!(world.liveness.is_alive());
        world.run(PROVEN);
        world.round_trip = None;
        world.until(false);
        world.round_trip = Some(TICK);
        assert!(world.until(true) <= 3 * SECOND, "it has stood its test");
    }

    #[test]
    fn a_lossy_path_is_alive() {
        let mut world = World::alive();
        world.answered = 5;
        world.run(10 * MINUTE);
        assert_eq!(world.changes, 0);
    }

    #[test]
    fn a_slow_path_is_alive() {
        let mut world = World::new(Some(8 * TICK));
        world.run(MINUTE);
        assert_eq!((world.liveness.is_alive(), world.changes), (true, 1));
    }

    #[test]
    fn a_host_that_slept_declares_no_path_dead() {
        let mut world = World::alive();
        for _ in 0..10 {
            world.now += MINUTE;
            world.tick();
            assert_eq!(world.under_way.len(), 1, "it has asked");
            world.now += MINUTE;
            // The prober wakes up before the thread that reads the answer.
            world.liveness.next_question(false, world.now);
            world.run(SECOND);
        }
        assert_eq!(world.changes, 0);
    }

    #[test]
    fn an_idle_path_is_probed_seldom_and_still_found_dead() {
        let mut world = World::alive();
        world.is_idle = true;
        let before = world.questions;
        world.run(10 * MINUTE);
        assert!(world.questions - before <= 61, "{}", world.questions - before);
        world.round_trip = None;
        assert!(world.until(false) <= IDLE_QUIET + 2 * SECOND);
        let before = world.questions;
        world.run(10 * MINUTE);
        assert!(world.questions - before <= 61, "{}", world.questions - before);
    }

    #[test]
    fn other_answers_replace_probes() {
        let mut world = World::alive();
        let before = world.questions;
        for _ in 0..600 {
            world.liveness.answered(world.now);
            world.tick();
        }
        assert_eq!(world.questions, before);
    }
}
