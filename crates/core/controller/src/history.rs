//! The moves of the last time, for the cool-down and the budget.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use fabric::Vid;
use moves::HostName;
use planner::View;
use serde::{Deserialize, Serialize};

/// The time in which no instance returns to a host that it has left, and for which the budget counts.
pub const HOUR: Duration = Duration::from_secs(3600);

/// An instance that has moved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moved {
    /// The instance.
    pub vid: Vid,
    /// The host that it has left.
    pub from: HostName,
    /// When that was noticed.
    pub at: Duration,
    /// Whether it counts for the budget: a plan of the loop has moved it.
    pub is_own: bool,
}

/// The moves of the last time, by whomever, and the present places.
#[derive(Debug, Default)]
pub struct History {
    pub moves: Vec<Moved>,
    places: BTreeMap<Vid, HostName>,
}

impl History {
    pub fn new(moves: Vec<Moved>) -> Self {
        Self { moves, places: BTreeMap::new() }
    }

    /// Notes the instances that are elsewhere than before, and forgets moves that are older than an hour and `cool_down`.
    pub fn note(&mut self, now: Duration, cool_down: Duration, view: &View<'_>, own: &BTreeSet<Vid>) {
        self.places.retain(|vid, _| view.instances.contains_key(vid));
        for (vid, instance) in &view.instances {
            match self.places.get_mut(vid) {
                None => drop(self.places.insert(*vid, instance.host.clone())),
                Some(place) if place != instance.host => {
                    let from = std::mem::replace(place, instance.host.clone());
                    self.moves.push(Moved { vid: *vid, from, at: now, is_own: own.contains(vid) });
                }
                Some(_) => {}
            }
        }
        let kept = HOUR.max(cool_down);
        self.moves.retain(|moved| now.saturating_sub(moved.at) < kept);
    }

    /// The planned moves of the last hour.
    pub fn own(&self, now: Duration) -> u32 {
        let recent = |moved: &&Moved| moved.is_own && now.saturating_sub(moved.at) < HOUR;
        self.moves.iter().filter(recent).count() as u32
    }

    /// The time until one more move fits into the budget, if it is used up now.
    pub fn until_next(&self, now: Duration) -> Option<Duration> {
        let own = self.moves.iter().filter(|moved| moved.is_own);
        own.map(|moved| HOUR.saturating_sub(now.saturating_sub(moved.at)))
            .filter(|left| !left.is_zero())
            .min()
    }

    /// The instances that cool down, with the rest of their time.
    pub fn cooling(&self, now: Duration, cool_down: Duration) -> BTreeMap<Vid, Duration> {
        let left = |moved: &Moved| {
            let left = cool_down.checked_sub(now.saturating_sub(moved.at))?;
            (!left.is_zero()).then_some((moved.vid, left))
        };
        // The last move of an instance is the last in the list.
        self.moves.iter().filter_map(left).collect()
    }

    /// Whether the instance has left `host` within the last hour.
    pub fn has_left(&self, vid: Vid, host: &HostName, now: Duration) -> bool {
        let left =
            |moved: &Moved| moved.vid == vid && moved.from == *host && now.saturating_sub(moved.at) < HOUR;
        self.moves.iter().any(left)
    }
}
