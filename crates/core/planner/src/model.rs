//! The cluster as a problem of the solver.
//!
//! All costs are in KiB that are copied or cross the network within the horizon. So the traffic that a move saves and the bytes
//! that it copies are compared as they are.

use std::collections::{BTreeMap, BTreeSet};

use fabric::Vid;
use moves::HostName;
use solver::problem::{Cost, Flow, Matrix, Place, Problem, Resource, Set, Spec};

use crate::choice::Candidate;
use crate::load::{bandwidths, latencies};
use crate::price::{FULL, IMBALANCE, OVERLOAD, SLACK};
use crate::units::{Kind, Member, Unit, units};
use crate::{Aim, Amounts, Bounds, Instance, Loads, New, View};

/// The cost of a move besides the bytes that it copies: the instance stands still.
pub(crate) const STANDSTILL: Cost = 64 * 1024;

/// The cost of each KiB of memory beyond a host's. In an improvement, only instances that are there already can cause it.
const EXCESS: Cost = 1024;

/// The cost of instances on different hosts whose latency is bounded: the latency between hosts is unknown. It is that of a processor
/// that a host lacks.
const FAR: Cost = 1000 * OVERLOAD;

/// The cost of instances on different hosts that labels keep together.
const SPLIT: Cost = 4 * FAR;

/// A host of which nothing is known.
const UNBOUNDED: Amounts = Amounts { cpu: 1 << 40, memory: 1 << 60 };

/// What is searched for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Search<'a> {
    /// A better placement. These hosts are to be empty, and moves cost so many times as much as they do.
    Improvement { aim: &'a Aim, empty: &'a BTreeSet<HostName>, move_weight: u64 },
    /// Places for new instances, and for those that leave their hosts. All others stay.
    Placing { new: &'a [New<'a>], leaving: &'a [Vid] },
}

/// The cluster with indices for units of instances and for hosts.
pub(crate) struct Model<'a> {
    pub(crate) view: &'a View<'a>,
    /// At least what is demanded.
    pub(crate) loads: &'a Loads,
    pub(crate) search: Search<'a>,
    horizon: u64,
    pub(crate) hosts: Vec<HostName>,
    units: Vec<Unit<'a>>,
    /// Pairs of units that are to share a host.
    split: Vec<(usize, usize)>,
}

impl<'a> Model<'a> {
    /// A model of a search. `loads` are at least what is demanded.
    pub(crate) fn new(view: &'a View<'a>, loads: &'a Loads, search: Search<'a>, bounds: &Bounds) -> Self {
        let occupied = view.instances.values().flat_map(|at| [Some(at.host), at.moves_to]).flatten();
        let hosts: BTreeSet<_> =
            view.usable().chain(occupied).chain(view.planned.values()).cloned().collect();
        let hosts = hosts.into_iter().collect();
        let mut model = Self {
            view,
            loads,
            search,
            horizon: bounds.horizon,
            hosts,
            units: Vec::new(),
            split: Vec::new(),
        };
        model.units = units(&model);
        model
    }

    /// Brings units together that labels keep together, but that are on different hosts: they go to the host of the one that is the
    /// hardest to move, which stays.
    pub(crate) fn bring_together(mut self) -> Self {
        let mut parts = BTreeMap::<usize, Vec<usize>>::new();
        for (index, unit) in self.units.iter().enumerate() {
            parts.entry(unit.component).or_default().push(index);
        }
        for parts in parts.into_values().filter(|parts| parts.len() > 1) {
            let stays = |index: &&usize| self.units[**index].start.is_some();
            let hardest = |index: &&usize| {
                let unit = &self.units[**index];
                (unit.is_fixed(), unit.move_cost, std::cmp::Reverse(**index))
            };
            let anchor = parts.iter().filter(stays).max_by_key(hardest).copied();
            let center = anchor.unwrap_or(parts[0]);
            self.split.extend(parts.iter().filter(|part| **part != center).map(|part| (*part, center)));
            let Some(there) = anchor.and_then(|anchor| self.units[anchor].start) else { continue };
            for part in parts {
                let unit = &mut self.units[part];
                let start = unit.start;
                if let Some(places) = &mut unit.places {
                    places.retain(|place| *place == there || Some(*place) == start);
                }
            }
        }
        self
    }

    /// The instances of an item.
    pub(crate) fn vids(&self, item: usize) -> impl Iterator<Item = Vid> {
        self.units[item].members.iter().filter_map(|member| member.vid())
    }

    /// The item of an instance that gets a host.
    pub(crate) fn item_of(&self, candidate: &Candidate<'_>) -> usize {
        match candidate {
            // In this search each instance is a unit, and new ones are the last.
            Candidate::New(which, _) => self.units.len() - self.new_units() + which,
            Candidate::Leaving(vid) => self.view.instances.range(..vid).count(),
        }
    }

    fn new_units(&self) -> usize {
        match self.search {
            Search::Placing { new, .. } => new.len(),
            Search::Improvement { .. } => 0,
        }
    }

    /// How many instances an item has.
    pub(crate) fn size(&self, item: usize) -> usize {
        self.units[item].members.len()
    }

    pub(crate) fn host(&self, place: usize) -> HostName {
        self.hosts[place].clone()
    }

    /// The places of the items now.
    pub(crate) fn starts(&self) -> Vec<Option<usize>> {
        self.units.iter().map(|unit| unit.now).collect()
    }

    /// The hosts of all instances; `None` if one has no place.
    pub(crate) fn hosts_of(&self, places: &[Option<usize>]) -> Option<BTreeMap<Vid, HostName>> {
        let mut hosts = BTreeMap::new();
        for (unit, place) in self.units.iter().zip(places) {
            let host = self.host((*place)?);
            hosts.extend(unit.members.iter().filter_map(|member| Some((member.vid()?, host.clone()))));
        }
        Some(hosts)
    }

    /// The places of all items. Those whose instances are missing in `hosts` stay.
    pub(crate) fn indices_of(&self, hosts: &BTreeMap<Vid, HostName>) -> Vec<Option<usize>> {
        let goal = |unit: &Unit<'_>| hosts.get(&unit.members.first()?.vid()?);
        let place = |unit: &Unit<'_>| goal(unit).map_or(unit.now, |host| self.place_of(host));
        self.units.iter().map(place).collect()
    }

    /// The instances that stay for a reason of their own.
    pub(crate) fn pinned(&self) -> Vec<(Vid, String)> {
        let own = |vid: Vid| self.reason_to_stay(&vid, self.view.instances.get(&vid)?);
        let pinned = self.units.iter().flat_map(|unit| {
            let has_reason = |member: &&Member<'_>| member.vid().is_some_and(|vid| own(vid).is_some());
            let holder = unit.members.iter().find(has_reason).map(|member| member.name);
            let tied = move || Some(format!("its labels keep it together with `{}`, which stays", holder?));
            let vids = unit.members.iter().filter_map(Member::vid);
            vids.filter_map(move |vid| Some((vid, own(vid).or_else(tied)?)))
        });
        let mut pinned: Vec<_> = pinned.collect();
        pinned.sort();
        pinned
    }

    /// Whether some host is open for each instance. To the solver, an item without any place may have all.
    pub(crate) fn all_may_be_somewhere(&self) -> bool {
        self.units.iter().all(|unit| unit.places.as_ref().is_none_or(|places| !places.is_empty()))
    }

    pub(crate) fn problem(&self) -> Problem {
        let memory = if self.is_improvement() { 1 } else { EXCESS };
        let resource = |overload| Resource { overload, is_transient: false };
        let spec = Spec {
            // The order of moves takes care of the time when an instance needs its memory at both hosts.
            resources: vec![resource(self.overload()), resource(memory), resource(0), resource(0)],
            places: self.places(),
            items: self.units.iter().map(Unit::item).collect(),
            sets: self.sets_apart(),
            balances: Vec::new(),
            flows: self.flows(),
            distances: self.distances(),
            relocation: Matrix::default(),
            disturbance: 0,
            excess: EXCESS,
        };
        Problem::new(&spec).expect("all indices are of lists above")
    }

    pub(crate) fn place_of(&self, host: &HostName) -> Option<usize> {
        self.hosts.binary_search(host).ok()
    }

    fn is_improvement(&self) -> bool {
        matches!(self.search, Search::Improvement { .. })
    }

    fn is_balanced(&self) -> bool {
        matches!(self.search, Search::Improvement { aim: Aim::Balance, .. })
    }

    fn overload(&self) -> Cost {
        if self.is_balanced() { IMBALANCE } else { OVERLOAD }
    }

    fn places(&self) -> Vec<Place> {
        let room = |host| self.loads.rooms.get(host).copied().unwrap_or(UNBOUNDED);
        let rooms: Vec<Amounts> = self.hosts.iter().map(room).collect();
        let level = |of: fn(&Amounts) -> u64, room: u64| {
            if !self.is_balanced() {
                return room / 100 * FULL;
            }
            let needed: u64 = self.units.iter().map(|unit| of(&unit.amounts)).sum();
            let all: u64 = rooms.iter().map(of).sum();
            let share = u128::from(room) * u128::from(needed) / u128::from(all.max(1));
            (share as u64).saturating_mul(100 + SLACK) / 100
        };
        let place = |(host, room): (&HostName, &Amounts)| {
            let promised = self.view.hosts.get(host).and_then(|host| host.capacity).unwrap_or(UNBOUNDED);
            let (cpu, memory) = (count(promised.cpu), units_of(promised.memory));
            let measured = if self.is_improvement() { units_of(room.memory) } else { i64::MAX / 4 };
            let memory_level = match self.is_balanced() {
                true => units_of(level(|amounts| amounts.memory, room.memory)),
                false => units_of(room.memory),
            };
            Place {
                // Instances may use more processors than the host has: that is an overload. Demands must not.
                capacity: vec![i64::MAX / 4, measured, cpu, memory],
                level: vec![count(level(|amounts| amounts.cpu, room.cpu)), memory_level, cpu, memory],
                ..Place::default()
            }
        };
        self.hosts.iter().zip(&rooms).map(place).collect()
    }

    /// The places of hosts to which instances may come, as far as that does not depend on the instance: usable hosts, and in an improvement
    /// those of which something is known, if that is so of any.
    pub(crate) fn open_places(&self) -> Vec<usize> {
        let rooms = &self.loads.rooms;
        let is_known = |host: &HostName| rooms.is_empty() || rooms.contains_key(host);
        let is_open = |host: &HostName| match self.search {
            Search::Improvement { empty, .. } => is_known(host) && !empty.contains(host),
            Search::Placing { .. } => true,
        };
        let open = |place: &usize| {
            let host = &self.hosts[*place];
            self.view.check_usable(host).is_ok() && is_open(host)
        };
        (0..self.hosts.len()).filter(open).collect()
    }

    pub(crate) fn reason_to_stay(&self, vid: &Vid, instance: &Instance<'_>) -> Option<String> {
        if instance.moves_to.is_some() {
            return Some("it moves already".into());
        }
        if !self.view.hosts.get(instance.host).is_some_and(|host| host.is_up) {
            return Some(format!("host {} is not connected", instance.host));
        }
        self.loads.needs.get(vid)?.pinned.clone()
    }

    /// The sets of units that must not share a host.
    fn sets_apart(&self) -> Vec<Set> {
        let mut by_label = BTreeMap::<(&str, &str), (BTreeSet<usize>, BTreeSet<usize>)>::new();
        for (item, unit) in self.units.iter().enumerate() {
            for placement in unit.members.iter().map(|member| member.placement) {
                for (key, value) in &placement.labels {
                    let (demanding, others) = by_label.entry((key, value)).or_default();
                    let demands = placement.anti_affinity.contains(key);
                    if demands {
                        demanding.insert(item)
                    } else {
                        others.insert(item)
                    };
                }
            }
        }
        let apart = |members: Vec<usize>| Set { members, is_apart: true, ..Set::default() };
        let sets = by_label.into_values().flat_map(|(demanding, others)| {
            let others: Vec<_> = others.difference(&demanding).copied().collect();
            // Those without the demand may share a host with each other.
            let pairs: Vec<_> =
                demanding.iter().flat_map(|one| others.iter().map(|other| vec![*one, *other])).collect();
            [demanding.into_iter().collect::<Vec<_>>()].into_iter().chain(pairs)
        });
        sets.filter(|members| members.len() > 1).map(apart).collect()
    }

    fn flows(&self) -> Vec<Flow> {
        let amount = |rate: u64| units_of(rate.saturating_mul(self.horizon));
        let members = || {
            self.units
                .iter()
                .enumerate()
                .flat_map(|(item, unit)| unit.members.iter().map(move |member| (item, member)))
        };
        let index: BTreeMap<Vid, usize> =
            members().filter_map(|(item, member)| Some((member.vid()?, item))).collect();
        let talk = |talk: &crate::Talk| Some((*index.get(&talk.one)?, *index.get(&talk.other)?, talk.rate));
        let talks = self.loads.talks.iter().filter_map(talk);
        let real = members().filter(|(_, member)| member.kind != Kind::Arriving);
        let ends: Vec<_> =
            real.map(|(item, member)| ((item, member.kind), member.name, member.placement)).collect();
        // Those of present instances are among the loads.
        let demanded = bandwidths(&ends)
            .into_iter()
            .filter(|((_, one), (_, other), _)| [one, other].contains(&&Kind::New));
        let demanded = demanded.map(|((one, _), (other, _), rate)| (one, other, rate));
        let traffic = talks.chain(demanded).map(|(one, other, rate)| (one, other, amount(rate)));
        let near = latencies(&ends).into_iter().map(|((one, _), (other, _), _)| (one, other, FAR));
        let split = self.split.iter().map(|(one, other)| (*one, *other, SPLIT));
        let all = traffic.chain(near).chain(split);
        let flow = |(from, to, amount)| Flow { from, to, amount };
        all.filter(|(from, to, _)| from != to).map(flow).collect()
    }

    /// One for different hosts: all hosts are one hop from each other.
    fn distances(&self) -> Matrix {
        let places = self.hosts.len();
        Matrix((0..places * places).map(|pair| i32::from(pair / places != pair % places)).collect())
    }
}

pub(crate) fn count(amount: u64) -> i64 {
    i64::try_from(amount).unwrap_or(i64::MAX / 8).min(i64::MAX / 8)
}

/// KiB, rounded up.
pub(crate) fn units_of(bytes: u64) -> i64 {
    count(bytes.div_ceil(1024))
}
