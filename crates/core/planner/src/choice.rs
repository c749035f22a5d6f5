//! The rule by which an instance gets a host: the cheapest one that is allowed, then the emptiest, then the first by name.
//!
//! Costs are those of the model, so demands, traffic and load count as they do in an improvement. They are compared in units of a move's
//! standstill: a smaller difference does not outweigh an emptier host.

use std::collections::BTreeMap;

use fabric::Vid;
use moves::HostName;
use solver::Insertion;
use solver::problem::Problem;

use crate::model::{Model, STANDSTILL};
use crate::view::{check_amounts, check_beside};
use crate::{Amounts, New, Refusal, Resource, View};

/// An instance that gets a host.
#[derive(Clone, Copy, Debug)]
pub enum Candidate<'a> {
    /// A new one, with its index among the new ones.
    New(usize, &'a New<'a>),
    /// One that leaves its host.
    Leaving(Vid),
}

/// Gives instances hosts, one after the other.
pub struct Chooser<'a> {
    model: &'a Model<'a>,
    insertion: Insertion<'a>,
    hosts: &'a [HostName],
    /// Instances that leave count where they go.
    view: View<'a>,
    /// The new instances that have a host.
    started: Vec<(&'a New<'a>, HostName)>,
    /// By host: the instances on it and on their way to it.
    load: BTreeMap<HostName, u32>,
}

impl<'a> Chooser<'a> {
    /// Chooses among `hosts`.
    pub fn new(model: &'a Model<'a>, problem: &'a Problem, hosts: &'a [HostName]) -> Self {
        let view = model.view.clone();
        let mut load = BTreeMap::new();
        let here = view.instances.values().map(|instance| instance.host);
        let coming = view.instances.values().filter_map(|instance| instance.moves_to);
        for host in here.chain(coming).chain(view.planned.values()) {
            *load.entry(host.clone()).or_default() += 1;
        }
        Self { model, insertion: Insertion::new(problem), hosts, view, started: Vec::new(), load }
    }

    /// The best host that is allowed, of those with the lowest `rank`.
    ///
    /// # Errors
    /// If no host is allowed, the reason: what no host has, else why the emptiest is not.
    pub fn best(
        &mut self,
        candidate: &Candidate<'a>,
        rank: impl Fn(&HostName) -> usize,
    ) -> Result<HostName, Refusal> {
        let mut ranked = self.ranked(candidate, rank).into_iter();
        let allowed = ranked.find(|host| self.check(candidate, host).is_ok());
        allowed.cloned().ok_or_else(|| self.reason(candidate))
    }

    /// The hosts with room, the best one of the lowest `rank` first. Not all of them may be allowed.
    pub fn ranked(
        &mut self,
        candidate: &Candidate<'a>,
        rank: impl Fn(&HostName) -> usize,
    ) -> Vec<&'a HostName> {
        let item = self.model.item_of(candidate);
        let costs: BTreeMap<_, _> = self.insertion.free(item).into_iter().collect();
        let ranks = self.hosts.iter().filter_map(|host| {
            let cost = costs.get(&self.model.place_of(host)?)?;
            let load = self.load.get(host).copied().unwrap_or(0);
            Some((rank(host), cost.div_euclid(STANDSTILL), load, host))
        });
        let mut ranked: Vec<_> = ranks.collect();
        ranked.sort();
        ranked.into_iter().map(|(.., host)| host).collect()
    }

    /// Gives the instance a host.
    pub fn put(&mut self, candidate: &Candidate<'a>, host: &HostName) {
        let (item, place) = (self.model.item_of(candidate), self.model.place_of(host));
        if let Some(place) = place {
            self.insertion.put(item, place);
        }
        *self.load.entry(host.clone()).or_default() += 1;
        match candidate {
            Candidate::New(_, new) => self.started.push((*new, host.clone())),
            Candidate::Leaving(vid) => drop(self.view.planned.insert(*vid, host.clone())),
        }
    }

    /// Checks that the instance may be on `host`, beside all that have a host already.
    ///
    /// # Errors
    /// The reason why not.
    pub fn check(&self, candidate: &Candidate<'a>, host: &HostName) -> Result<(), Refusal> {
        match candidate {
            Candidate::Leaving(vid) => self.view.check_move(*vid, host),
            Candidate::New(_, new) => {
                self.view.check_network(host, new.network)?;
                self.view.check_labels(None, new.placement, host)?;
                self.check_started(new, host)
            }
        }
    }

    fn check_started(&self, new: &New<'a>, host: &HostName) -> Result<(), Refusal> {
        let beside = || self.started.iter().filter(|(_, there)| there == host);
        check_beside(new.placement, beside().map(|(other, _)| (other.name, other.placement)), host)?;
        let companions = self
            .started
            .iter()
            .filter_map(|(other, there)| Some((other, new.placement.together(other.placement)?, there)));
        let companions: Vec<_> = companions.collect();
        match companions.first() {
            Some((other, (key, value), there)) if companions.iter().all(|(.., there)| *there != host) => {
                return Err(Refusal::KeptTogether {
                    other: other.name.to_owned(),
                    key: (*key).to_owned(),
                    value: (*value).to_owned(),
                    there: (*there).clone(),
                    host: host.clone(),
                });
            }
            _ => {}
        }
        let Some(has) = self.view.hosts.get(host).and_then(|host| host.capacity) else { return Ok(()) };
        let demanded = Amounts::demanded(&new.placement.demand);
        let others = beside().map(|(other, _)| Amounts::demanded(&other.placement.demand));
        check_amounts(demanded, others.fold(self.view.demanded_on(None, host), Amounts::plus), has, host)
    }

    fn reason(&self, candidate: &Candidate<'a>) -> Refusal {
        let placement = match candidate {
            Candidate::New(_, new) => Some(new.placement),
            Candidate::Leaving(vid) => self.view.instances.get(vid).map(|instance| instance.placement),
        };
        let demanded = placement.map(|placement| Amounts::demanded(&placement.demand)).unwrap_or_default();
        let mut hosts: Vec<_> = self.hosts.iter().collect();
        hosts.sort_by_key(|host| (self.load.get(*host).copied().unwrap_or(0), *host));
        let refused = || hosts.iter().filter_map(|host| self.check(candidate, host).err());
        self.too_large(demanded)
            // A contradiction, and a reason on the only host that affinity leaves, say more than affinity does.
            .or_else(|| {
                refused()
                    .find(|why| !matches!(why, Refusal::KeptTogether { .. }))
                    .filter(|_| refused().any(|why| matches!(why, Refusal::KeptTogether { .. })))
            })
            .or_else(|| refused().next())
            .unwrap_or(Refusal::NoUsableHost)
    }

    /// That a demand is more than any of several hosts has. The reason against a single one says what it has.
    fn too_large(&self, demanded: Amounts) -> Option<Refusal> {
        let capacities: Option<Vec<_>> =
            self.hosts.iter().map(|host| Some((host, self.view.hosts.get(host)?.capacity?))).collect();
        let capacities = capacities.filter(|capacities| capacities.len() > 1)?;
        [Resource::Processors, Resource::Memory].into_iter().find_map(|resource| {
            let (host, has) = capacities.iter().max_by_key(|(_, has)| resource.of(has))?;
            let (largest, has, demanded) = ((*host).clone(), resource.of(has), resource.of(&demanded));
            (demanded > has).then_some(Refusal::TooLarge { resource, demanded, largest, has })
        })
    }
}
