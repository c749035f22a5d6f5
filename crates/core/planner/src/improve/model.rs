//! The cluster as a problem of the solver.
//!
//! All costs are in KiB that are copied or cross the network within the horizon. So the traffic that a move saves and the bytes
//! that it copies are compared as they are.

use std::collections::{BTreeMap, BTreeSet};

use fabric::Vid;
use moves::HostName;
use solver::problem::{Cost, Flow, Item, Matrix, Place, Problem, Resource, Set, Spec};

use super::{Aim, Bounds};
use crate::{Amounts, Instance, Loads, View};

/// The cost of each thousandth of a processor beyond the average of all hosts: a whole processor is worth copying 10 GiB.
const IMBALANCE: Cost = 10 * 1024;

/// The cost of each thousandth of a processor that a host lacks: no traffic that a host could save outweighs it.
const OVERLOAD: Cost = 1024 * 1024;

/// The cost of a move besides the bytes that it copies: the instance stands still.
const STANDSTILL: Cost = 64 * 1024;

/// The cost of each KiB of memory beyond a host's, which only instances that are there already can cause.
const EXCESS: Cost = 1024;

/// A host of which nothing is known.
const UNBOUNDED: Amounts = Amounts { cpu: 1 << 40, memory: 1 << 60 };

/// The share of a host's processors, in percent, above which it is overloaded.
const FULL: u64 = 90;

/// What a host may have above the average without being out of balance, in percent of that.
const SLACK: u64 = 5;

/// The cluster with indices for instances and hosts.
pub struct Model<'a> {
    view: &'a View<'a>,
    loads: &'a Loads,
    aim: &'a Aim,
    bounds: &'a Bounds,
    /// Hosts that are to be empty.
    empty: &'a BTreeSet<HostName>,
    move_weight: u64,
    vids: Vec<Vid>,
    hosts: Vec<HostName>,
}

impl<'a> Model<'a> {
    /// The cluster of `view`, whose moves cost `move_weight` times as much as they do.
    pub fn new(
        view: &'a View<'a>,
        loads: &'a Loads,
        aim: &'a Aim,
        bounds: &'a Bounds,
        empty: &'a BTreeSet<HostName>,
        move_weight: u64,
    ) -> Self {
        let occupied = view.instances.values().map(|instance| instance.host);
        let hosts: BTreeSet<_> = view.usable().chain(occupied).cloned().collect();
        let vids = view.instances.keys().copied().collect();
        Self { view, loads, aim, bounds, empty, move_weight, vids, hosts: hosts.into_iter().collect() }
    }

    pub fn vid(&self, item: usize) -> Vid {
        self.vids[item]
    }

    pub fn host(&self, place: usize) -> HostName {
        self.hosts[place].clone()
    }

    /// The places of the instances now.
    pub fn starts(&self) -> Vec<Option<usize>> {
        self.instances().map(|(_, instance)| self.place_of(instance.host)).collect()
    }

    /// The hosts of all instances; `None` if one has no place.
    pub fn hosts_of(&self, places: &[Option<usize>]) -> Option<BTreeMap<Vid, HostName>> {
        self.vids.iter().zip(places).map(|(vid, place)| Some((*vid, self.host((*place)?)))).collect()
    }

    /// The places of all instances. Those that are missing in `hosts` stay.
    pub fn indices_of(&self, hosts: &BTreeMap<Vid, HostName>) -> Vec<Option<usize>> {
        self.instances().map(|(vid, at)| self.place_of(hosts.get(vid).unwrap_or(at.host))).collect()
    }

    /// The instances that stay for a reason of their own.
    pub fn pinned(&self) -> Vec<(Vid, String)> {
        let reason =
            |(vid, instance): (&Vid, &Instance<'_>)| Some((*vid, self.reason_to_stay(vid, instance)?));
        self.instances().filter_map(reason).collect()
    }

    /// Whether some host is open for each instance. To the solver, an item without any place may have all.
    pub fn all_may_be_somewhere(&self) -> bool {
        self.instances().all(|(vid, at)| self.item(vid, at).places.is_none_or(|places| !places.is_empty()))
    }

    pub fn problem(&self) -> Problem {
        let index: BTreeMap<Vid, usize> =
            self.vids.iter().enumerate().map(|(item, vid)| (*vid, item)).collect();
        let spec = Spec {
            resources: vec![
                Resource { overload: self.overload(), is_transient: false },
                // The order of moves takes care of the time when an instance needs its memory at both hosts.
                Resource { overload: 1, is_transient: false },
            ],
            places: self.places(),
            items: self.instances().map(|(vid, instance)| self.item(vid, instance)).collect(),
            sets: self.sets_apart(),
            balances: Vec::new(),
            flows: self.flows(&index),
            distances: self.distances(),
            relocation: Matrix::default(),
            disturbance: 0,
            excess: EXCESS,
        };
        Problem::new(&spec).expect("all indices are of lists above")
    }

    fn instances(&self) -> impl Iterator<Item = (&'a Vid, &'a Instance<'a>)> {
        self.view.instances.iter()
    }

    fn place_of(&self, host: &HostName) -> Option<usize> {
        self.hosts.binary_search(host).ok()
    }

    fn room(&self, host: &HostName) -> Amounts {
        let Some(room) = self.loads.rooms.get(host).copied() else { return UNBOUNDED };
        // An instance that moves needs its memory at both hosts.
        let comes = |at: &Instance<'_>| at.moves_to == Some(host);
        let coming = self.instances().filter(|(_, at)| comes(at)).map(|(vid, _)| self.amounts(vid).memory);
        Amounts { memory: room.memory.saturating_sub(coming.sum()), ..room }
    }

    fn amounts(&self, vid: &Vid) -> Amounts {
        self.loads.needs.get(vid).map(|need| need.amounts).unwrap_or_default()
    }

    fn overload(&self) -> Cost {
        if *self.aim == Aim::Balance { IMBALANCE } else { OVERLOAD }
    }

    fn places(&self) -> Vec<Place> {
        let rooms: Vec<Amounts> = self.hosts.iter().map(|host| self.room(host)).collect();
        let needed: Vec<Amounts> = self.vids.iter().map(|vid| self.amounts(vid)).collect();
        let level = |of: fn(&Amounts) -> u64, room: u64| match self.aim {
            Aim::Balance => {
                let (needed, all) = (needed.iter().map(of).sum::<u64>(), rooms.iter().map(of).sum::<u64>());
                let share = u128::from(room) * u128::from(needed) / u128::from(all.max(1));
                (share as u64).saturating_mul(100 + SLACK) / 100
            }
            _ => room / 100 * FULL,
        };
        rooms
            .iter()
            .map(|room| Place {
                // Processors can be shared by more than fit: that is an overload.
                capacity: vec![i64::MAX / 4, units(room.memory)],
                level: vec![
                    count(level(|amounts| amounts.cpu, room.cpu)),
                    match self.aim {
                        Aim::Balance => units(level(|amounts| amounts.memory, room.memory)),
                        _ => units(room.memory),
                    },
                ],
                ..Place::default()
            })
            .collect()
    }

    fn item(&self, vid: &Vid, instance: &Instance<'_>) -> Item {
        let (amounts, start) = (self.amounts(vid), self.place_of(instance.host));
        let stays = self.reason_to_stay(vid, instance).is_some();
        let must_leave = !stays && self.empty.contains(instance.host);
        let is_open = |host: &HostName| self.is_open(host) && !self.empty.contains(host);
        let open =
            (0..self.hosts.len()).filter(|place| is_open(&self.hosts[*place]) || Some(*place) == start);
        let copied = self.loads.needs.get(vid).map_or(0, |need| need.copied);
        Item {
            demand: vec![count(amounts.cpu), units(amounts.memory)],
            // One that must leave is placed like a new one.
            start: start.filter(|_| !must_leave),
            move_cost: (units(copied) + STANDSTILL).saturating_mul(count(self.move_weight)),
            places: Some(if stays {
                start.into_iter().collect()
            } else {
                open.filter(|place| !must_leave || Some(*place) != start).collect()
            }),
        }
    }

    /// Whether instances may come to a host: it is usable, and known if any is.
    fn is_open(&self, host: &HostName) -> bool {
        let rooms = &self.loads.rooms;
        self.view.check_usable(host).is_ok() && (rooms.is_empty() || rooms.contains_key(host))
    }

    fn reason_to_stay(&self, vid: &Vid, instance: &Instance<'_>) -> Option<String> {
        if instance.moves_to.is_some() {
            return Some("it moves already".into());
        }
        if !self.view.hosts.get(instance.host).is_some_and(|host| host.is_up) {
            return Some(format!("host {} is not connected", instance.host));
        }
        self.loads.needs.get(vid)?.pinned.clone()
    }

    /// The sets of instances that must not share a host.
    fn sets_apart(&self) -> Vec<Set> {
        let mut by_label = BTreeMap::<(&str, &str), (Vec<usize>, Vec<usize>)>::new();
        for (item, (_, instance)) in self.instances().enumerate() {
            for (key, value) in &instance.placement.labels {
                let (demanding, others) = by_label.entry((key, value)).or_default();
                let demands = instance.placement.anti_affinity.contains(key);
                if demands { demanding.push(item) } else { others.push(item) }
            }
        }
        let apart = |members: Vec<usize>| Set { members, is_apart: true, ..Set::default() };
        let sets = by_label.into_values().flat_map(|(demanding, others)| {
            // Those without the demand may share a host with each other.
            let pairs: Vec<_> =
                demanding.iter().flat_map(|one| others.iter().map(|other| vec![*one, *other])).collect();
            [demanding].into_iter().chain(pairs)
        });
        sets.filter(|members| members.len() > 1).map(apart).collect()
    }

    fn flows(&self, index: &BTreeMap<Vid, usize>) -> Vec<Flow> {
        let flow = |talk: &crate::Talk| {
            let amount = units(talk.rate.saturating_mul(self.bounds.horizon));
            Some(Flow { from: *index.get(&talk.one)?, to: *index.get(&talk.other)?, amount })
        };
        self.loads.talks.iter().filter(|talk| talk.one != talk.other).filter_map(flow).collect()
    }

    /// One for different hosts: all hosts are one hop from each other.
    fn distances(&self) -> Matrix {
        let places = self.hosts.len();
        Matrix((0..places * places).map(|pair| i32::from(pair / places != pair % places)).collect())
    }
}

fn count(amount: u64) -> i64 {
    i64::try_from(amount).unwrap_or(i64::MAX / 8).min(i64::MAX / 8)
}

/// KiB, rounded up.
fn units(bytes: u64) -> i64 {
    count(bytes.div_ceil(1024))
}
