//! What instances need, what hosts have, and which instances talk.

use std::collections::BTreeMap;

use fabric::Vid;
use moves::HostName;
use moves::placement::{Demand, Placement};

use crate::View;

/// An amount of each resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amounts {
    /// Thousandths of a processor.
    pub cpu: u64,
    /// Bytes of memory.
    pub memory: u64,
}

impl Amounts {
    /// What a user demands.
    #[must_use]
    pub fn demanded(demand: &Demand) -> Self {
        Self { cpu: demand.cpu_milli.unwrap_or(0), memory: demand.memory.unwrap_or(0) }
    }

    /// The larger amount of each resource.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self { cpu: self.cpu.max(other.cpu), memory: self.memory.max(other.memory) }
    }

    /// The sum.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self { cpu: self.cpu.saturating_add(other.cpu), memory: self.memory.saturating_add(other.memory) }
    }
}

/// What an instance needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Need {
    /// Its resources, as measured.
    pub amounts: Amounts,
    /// The bytes that a move copies.
    pub copied: u64,
    /// Why it stays on its host, if it does.
    pub pinned: Option<String>,
}

/// Traffic between two instances, in both directions together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Talk {
    /// One end.
    pub one: Vid,
    /// The other end.
    pub other: Vid,
    /// Bytes a second.
    pub rate: u64,
}

/// The measured loads of a cluster. An instance that is missing needs nothing. A host that is missing takes nobody, unless
/// all are missing: they have no bounds then.
#[derive(Clone, Debug, Default)]
pub struct Loads {
    /// By host: what its instances can use together.
    pub rooms: BTreeMap<HostName, Amounts>,
    /// By instance.
    pub needs: BTreeMap<Vid, Need>,
    /// The traffic.
    pub talks: Vec<Talk>,
}

impl Loads {
    /// These loads, and at least what the users of the instances demand.
    #[must_use]
    pub fn with_demands(&self, view: &View<'_>) -> Self {
        let mut loads = self.clone();
        for (vid, instance) in &view.instances {
            let demanded = Amounts::demanded(&instance.placement.demand);
            if demanded != Amounts::default() {
                let need = loads.needs.entry(*vid).or_default();
                need.amounts = need.amounts.max(demanded);
            }
        }
        let ends: Vec<_> = view.instances.iter().map(|(vid, at)| (*vid, at.name, at.placement)).collect();
        let mut rates: BTreeMap<(Vid, Vid), u64> = BTreeMap::new();
        for Talk { one, other, rate } in &self.talks {
            *rates.entry((*one.min(other), *one.max(other))).or_default() += rate;
        }
        for (one, other, demanded) in bandwidths(&ends) {
            let rate = rates.entry((one.min(other), one.max(other))).or_default();
            *rate = demanded.max(*rate);
        }
        loads.talks = rates.into_iter().map(|((one, other), rate)| Talk { one, other, rate }).collect();
        loads
    }
}

/// The demanded bandwidths between these instances, given with their names.
pub(crate) fn bandwidths<K: Copy>(ends: &[(K, &str, &Placement)]) -> Vec<(K, K, u64)> {
    pairs(ends, |demand| &demand.bandwidth_to)
}

/// The demanded latencies between these instances, in microseconds.
pub(crate) fn latencies<K: Copy>(ends: &[(K, &str, &Placement)]) -> Vec<(K, K, u64)> {
    pairs(ends, |demand| &demand.latency_to)
}

/// An instance that has ended is not demanded any more, until another one has its name.
fn pairs<K: Copy>(
    ends: &[(K, &str, &Placement)],
    of: impl Fn(&Demand) -> &BTreeMap<String, u64>,
) -> Vec<(K, K, u64)> {
    let by_name: BTreeMap<&str, K> = ends.iter().map(|(key, name, _)| (*name, *key)).collect();
    let pairs = ends.iter().flat_map(|(key, _, placement)| {
        of(&placement.demand).iter().map(move |(other, amount)| (*key, other.as_str(), *amount))
    });
    pairs.filter_map(|(key, other, amount)| Some((key, *by_name.get(other)?, amount))).collect()
}
