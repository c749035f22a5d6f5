//! The cluster as the planner sees it.

use std::collections::{BTreeMap, BTreeSet};

use fabric::{NetworkKind, Vid};
use moves::HostName;
use moves::placement::Placement;

use crate::Refusal;

/// The destinations of instances whose moves are planned.
pub type Planned = BTreeMap<Vid, HostName>;

/// A host that is connected, or drained.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Host {
    /// Its node is connected.
    pub is_up: bool,
    /// Its node runs instances.
    pub runs_instances: bool,
    /// It accepts no instances.
    pub is_drained: bool,
    /// The overlay joins it.
    pub is_on_overlay: bool,
}

/// An instance.
#[derive(Clone, Copy, Debug)]
pub struct Instance<'a> {
    /// The name that its user gave it.
    pub name: &'a str,
    /// Its location.
    pub host: &'a HostName,
    /// Where it moves, as long as that move can be rolled back.
    pub moves_to: Option<&'a HostName>,
    /// The labels that keep it apart from others.
    pub placement: &'a Placement,
}

/// The hosts and the instances at one moment. A host that is missing is not connected.
#[derive(Clone, Debug, Default)]
pub struct View<'a> {
    /// By name.
    pub hosts: BTreeMap<HostName, Host>,
    /// By identity.
    pub instances: BTreeMap<Vid, Instance<'a>>,
    /// Planned moves, which count as done.
    pub planned: Planned,
}

impl<'a> View<'a> {
    /// Checks that `host` is connected, runs instances and is not drained.
    ///
    /// # Errors
    /// If it is not connected, runs no instances, or is drained.
    pub fn check_usable(&self, host: &HostName) -> Result<(), Refusal> {
        match self.hosts.get(host).copied().unwrap_or_default() {
            Host { is_drained: true, .. } => Err(Refusal::Drained(host.clone())),
            Host { is_up: false, .. } => Err(Refusal::NotConnected(host.clone())),
            Host { runs_instances: false, .. } => Err(Refusal::RunsNoInstances(host.clone())),
            Host { .. } => Ok(()),
        }
    }

    /// The hosts that are usable.
    pub fn usable(&self) -> impl Iterator<Item = &HostName> {
        self.hosts.keys().filter(|host| self.check_usable(host).is_ok())
    }

    /// How many instances are on `host`.
    #[must_use]
    pub fn instances_on(&self, host: &HostName) -> u32 {
        count(self.instances.values().filter(|instance| instance.host == host))
    }

    /// Where the instances of `from` can go, the emptiest host first: to the hosts in `to`, or anywhere if that is empty. Instances
    /// that move to a host, or are planned to, count there.
    #[must_use]
    pub fn destinations(&self, from: &HostName, to: &BTreeSet<HostName>) -> Vec<HostName> {
        let is_allowed = |host: &&HostName| *host != from && (to.is_empty() || to.contains(*host));
        let mut load: BTreeMap<&HostName, u32> =
            self.usable().filter(is_allowed).map(|host| (host, 0)).collect();
        let here = self.instances.values().map(|instance| instance.host);
        let coming = self.instances.values().filter_map(|instance| instance.moves_to);
        for host in here.chain(coming).chain(self.planned.values()) {
            load.entry(host).and_modify(|load| *load += 1);
        }
        let mut hosts: Vec<_> = load.into_iter().map(|(host, load)| (load, host)).collect();
        hosts.sort();
        hosts.into_iter().map(|(_, host)| host.clone()).collect()
    }

    /// Checks that `vid` is not kept apart from an instance on `host`, when all that is planned is done.
    ///
    /// # Errors
    /// [`Refusal::KeptApart`]. An unknown instance is refused nowhere.
    pub fn check_move(&self, vid: Vid, host: &HostName) -> Result<(), Refusal> {
        let instance = self.instances.get(&vid);
        instance.map_or(Ok(()), |instance| self.check_apart(Some(vid), instance.placement, host))
    }

    /// Checks that an instance with this `placement`, `vid` if it exists already, is not kept apart from an instance on `host`.
    pub(crate) fn check_apart(
        &self,
        vid: Option<Vid>,
        placement: &Placement,
        host: &HostName,
    ) -> Result<(), Refusal> {
        let others = self.instances.iter().filter(|(other, _)| Some(**other) != vid);
        let there = others.filter(|(other, instance)| self.may_be_on(**other, instance, host));
        check_beside(placement, there.map(|(_, instance)| (instance.name, instance.placement)), host)
    }

    /// Checks that the device of an instance can be plugged in on `host`.
    pub(crate) fn check_network(&self, host: &HostName, kind: NetworkKind) -> Result<(), Refusal> {
        let is_on_overlay = self.hosts.get(host).is_some_and(|host| host.is_on_overlay);
        match kind {
            NetworkKind::Overlay if !is_on_overlay => Err(Refusal::NotOnOverlay(host.clone())),
            NetworkKind::Overlay | NetworkKind::Bridge => Ok(()),
        }
    }

    /// Whether an instance is on `host`, goes there, or comes back there if its move is rolled back. An instance that moves has
    /// both places until its move is committed; an instance whose move is planned has the planned place only.
    fn may_be_on(&self, vid: Vid, instance: &Instance<'a>, host: &HostName) -> bool {
        match self.planned.get(&vid) {
            Some(to) => to == host,
            None => instance.host == host || instance.moves_to == Some(host),
        }
    }
}

/// Checks that an instance with this `placement` may be on `host` beside `others`, given by name.
pub(crate) fn check_beside<'b>(
    placement: &Placement,
    others: impl IntoIterator<Item = (&'b str, &'b Placement)>,
    host: &HostName,
) -> Result<(), Refusal> {
    let refusal = |(other, its): (&str, &Placement)| {
        let (key, value) = placement.apart(its)?;
        let (other, key, value) = (other.to_owned(), key.to_owned(), value.to_owned());
        Some(Refusal::KeptApart { other, key, value, host: host.clone() })
    };
    others.into_iter().find_map(refusal).map_or(Ok(()), Err)
}

fn count<T>(all: impl Iterator<Item = T>) -> u32 {
    u32::try_from(all.count()).unwrap_or(u32::MAX)
}
