//! The cool-down: for a while after a move, ordinary moves are refused (ADR 0035).
//!
//! The store keeps the wall-clock time of each instance's last move, so the cool-down survives a restart of the coordinator. If the wall clock was set
//! back and a stored time lies in the future, the time of the restart replaces it. An instance thus never cools down for longer than its period, counted from
//! its move or from the last restart. Between restarts the monotonic clock counts.

use std::collections::HashMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use api::Failure;
use fabric::Vid;
use moves::journal::Record;
use moves::placement::Placement;
use tokio::time::Instant;

use crate::core::{Base, Feature, Recorded, State};
use crate::failure;

/// Times of the last move of each instance.
pub struct Cooling {
    moved: HashMap<Vid, LastMove>,
    /// The cool-down period of instances that set none of their own.
    usual: Duration,
}

struct LastMove {
    seen: Instant,
    /// How long ago that was, at the start.
    age: Duration,
}

impl Cooling {
    /// Loads the wall-clock times of last moves, in milliseconds since 1970. The default period is zero.
    pub fn load(moved: Vec<(Vid, u64)>) -> Self {
        Self::load_at(moved, SystemTime::now(), Instant::now())
    }

    fn load_at(moved: Vec<(Vid, u64)>, calendar: SystemTime, now: Instant) -> Self {
        let age = |at_ms| {
            let at = UNIX_EPOCH.checked_add(Duration::from_millis(at_ms));
            at.and_then(|at| calendar.duration_since(at).ok()).unwrap_or_default()
        };
        let moved = moved.into_iter().map(|(vid, at_ms)| (vid, LastMove { seen: now, age: age(at_ms) }));
        Self { moved: moved.collect(), usual: Duration::ZERO }
    }

    /// Sets the default cool-down period.
    pub fn set_usual(&mut self, usual: Duration) {
        self.usual = usual;
    }

    /// Records that the instance has just moved.
    fn has_moved(&mut self, vid: Vid) {
        self.moved.insert(vid, LastMove { seen: Instant::now(), age: Duration::ZERO });
    }

    /// Forgets an instance that has ended.
    fn forget(&mut self, vid: Vid) {
        self.moved.remove(&vid);
    }

    /// The rest of the instance's cool-down, if it has not elapsed.
    fn left(&self, vid: Vid, placement: &Placement, now: Instant) -> Option<Duration> {
        let LastMove { seen, age } = self.moved.get(&vid)?;
        let since = now.saturating_duration_since(*seen).saturating_add(*age);
        let whole = placement.cool_down_s.map_or(self.usual, Duration::from_secs);
        whole.checked_sub(since).filter(|left| !left.is_zero())
    }
}

impl Feature for Cooling {
    fn recorded(&mut self, recorded: &Recorded<'_>, base: &Base) {
        match recorded.record {
            Record::MovesCommitted { ids } => {
                let moves = ids.iter().filter_map(|id| base.snapshot().moves.get(id));
                moves.filter(|of| of.is_between_hosts()).for_each(|of| self.has_moved(of.vid));
            }
            Record::InstanceEnded { vid, .. } => self.forget(*vid),
            _ => {}
        }
    }
}

/// The remaining cool-down of the instance in seconds, if any.
pub fn cools_down_for(state: &State, vid: Vid) -> Option<u64> {
    let instance = state.snapshot().instances.get(&vid)?;
    let left = state.get::<Cooling>().left(vid, &instance.placement, Instant::now())?;
    // Rounded up, so that a user who waits for so long waits long enough.
    Some(left.as_millis().div_ceil(1000) as u64)
}

/// Checks that none of these instances cools down. If several do, the failure names the one with the longest rest.
///
/// # Errors
/// If one does.
pub fn check<'a>(state: &State, all: impl IntoIterator<Item = (Vid, &'a str)>) -> Result<(), Failure> {
    let cooling = all.into_iter().filter_map(|(vid, name)| Some((cools_down_for(state, vid)?, name)));
    match cooling.max() {
        Some((seconds, name)) => Err(failure::cools_down(name, seconds)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn vid() -> Vid {
        Vid::new(1).unwrap()
    }

    fn own(minutes: u64) -> Placement {
        Placement { cool_down_s: Some(minutes * 60), ..Placement::default() }
    }

    /// What a coordinator loads when it starts at `minutes` on the wall clock. The instance has moved at minute 10.
    fn loaded_at(minutes: u32, now: Instant) -> Cooling {
        Cooling::load_at(vec![(vid(), 600_000)], UNIX_EPOCH + minutes * MINUTE, now)
    }

    #[test]
    fn an_instance_cools_down_for_its_own_time_or_the_default() {
        let (mut cooling, now) = (Cooling::load(Vec::new()), Instant::now());
        assert_eq!(cooling.left(vid(), &own(1), now), None, "it has not moved");
        cooling.moved.insert(vid(), LastMove { seen: now, age: Duration::ZERO });
        assert_eq!(cooling.left(vid(), &Placement::default(), now), None, "nothing is said");
        cooling.set_usual(3 * MINUTE);
        let left = |placement: &Placement| cooling.left(vid(), placement, now + MINUTE);
        assert_eq!(left(&Placement::default()), Some(2 * MINUTE));
        assert_eq!((left(&own(9)), left(&own(1)), left(&own(0))), (Some(8 * MINUTE), None, None));
        cooling.has_moved(vid());
        assert!(cooling.left(vid(), &own(9), now) > Some(8 * MINUTE), "a new move restarts the period");
        cooling.forget(vid());
        assert_eq!(cooling.left(vid(), &own(9), now), None);
    }

    #[test]
    fn a_restart_changes_nothing_and_a_calendar_that_is_set_back_not_much() {
        let now = Instant::now();
        let left = |cooling: &Cooling, later| cooling.left(vid(), &own(5), now + later);
        let cooling = loaded_at(12, now);
        assert_eq!(left(&cooling, Duration::ZERO), Some(3 * MINUTE));
        assert_eq!((left(&cooling, 2 * MINUTE), left(&cooling, 3 * MINUTE)), (Some(MINUTE), None));
        let set_back = loaded_at(0, now);
        assert_eq!(left(&set_back, Duration::ZERO), Some(5 * MINUTE));
        assert_eq!(left(&set_back, 5 * MINUTE), None, "that is 5 minutes before the move, by the calendar");
        assert_eq!(left(&loaded_at(u32::MAX / 60, now), Duration::ZERO), None);
    }
}
