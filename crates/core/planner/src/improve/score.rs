//! The figures of a placement, for people.

use std::collections::{BTreeMap, BTreeSet};

use fabric::Vid;
use moves::HostName;

use crate::{Loads, View};

/// The figures of a placement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Score {
    /// Bytes a second between instances on different hosts.
    pub traffic: u64,
    /// Thousandths of processors that instances need beyond what their hosts have.
    pub overload: u64,
    /// The difference between the most and the least used processors of usable hosts, in thousandths of the host.
    pub spread: u64,
    /// Hosts with instances.
    pub hosts: usize,
}

impl Score {
    /// The figures if the instances in `places` are there, and all others where they are.
    #[must_use]
    pub fn of(view: &View<'_>, loads: &Loads, places: &BTreeMap<Vid, HostName>) -> Self {
        let host_of = |vid: &Vid| places.get(vid).or_else(|| Some(view.instances.get(vid)?.host));
        let crosses = |one, other| matches!((host_of(one), host_of(other)), (Some(a), Some(b)) if a != b);
        let talks = loads.talks.iter().filter(|talk| crosses(&talk.one, &talk.other));
        let mut used = BTreeMap::<&HostName, u64>::new();
        for (vid, need) in &loads.needs {
            if let Some(host) = host_of(vid) {
                *used.entry(host).or_default() += need.amounts.cpu;
            }
        }
        let room = |host: &HostName| loads.rooms.get(host).map(|room| room.cpu).filter(|cpu| *cpu > 0);
        let share = |host| Some(used.get(host).copied().unwrap_or(0) * 1000 / room(host)?);
        let shares = view.usable().filter_map(share);
        let (least, most) =
            shares.fold((u64::MAX, 0), |(least, most), share| (least.min(share), most.max(share)));
        let on: BTreeSet<_> = view.instances.keys().filter_map(host_of).collect();
        Self {
            traffic: talks.map(|talk| talk.rate).sum(),
            overload: used.iter().filter_map(|(host, used)| Some(used.saturating_sub(room(host)?))).sum(),
            spread: most.saturating_sub(least),
            hosts: on.len(),
        }
    }
}
