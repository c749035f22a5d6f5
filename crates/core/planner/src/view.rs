//! The cluster as the planner sees it.

use std::collections::{BTreeMap, BTreeSet};

use fabric::{NetworkKind, Vid};
use moves::HostName;
use moves::placement::Placement;

use crate::{Amounts, Refusal, Resource};

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
    /// What it has for the demands of instances, if that is known.
    pub capacity: Option<Amounts>,
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
    /// Its labels, and what its user demands.
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
        let here = self.instances.values().filter(|instance| instance.host == host);
        u32::try_from(here.count()).unwrap_or(u32::MAX)
    }

    /// Where the instances of `from` may go: to the hosts in `to`, or anywhere if that is empty.
    #[must_use]
    pub fn destinations(&self, from: &HostName, to: &BTreeSet<HostName>) -> Vec<HostName> {
        let is_allowed = |host: &&HostName| *host != from && (to.is_empty() || to.contains(*host));
        self.usable().filter(is_allowed).cloned().collect()
    }

    /// Checks that `vid` may move to `host` when all that is planned is done: that it is not kept apart from an instance there or together
    /// with one elsewhere, and that the host has what it demands.
    ///
    /// # Errors
    /// The reason why not. An unknown instance is refused nowhere.
    pub fn check_move(&self, vid: Vid, host: &HostName) -> Result<(), Refusal> {
        let Some(instance) = self.instances.get(&vid) else { return Ok(()) };
        self.check_labels(Some(vid), instance.placement, host)?;
        self.check_room(Some(vid), instance.placement, host)
    }

    /// Checks that the labels of an instance with this `placement`, `vid` if it exists already, allow `host`.
    pub(crate) fn check_labels(
        &self,
        vid: Option<Vid>,
        placement: &Placement,
        host: &HostName,
    ) -> Result<(), Refusal> {
        let apart = self.others(vid).filter(|(other, instance)| self.may_be_on(**other, instance, host));
        let apart = check_beside(placement, apart.map(|(_, at)| (at.name, at.placement)), host);
        match self.check_together(vid, placement, host) {
            Ok(()) => apart,
            // The host of the other instance is the only possible one; so a reason against that one says more.
            Err(Refusal::KeptTogether { other, key, value, there, host }) => {
                let beside = self.instances.values().find(|instance| instance.name == other);
                if let Some((key_apart, value_apart)) = beside.and_then(|at| placement.apart(at.placement)) {
                    let (together, apart) = (format!("{key}={value}"), format!("{key_apart}={value_apart}"));
                    return Err(Refusal::Contradiction { other, together, apart });
                }
                Err(Refusal::KeptTogether { other, key, value, there, host })
            }
            refused => refused,
        }
    }

    /// Checks that an instance may be on `host` as to affinity. Instances that are kept together leave a host one after the other, so those that
    /// this one leaves behind do not count.
    fn check_together(
        &self,
        vid: Option<Vid>,
        placement: &Placement,
        host: &HostName,
    ) -> Result<(), Refusal> {
        let companions = self.companions(vid, placement);
        match companions.first() {
            Some((other, key, value, there)) if companions.iter().all(|(.., there)| *there != host) => {
                let (other, there, host) = ((*other).to_owned(), (*there).clone(), host.clone());
                Err(Refusal::KeptTogether { other, key: key.clone(), value: value.clone(), there, host })
            }
            _ => Ok(()),
        }
    }

    fn companions(&self, vid: Option<Vid>, placement: &Placement) -> Vec<(&str, String, String, &HostName)> {
        let from = vid.and_then(|vid| self.instances.get(&vid)).map(|instance| instance.host);
        let companion = |(other, instance): (&Vid, &Instance<'a>)| {
            let (key, value) = placement.together(instance.placement)?;
            let there = self.place_of(*other)?;
            (Some(there) != from).then(|| (instance.name, key.to_owned(), value.to_owned(), there))
        };
        self.others(vid).filter_map(companion).collect()
    }

    /// Where an instance is when its move, or what is planned for it, is done.
    pub(crate) fn place_of(&self, vid: Vid) -> Option<&HostName> {
        let instance = self.instances.get(&vid)?;
        Some(self.planned.get(&vid).unwrap_or(instance.moves_to.unwrap_or(instance.host)))
    }

    /// Checks that `host` has what an instance demands beside the demands of all instances that may be there.
    pub(crate) fn check_room(
        &self,
        vid: Option<Vid>,
        placement: &Placement,
        host: &HostName,
    ) -> Result<(), Refusal> {
        let Some(has) = self.hosts.get(host).and_then(|host| host.capacity) else { return Ok(()) };
        let demanded = Amounts::demanded(&placement.demand);
        if demanded == Amounts::default() {
            return Ok(());
        }
        check_amounts(demanded, self.demanded_on(vid, host), has, host)
    }

    /// What the users of all instances that may be on `host`, except `vid`, demand.
    pub(crate) fn demanded_on(&self, vid: Option<Vid>, host: &HostName) -> Amounts {
        let there = self.others(vid).filter(|(other, instance)| self.may_be_on(**other, instance, host));
        let demanded = there.map(|(_, instance)| Amounts::demanded(&instance.placement.demand));
        demanded.fold(Amounts::default(), Amounts::plus)
    }

    fn others(&self, vid: Option<Vid>) -> impl Iterator<Item = (&Vid, &Instance<'a>)> {
        self.instances.iter().filter(move |(other, _)| Some(**other) != vid)
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

/// Checks that `host`, which `has` so much, has room for a demand beside what is taken.
pub(crate) fn check_amounts(
    demanded: Amounts,
    taken: Amounts,
    has: Amounts,
    host: &HostName,
) -> Result<(), Refusal> {
    let resources = [
        (Resource::Processors, demanded.cpu, taken.cpu, has.cpu),
        (Resource::Memory, demanded.memory, taken.memory, has.memory),
    ];
    let lacks = |(_, demanded, taken, has): &(Resource, u64, u64, u64)| {
        *demanded > 0 && demanded.saturating_add(*taken) > *has
    };
    let lacking = resources.into_iter().find(lacks);
    lacking.map_or(Ok(()), |(resource, demanded, taken, has)| {
        let free = has.saturating_sub(taken);
        Err(Refusal::NoRoom { host: host.clone(), resource, demanded, free, has })
    })
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
