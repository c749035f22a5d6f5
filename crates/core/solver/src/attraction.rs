//! The cost of traffic of each item at each place, for small problems.
//!
//! `costs[item][place] = Σ neighbours  amount × distance(place, place of the neighbour)`. The change of the cost of traffic by any shift or
//! swap follows from four of these. A shift updates the rows of the item's neighbours.

use crate::compact::NOWHERE;
use crate::state::State;

/// The table. Sums up to 2^53 are exact.
#[derive(Clone, Debug)]
pub struct Attraction {
    items: usize,
    places: usize,
    /// By item and place.
    costs: Vec<f64>,
    /// By place and item: the same.
    costs_by_place: Vec<f64>,
    /// By item: the cost where it is.
    now: Vec<f64>,
    /// By both items: the amount of traffic between them.
    amounts: Vec<f64>,
    distances: Vec<f64>,
    difference: Vec<f64>,
}

impl Attraction {
    /// The table of a placement of all items.
    pub fn of(state: &State<'_>) -> Self {
        let problem = state.problem;
        let (items, places) = (problem.items, problem.places);
        let mut amounts = vec![0.0; items * items];
        for item in 0..items {
            for neighbour in problem.neighbours_of(item) {
                amounts[item * items + neighbour.item as usize] = neighbour.amount as f64;
            }
        }
        let mut distances = vec![0.0; places * places];
        let known = distances.iter_mut().zip(&problem.distances);
        known.for_each(|(to, distance)| *to = f64::from(*distance));
        let mut table = Self {
            items,
            places,
            costs: vec![0.0; items * places],
            costs_by_place: vec![0.0; items * places],
            now: vec![0.0; items],
            amounts,
            distances,
            difference: vec![0.0; places],
        };
        for (item, at) in state.places().iter().enumerate() {
            table.shifted(state, item, NOWHERE, *at);
        }
        table
    }

    /// The change of the cost of traffic if an item shifts.
    pub fn shift_delta(&self, item: usize, from: usize, to: usize) -> f64 {
        let costs = &self.costs[item * self.places..];
        costs[to] - costs[from]
    }

    /// The changes of the cost of traffic if `one`, which is at `from`, exchanges its place with each of the items before it.
    pub fn swap_deltas(&self, one: usize, from: usize, at: &[u32], deltas: &mut Vec<f64>) {
        let (items, places) = (self.items, self.places);
        let costs = &self.costs[one * places..(one + 1) * places];
        let distances = &self.distances[from * places..(from + 1) * places];
        let there = self.costs_by_place[from * items..from * items + one].iter().zip(&self.now[..one]);
        let amounts = &self.amounts[one * items..one * items + one];
        let own = costs[from];
        let delta = |((at, amount), (there, now)): ((&u32, &f64), (&f64, &f64))| {
            let at = *at as usize;
            costs[at] - own + there - now + 2.0 * amount * distances[at]
        };
        deltas.clear();
        deltas.extend(at[..one].iter().zip(amounts).zip(there).map(delta));
    }

    /// Updates the table after an item has shifted.
    pub fn shifted(&mut self, state: &State<'_>, item: usize, from: u32, to: u32) {
        let places = self.places;
        let row = |place: u32| &self.distances[place as usize * places..(place as usize + 1) * places];
        if to == NOWHERE {
            return;
        }
        match from {
            NOWHERE => self.difference.copy_from_slice(row(to)),
            from => {
                let both = row(to).iter().zip(row(from));
                self.difference.iter_mut().zip(both).for_each(|(cost, (to, from))| *cost = to - from);
            }
        }
        let items = self.items;
        for neighbour in state.problem.neighbours_of(item) {
            let begin = neighbour.item as usize * places;
            let amount = neighbour.amount as f64;
            let costs = self.costs[begin..begin + places].iter_mut();
            costs.zip(&self.difference).for_each(|(cost, difference)| *cost += amount * difference);
        }
        let amounts = &self.amounts[item * items..(item + 1) * items];
        for (place, difference) in self.difference.iter().enumerate() {
            let costs = self.costs_by_place[place * items..(place + 1) * items].iter_mut();
            costs.zip(amounts).for_each(|(cost, amount)| *cost += amount * difference);
        }
        for (item, (now, at)) in self.now.iter_mut().zip(state.places()).enumerate() {
            *now = self.costs[item * places + *at as usize];
        }
    }
}
