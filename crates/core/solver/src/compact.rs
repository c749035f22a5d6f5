//! A problem in flat arrays, for the search.

use crate::problem::{Balance, Cost, Flow, Matrix, Spec};

/// No place, for items without a start.
pub const NOWHERE: u32 = u32::MAX;

/// Lists of indices, one after the other.
#[derive(Debug, Default)]
pub struct Lists {
    ends: Vec<u32>,
    all: Vec<u32>,
}

impl Lists {
    fn of<L: IntoIterator<Item = usize>>(lists: impl IntoIterator<Item = L>) -> Self {
        let mut flat = Self::default();
        for list in lists {
            flat.all.extend(list.into_iter().map(|index| index as u32));
            flat.ends.push(flat.all.len() as u32);
        }
        flat
    }

    /// The list with this index.
    pub fn of_index(&self, index: usize) -> &[u32] {
        let begin = index.checked_sub(1).map_or(0, |before| self.ends[before] as usize);
        &self.all[begin..self.ends[index] as usize]
    }
}

/// A set's constraints.
#[derive(Debug)]
pub struct Rule {
    pub is_apart: bool,
    pub is_counted: bool,
    pub regions: u32,
}

/// A flow as one of its ends sees it.
#[derive(Clone, Copy, Debug)]
pub struct Neighbour {
    pub item: u32,
    pub amount: i64,
}

/// The problem.
#[derive(Debug)]
pub struct Compact {
    pub items: usize,
    pub places: usize,
    pub resources: usize,
    /// By place and resource.
    pub capacity: Vec<i64>,
    pub level: Vec<i64>,
    /// By item and resource.
    pub demand: Vec<i64>,
    /// By resource: the least demand of any item.
    pub least_demand: Vec<i64>,
    /// By resource.
    pub overload: Vec<Cost>,
    pub is_transient: Vec<bool>,
    pub has_transient: bool,
    pub excess: Cost,
    pub balances: Vec<Balance>,
    /// By place.
    pub region: Vec<u32>,
    pub zone: Vec<u32>,
    pub regions: usize,
    pub zones: usize,
    /// By item.
    pub start: Vec<u32>,
    pub move_cost: Vec<Cost>,
    /// By item: the allowed places; an empty list means all.
    pub allowed: Lists,
    /// By item: its sets.
    pub sets_of: Lists,
    /// By set.
    pub rules: Vec<Rule>,
    /// By set: the sets that it wants near, and those that want it near.
    pub near: Lists,
    pub wanted_by: Lists,
    pub disturbance: Cost,
    /// By item: `neighbours[begins[item]..begins[item + 1]]`.
    begins: Vec<u32>,
    neighbours: Vec<Neighbour>,
    pub distances: Vec<i32>,
    pub relocation: Vec<i32>,
}

impl Compact {
    pub fn of(spec: &Spec) -> Self {
        let (items, places) = (spec.items.len(), spec.places.len());
        let (begins, neighbours) = neighbours(items, &spec.flows);
        let mut sets_of = vec![Vec::new(); items];
        let mut wanted_by = vec![Vec::new(); spec.sets.len()];
        for (index, set) in spec.sets.iter().enumerate() {
            set.members.iter().for_each(|member| sets_of[*member].push(index));
            set.near.iter().for_each(|near| wanted_by[*near].push(index));
        }
        // Without traffic no distance is looked up.
        let is_asked = !spec.flows.is_empty();
        let zeros = |Matrix(matrix): &Matrix| match matrix.is_empty() && is_asked {
            true => vec![0; places * places],
            false => matrix.clone(),
        };
        let rule = |set: &crate::problem::Set| Rule {
            is_apart: set.is_apart,
            is_counted: set.is_counted,
            regions: set.regions as u32,
        };
        Self {
            items,
            places,
            resources: spec.resources.len(),
            capacity: spec.places.iter().flat_map(|place| place.capacity.iter().copied()).collect(),
            level: spec.places.iter().flat_map(|place| place.level.iter().copied()).collect(),
            demand: spec.items.iter().flat_map(|item| item.demand.iter().copied()).collect(),
            least_demand: (0..spec.resources.len())
                .map(|resource| spec.items.iter().map(|item| item.demand[resource]).min().unwrap_or(0))
                .collect(),
            overload: spec.resources.iter().map(|resource| resource.overload).collect(),
            is_transient: spec.resources.iter().map(|resource| resource.is_transient).collect(),
            has_transient: spec.resources.iter().any(|resource| resource.is_transient),
            excess: spec.excess,
            balances: spec.balances.clone(),
            region: spec.places.iter().map(|place| place.region as u32).collect(),
            zone: spec.places.iter().map(|place| place.zone as u32).collect(),
            regions: spec.places.iter().map(|place| place.region + 1).max().unwrap_or(0),
            zones: spec.places.iter().map(|place| place.zone + 1).max().unwrap_or(0),
            start: spec.items.iter().map(|item| item.start.map_or(NOWHERE, |start| start as u32)).collect(),
            move_cost: spec.items.iter().map(|item| item.move_cost).collect(),
            allowed: Lists::of(spec.items.iter().map(|item| item.places.iter().flatten().copied())),
            sets_of: Lists::of(sets_of),
            rules: spec.sets.iter().map(rule).collect(),
            near: Lists::of(spec.sets.iter().map(|set| set.near.iter().copied())),
            wanted_by: Lists::of(wanted_by),
            disturbance: spec.disturbance,
            begins,
            neighbours,
            distances: zeros(&spec.distances),
            relocation: spec.relocation.0.clone(),
        }
    }

    pub fn demand_of(&self, item: usize) -> &[i64] {
        &self.demand[item * self.resources..(item + 1) * self.resources]
    }

    pub fn neighbours_of(&self, item: usize) -> &[Neighbour] {
        &self.neighbours[self.begins[item] as usize..self.begins[item + 1] as usize]
    }

    /// The distances of `place` to all places.
    pub fn distances_of(&self, place: usize) -> &[i32] {
        &self.distances[place * self.places..(place + 1) * self.places]
    }

    /// Whether an item may have this place, as far as the item itself says.
    pub fn may_have(&self, item: usize, place: usize) -> bool {
        let allowed = self.allowed.of_index(item);
        allowed.is_empty() || allowed.binary_search(&(place as u32)).is_ok()
    }

    /// The cost of having moved an item from its start to `place`.
    pub fn moved(&self, item: usize, place: usize) -> Cost {
        let start = self.start[item];
        if start == NOWHERE || start == place as u32 {
            return 0;
        }
        let way = self.relocation.get(start as usize * self.places + place);
        self.move_cost[item] + way.map_or(0, |cost| Cost::from(*cost))
    }
}

/// The ends of all flows, by item; flows between the same items are added.
fn neighbours(items: usize, flows: &[Flow]) -> (Vec<u32>, Vec<Neighbour>) {
    let both = flows
        .iter()
        .filter(|flow| flow.from != flow.to)
        .flat_map(|flow| [(flow.from, flow.to, flow.amount), (flow.to, flow.from, flow.amount)]);
    let mut ends: Vec<(usize, usize, i64)> = both.collect();
    ends.sort_unstable();
    ends.dedup_by(|next, kept| {
        let is_same = (next.0, next.1) == (kept.0, kept.1);
        kept.2 += if is_same { next.2 } else { 0 };
        is_same
    });
    let mut begins = vec![0; items + 1];
    ends.iter().for_each(|(from, ..)| begins[from + 1] += 1);
    (0..items).for_each(|item| begins[item + 1] += begins[item]);
    let neighbour = |(_, to, amount): (usize, usize, i64)| Neighbour { item: to as u32, amount };
    (begins, ends.into_iter().map(neighbour).collect())
}
