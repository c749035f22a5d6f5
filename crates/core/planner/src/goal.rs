//! The rule: the emptiest host that is allowed.

use std::collections::{BTreeMap, BTreeSet};

use fabric::{NetworkKind, Vid};
use moves::HostName;
use moves::placement::Placement;

use crate::view::check_beside;
use crate::{Refusal, View};

/// An instance that is not in the view yet.
#[derive(Clone, Copy, Debug)]
pub struct New<'a> {
    /// Its name, if that is known already.
    pub name: &'a str,
    /// The labels that keep it apart from others.
    pub placement: &'a Placement,
    /// The network that its host must offer.
    pub network: NetworkKind,
}

/// An instance that leaves its host.
#[derive(Clone, Copy, Debug)]
pub struct Leaving<'a> {
    /// Which instance.
    pub vid: Vid,
    /// Hosts to avoid: moves to them have failed.
    pub avoid: &'a BTreeSet<HostName>,
}

/// The state of the cluster that is wanted.
#[derive(Clone, Copy, Debug)]
pub enum Goal<'a> {
    /// Start all of these, each on one of `hosts`, or on any host if that is empty.
    Start {
        /// The instances, in the order in which they choose.
        instances: &'a [New<'a>],
        /// Where they may go.
        hosts: &'a [HostName],
    },
    /// Have all of these on `hosts`, spread evenly. Instances that are on one of them stay.
    Spread {
        /// The instances, in the order in which they choose.
        instances: &'a [Vid],
        /// Where they may go.
        hosts: &'a [HostName],
    },
    /// Move instances away from a host, as many as can go now, and at most so many.
    Evacuate {
        /// The host.
        from: &'a HostName,
        /// Where they may go; anywhere, if this is empty.
        to: &'a BTreeSet<HostName>,
        /// The instances, in the order in which they go.
        instances: &'a [Leaving<'a>],
        /// The limit of assignments.
        most: usize,
    },
}

/// A host for one instance of the goal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// Which instance: its index in the goal.
    pub which: usize,
    /// Its host.
    pub to: HostName,
}

/// Plans how to reach `goal`: a host for each instance that has to go somewhere.
///
/// # Errors
/// If the goal cannot be reached; for [`Goal::Evacuate`], if no instance can go anywhere.
pub fn plan(view: &View<'_>, goal: &Goal<'_>) -> Result<Vec<Assignment>, Refusal> {
    match *goal {
        Goal::Start { instances, hosts } => start(view, instances, hosts),
        Goal::Spread { instances, hosts } => spread(view, instances, hosts),
        Goal::Evacuate { from, to, instances, most } => evacuate(view, from, to, instances, most),
    }
}

fn start(view: &View<'_>, instances: &[New<'_>], hosts: &[HostName]) -> Result<Vec<Assignment>, Refusal> {
    hosts.iter().try_for_each(|host| view.check_usable(host))?;
    let hosts: Vec<_> = if hosts.is_empty() { view.usable().collect() } else { hosts.iter().collect() };
    let mut load: BTreeMap<_, _> = hosts.into_iter().map(|host| (host, view.instances_on(host))).collect();
    let mut started: Vec<Assignment> = Vec::new();
    for (which, new) in instances.iter().enumerate() {
        let suits = |host: &HostName| {
            view.check_network(host, new.network)?;
            view.check_apart(None, new.placement, host)?;
            let beside = started.iter().filter(|other| other.to == *host);
            let beside = beside.map(|other| (instances[other.which].name, instances[other.which].placement));
            check_beside(new.placement, beside, host)
        };
        let to = emptiest(&load, suits)?;
        load.entry(to).and_modify(|load| *load += 1);
        started.push(Assignment { which, to: to.clone() });
    }
    Ok(started)
}

/// The host with the least load which suits; if none does, why the emptiest does not.
fn emptiest<'h, L: Ord + Copy>(
    load: &BTreeMap<&'h HostName, L>,
    suits: impl Fn(&HostName) -> Result<(), Refusal>,
) -> Result<&'h HostName, Refusal> {
    let mut hosts: Vec<_> = load.iter().map(|(host, load)| (*load, *host)).collect();
    hosts.sort();
    let mut refused = None;
    for (_, host) in hosts {
        match suits(host) {
            Ok(()) => return Ok(host),
            Err(refusal) => drop(refused.get_or_insert(refusal)),
        }
    }
    Err(refused.unwrap_or(Refusal::NoUsableHost))
}

fn spread(view: &View<'_>, instances: &[Vid], hosts: &[HostName]) -> Result<Vec<Assignment>, Refusal> {
    hosts.iter().try_for_each(|host| view.check_usable(host))?;
    let place = |vid: &Vid| view.instances.get(vid).map(|instance| instance.host);
    let here = |host: &HostName| instances.iter().filter(|vid| place(vid) == Some(host)).count();
    // The fewest of these instances first, then the fewest of all.
    let load = hosts.iter().map(|host| (host, (here(host), view.instances_on(host))));
    let mut load: BTreeMap<_, _> = load.collect();
    let (mut view, mut moving) = (view.clone(), Vec::new());
    for (which, vid) in instances.iter().enumerate() {
        if view.instances.get(vid).is_some_and(|instance| load.contains_key(instance.host)) {
            continue;
        }
        let to = emptiest(&load, |host| view.check_move(*vid, host)).map_err(|refusal| match refusal {
            Refusal::NoUsableHost => Refusal::NoDestination,
            refusal => refusal,
        })?;
        load.entry(to).and_modify(|(here, all)| (*here, *all) = (*here + 1, *all + 1));
        view.planned.insert(*vid, to.clone());
        moving.push(Assignment { which, to: to.clone() });
    }
    Ok(moving)
}

fn evacuate(
    view: &View<'_>,
    from: &HostName,
    to: &BTreeSet<HostName>,
    instances: &[Leaving<'_>],
    most: usize,
) -> Result<Vec<Assignment>, Refusal> {
    let (mut view, mut leaving, mut refused) = (view.clone(), Vec::new(), None);
    let mut destinations = view.destinations(from, to);
    for (which, Leaving { vid, avoid }) in instances.iter().enumerate() {
        if leaving.len() == most {
            break;
        }
        let mut is_open = |host: &&HostName| match view.check_move(*vid, host) {
            Ok(()) => !avoid.contains(*host),
            Err(refusal) => {
                refused.get_or_insert(refusal);
                false
            }
        };
        if let Some(host) = destinations.iter().find(|host| is_open(host)).cloned() {
            view.planned.insert(*vid, host.clone());
            destinations = view.destinations(from, to);
            leaving.push(Assignment { which, to: host });
        }
    }
    match leaving.is_empty() {
        true => Err(refused.unwrap_or_else(|| Refusal::NowhereToGo(from.clone()))),
        false => Ok(leaving),
    }
}

#[cfg(test)]
mod tests;
