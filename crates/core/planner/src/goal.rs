//! Goals that give instances hosts one after the other: starts, groups, drains.

use std::collections::{BTreeMap, BTreeSet};

use fabric::{NetworkKind, Vid};
use moves::HostName;
use moves::placement::Placement;

use crate::choice::{Candidate, Chooser};
use crate::model::{Model, Search};
use crate::{Amounts, Bounds, Loads, Refusal, View};

/// An instance that is not in the view yet.
#[derive(Clone, Copy, Debug)]
pub struct New<'a> {
    /// Its name, if that is known already.
    pub name: &'a str,
    /// Its labels, and what its user demands.
    pub placement: &'a Placement,
    /// What it needs, at least what is demanded.
    pub needed: Amounts,
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
pub fn plan(view: &View<'_>, loads: &Loads, goal: &Goal<'_>) -> Result<Vec<Assignment>, Refusal> {
    let loads = &loads.with_demands(view);
    match goal {
        Goal::Start { instances, hosts } => start(view, loads, instances, hosts),
        Goal::Spread { instances, hosts } => spread(view, loads, instances, hosts),
        Goal::Evacuate { from, to, instances, most } => evacuate(view, loads, from, to, instances, *most),
    }
}

/// The hosts to which `vid` may go from its host, the best one first: those in `to`, or all if that is empty. Then those that it may not go to,
/// each with the reason.
#[must_use]
pub fn destinations(
    view: &View<'_>,
    loads: &Loads,
    vid: Vid,
    to: &BTreeSet<HostName>,
) -> Vec<(HostName, Result<(), Refusal>)> {
    let Some(instance) = view.instances.get(&vid) else { return Vec::new() };
    let hosts = view.destinations(instance.host, to);
    let loads = loads.with_demands(view);
    let leaving = [vid];
    let model = Model::new(view, &loads, Search::Placing { new: &[], leaving: &leaving }, &Bounds::default());
    let problem = model.problem();
    let mut chooser = Chooser::new(&model, &problem, &hosts);
    let candidate = Candidate::Leaving(vid);
    let ranked = chooser.ranked(&candidate, |_| 0);
    let full = hosts.iter().filter(|host| !ranked.contains(host));
    let mut all: Vec<_> = ranked.iter().copied().chain(full).collect();
    all.sort_by_key(|host| chooser.check(&candidate, host).is_err());
    all.into_iter().map(|host| (host.clone(), chooser.check(&candidate, host))).collect()
}

fn start(
    view: &View<'_>,
    loads: &Loads,
    instances: &[New<'_>],
    hosts: &[HostName],
) -> Result<Vec<Assignment>, Refusal> {
    hosts.iter().try_for_each(|host| view.check_usable(host))?;
    let hosts: Vec<_> = if hosts.is_empty() { view.usable().cloned().collect() } else { hosts.to_vec() };
    let search = Search::Placing { new: instances, leaving: &[] };
    let model = Model::new(view, loads, search, &Bounds::default());
    let problem = model.problem();
    let mut chooser = Chooser::new(&model, &problem, &hosts);
    let place = |(which, new)| {
        let candidate = Candidate::New(which, new);
        let to = chooser.best(&candidate, |_| 0)?;
        chooser.put(&candidate, &to);
        Ok(Assignment { which, to })
    };
    instances.iter().enumerate().map(place).collect()
}

fn spread(
    view: &View<'_>,
    loads: &Loads,
    instances: &[Vid],
    hosts: &[HostName],
) -> Result<Vec<Assignment>, Refusal> {
    hosts.iter().try_for_each(|host| view.check_usable(host))?;
    if hosts.is_empty() {
        return Err(Refusal::NoDestination);
    }
    let place = |vid: &Vid| view.instances.get(vid).map(|instance| instance.host);
    let here = |host: &HostName| instances.iter().filter(|vid| place(vid) == Some(host)).count();
    let mut members: BTreeMap<_, _> = hosts.iter().map(|host| (host.clone(), here(host))).collect();
    let is_there = |vid: &Vid| place(vid).is_some_and(|host| hosts.contains(host));
    let leaving: Vec<_> = instances.iter().copied().filter(|vid| !is_there(vid)).collect();
    let model = Model::new(view, loads, Search::Placing { new: &[], leaving: &leaving }, &Bounds::default());
    let problem = model.problem();
    let mut chooser = Chooser::new(&model, &problem, hosts);
    let mut moving = Vec::new();
    for (which, vid) in instances.iter().enumerate().filter(|(_, vid)| !is_there(vid)) {
        let candidate = Candidate::Leaving(*vid);
        let to = chooser.best(&candidate, |host| members.get(host).copied().unwrap_or(0))?;
        chooser.put(&candidate, &to);
        members.entry(to.clone()).and_modify(|members| *members += 1);
        moving.push(Assignment { which, to });
    }
    Ok(moving)
}

fn evacuate(
    view: &View<'_>,
    loads: &Loads,
    from: &HostName,
    to: &BTreeSet<HostName>,
    instances: &[Leaving<'_>],
    most: usize,
) -> Result<Vec<Assignment>, Refusal> {
    let leaving: Vec<_> = instances.iter().map(|leaving| leaving.vid).collect();
    let model = Model::new(view, loads, Search::Placing { new: &[], leaving: &leaving }, &Bounds::default());
    let (problem, hosts) = (model.problem(), view.destinations(from, to));
    let mut chooser = Chooser::new(&model, &problem, &hosts);
    let (mut moving, mut refused) = (Vec::new(), None);
    for (which, Leaving { vid, avoid }) in instances.iter().enumerate() {
        if moving.len() == most {
            break;
        }
        let candidate = Candidate::Leaving(*vid);
        let ranked = chooser.ranked(&candidate, |_| 0);
        let is_open = |host: &&&HostName| !avoid.contains(**host) && chooser.check(&candidate, host).is_ok();
        match ranked.iter().find(is_open) {
            Some(to) => {
                chooser.put(&candidate, to);
                moving.push(Assignment { which, to: (*to).clone() });
            }
            None => {
                let reason = hosts.iter().find_map(|host| chooser.check(&candidate, host).err());
                refused = refused.or(reason);
            }
        }
    }
    match moving.is_empty() {
        true => Err(refused.unwrap_or_else(|| Refusal::NowhereToGo(from.clone()))),
        false => Ok(moving),
    }
}

#[cfg(test)]
mod tests;
