//! Units: instances with one place in the model.
//!
//! Instances that labels keep together are one unit, as far as they are on one host now: their unit moves as a whole. An instance that
//! moves is one unit at each of its hosts.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use fabric::Vid;
use moves::HostName;
use moves::placement::Placement;
use solver::problem::{Cost, Item};

use crate::model::{Model, STANDSTILL, Search, count, units_of};
use crate::{Amounts, Instance};

/// An instance of a unit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Member<'a> {
    pub kind: Kind,
    pub name: &'a str,
    pub placement: &'a Placement,
}

/// What a member stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// An instance of the view.
    Present(Vid),
    /// The room of a moving instance at its new host.
    Arriving,
    /// An instance that does not exist yet.
    New,
}

impl Member<'_> {
    /// Its identity in the view.
    pub fn vid(&self) -> Option<Vid> {
        match self.kind {
            Kind::Present(vid) => Some(vid),
            Kind::Arriving | Kind::New => None,
        }
    }
}

/// Instances with one place.
#[derive(Clone, Debug)]
pub(crate) struct Unit<'a> {
    pub members: Vec<Member<'a>>,
    /// Units of one component are to share a host.
    pub component: usize,
    /// Where it is.
    pub now: Option<usize>,
    /// The same, unless it must leave.
    pub start: Option<usize>,
    /// The places that it may have.
    pub places: Option<Vec<usize>>,
    /// What it needs.
    pub amounts: Amounts,
    /// What its users demand.
    pub demanded: Amounts,
    pub move_cost: Cost,
}

impl<'a> Unit<'a> {
    /// Whether it stays.
    pub fn is_fixed(&self) -> bool {
        self.start.is_some() && self.places.as_deref() == self.start.as_ref().map(std::slice::from_ref)
    }

    pub fn item(&self) -> Item {
        let Amounts { cpu, memory } = self.demanded;
        Item {
            demand: vec![
                count(self.amounts.cpu),
                units_of(self.amounts.memory),
                count(cpu),
                units_of(memory),
            ],
            start: self.start,
            move_cost: self.move_cost,
            places: self.places.clone(),
        }
    }

    /// One that needs so much and stays at this place.
    fn at(member: Member<'a>, place: Option<usize>, amounts: Amounts, component: usize) -> Self {
        Self {
            demanded: Amounts::demanded(&member.placement.demand),
            members: vec![member],
            component,
            now: place,
            start: place,
            places: Some(place.into_iter().collect()),
            amounts,
            move_cost: 0,
        }
    }

    fn absorb(&mut self, other: Self) {
        let is_fixed = other.is_fixed();
        self.members.extend(other.members);
        self.amounts = self.amounts.plus(other.amounts);
        self.demanded = self.demanded.plus(other.demanded);
        self.move_cost = self.move_cost.saturating_add(other.move_cost);
        // A member that stays keeps the others.
        if self.is_fixed() {
            return;
        }
        match (&mut self.places, other.places) {
            (Some(places), Some(others)) if !is_fixed => places.retain(|place| others.contains(place)),
            (places, others) => (self.start, *places) = (other.start, others),
        }
    }
}

/// All units of a search: those of the instances in the view, then the new ones in their order.
pub(crate) fn units<'a>(model: &Model<'a>) -> Vec<Unit<'a>> {
    let mut units = match model.search {
        Search::Improvement { empty, move_weight, .. } => movable(model, empty, move_weight),
        Search::Placing { leaving, .. } => placed(model, leaving),
    };
    let alone = |number: usize| usize::MAX - number;
    for (vid, at) in &model.view.instances {
        if let Some(to) = at.moves_to.filter(|_| !model.view.planned.contains_key(vid)) {
            let needed = Amounts { memory: amounts(model, *vid).memory, ..Amounts::default() };
            let member = Member { kind: Kind::Arriving, name: at.name, placement: at.placement };
            units.push(Unit::at(member, model.place_of(to), needed, alone(units.len())));
        }
    }
    if let Search::Placing { new, .. } = model.search {
        for new in new {
            let member = Member { kind: Kind::New, name: new.name, placement: new.placement };
            let unit = Unit::at(member, None, new.needed, alone(units.len()));
            units.push(Unit { places: None, ..unit });
        }
    }
    units
}

/// Each instance alone, where it will be. Those that leave have no start, and may go anywhere.
fn placed<'a>(model: &Model<'a>, leaving: &[Vid]) -> Vec<Unit<'a>> {
    let leaving: BTreeSet<_> = leaving.iter().collect();
    let unit = |(component, (vid, at)): (usize, (&Vid, &Instance<'a>))| {
        let host = model.view.planned.get(vid).unwrap_or(at.host);
        let unit = Unit::at(present(*vid, at), model.place_of(host), amounts(model, *vid), component);
        match leaving.contains(vid) {
            true => Unit { start: None, places: None, ..unit },
            false => unit,
        }
    };
    model.view.instances.iter().enumerate().map(unit).collect()
}

/// The instances that are on one host and kept together as one unit.
fn movable<'a>(model: &Model<'a>, empty: &BTreeSet<HostName>, move_weight: u64) -> Vec<Unit<'a>> {
    let components = components(model);
    let open = model.open_places();
    let mut units = BTreeMap::<(usize, &HostName), Unit<'a>>::new();
    for ((vid, at), component) in model.view.instances.iter().zip(components) {
        let place = model.place_of(at.host);
        let mut unit = Unit::at(present(*vid, at), place, amounts(model, *vid), component);
        let copied = model.loads.needs.get(vid).map_or(0, |need| need.copied);
        unit.move_cost = (units_of(copied) + STANDSTILL).saturating_mul(count(move_weight));
        if model.reason_to_stay(vid, at).is_none() {
            let must_leave = empty.contains(at.host);
            // One that must leave is placed like a new one.
            unit.start = place.filter(|_| !must_leave);
            let is_own = |other: &usize| unit.start == Some(*other);
            let others = open.iter().copied().filter(|other| !is_own(other));
            let mut places: Vec<_> = unit.start.into_iter().chain(others).collect();
            places.sort_unstable();
            unit.places = Some(places);
        }
        match units.entry((component, at.host)) {
            Entry::Vacant(entry) => drop(entry.insert(unit)),
            Entry::Occupied(mut entry) => entry.get_mut().absorb(unit),
        }
    }
    units.into_values().collect()
}

fn present<'a>(vid: Vid, at: &Instance<'a>) -> Member<'a> {
    Member { kind: Kind::Present(vid), name: at.name, placement: at.placement }
}

fn amounts(model: &Model<'_>, vid: Vid) -> Amounts {
    model.loads.needs.get(&vid).map(|need| need.amounts).unwrap_or_default()
}

/// By instance: the first instance to which a chain of labels ties it.
fn components(model: &Model<'_>) -> Vec<usize> {
    let mut by_label = BTreeMap::<(&str, &str), (bool, Vec<usize>)>::new();
    for (index, at) in model.view.instances.values().enumerate() {
        for (key, value) in &at.placement.labels {
            let (are_tied, members) = by_label.entry((key, value)).or_default();
            *are_tied |= at.placement.affinity.contains(key);
            members.push(index);
        }
    }
    let mut component: Vec<usize> = (0..model.view.instances.len()).collect();
    for (_, members) in by_label.into_values().filter(|(are_tied, _)| *are_tied) {
        let first = members[0];
        for member in members {
            let (one, other) = (component[first], component[member]);
            let (low, high) = (one.min(other), one.max(other));
            component.iter_mut().filter(|of| **of == high).for_each(|of| *of = low);
        }
    }
    component
}
