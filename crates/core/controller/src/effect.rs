//! What moves gain: predicted before them, and measured afterwards.
//!
//! Both are the difference of two costs under the same loads: with the moved instances where they were, and where they are to be. So
//! loads that change meanwhile count as far as they concern the moved instances only, and moves whose reason has gone have gained
//! nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use fabric::Vid;
use moves::HostName;
use planner::price::{FULL, IMBALANCE, OVERLOAD, SLACK};
use planner::{Loads, View};
use serde::{Deserialize, Serialize};

use crate::Goal;

/// A gain in bytes a second: traffic that crosses no more, and overload as traffic of the same cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Effect {
    /// The planner's promise.
    pub predicted: u64,
    /// What the moves have gained.
    pub measured: u64,
}

impl Effect {
    /// Whether the moves have gained at least half of the promise.
    #[must_use]
    pub fn is_kept(&self) -> bool {
        self.measured >= self.predicted / 2
    }
}

/// An instance with its hosts before and after a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    pub vid: Vid,
    pub from: HostName,
    pub to: HostName,
}

/// What `changes` gain under these loads: how much cheaper the placement with all of them is than that with none. Overload has its price within
/// `horizon`.
pub fn gain(view: &View<'_>, loads: &Loads, goal: Goal, horizon: Duration, changes: &[Change]) -> u64 {
    let places = |of: fn(&Change) -> &HostName| -> BTreeMap<Vid, &HostName> {
        changes.iter().map(|change| (change.vid, of(change))).collect()
    };
    let cost = |places| cost(view, loads, goal, horizon, &places);
    cost(places(|change| &change.from)).saturating_sub(cost(places(|change| &change.to)))
}

/// Bytes a second.
fn cost(
    view: &View<'_>,
    loads: &Loads,
    goal: Goal,
    horizon: Duration,
    places: &BTreeMap<Vid, &HostName>,
) -> u64 {
    let host_of = |vid: &Vid| places.get(vid).copied().or_else(|| Some(view.instances.get(vid)?.host));
    let crosses = |one, other| matches!((host_of(one), host_of(other)), (Some(a), Some(b)) if a != b);
    let talks = loads.talks.iter().filter(|talk| crosses(&talk.one, &talk.other));
    let traffic: u64 = talks.map(|talk| talk.rate).sum();
    let mut used = BTreeMap::<&HostName, u64>::new();
    for (vid, need) in &loads.needs {
        if let Some(host) = host_of(vid) {
            *used.entry(host).or_default() += need.amounts.cpu;
        }
    }
    let (room, needed) = (loads.rooms.values().map(|room| room.cpu).sum::<u64>(), used.values().sum::<u64>());
    let level = |cpu: u64| match goal {
        Goal::Traffic => cpu * FULL / 100,
        Goal::Balance => {
            (u128::from(cpu) * u128::from(needed) / u128::from(room.max(1))) as u64 * (100 + SLACK) / 100
        }
    };
    let excess =
        used.iter().filter_map(|(host, used)| Some(used.saturating_sub(level(loads.rooms.get(*host)?.cpu))));
    let (price, traffic) = match goal {
        Goal::Balance => (IMBALANCE, 0),
        Goal::Traffic => (OVERLOAD, traffic),
    };
    let weight = (price.unsigned_abs() << 10) / horizon.as_secs().max(1);
    traffic.saturating_add(excess.sum::<u64>().saturating_mul(weight))
}
