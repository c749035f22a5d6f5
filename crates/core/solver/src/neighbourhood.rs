//! All changes of a placement, compared at once.

use fastrand::Rng;

use crate::attraction::Attraction;
use crate::exchange::Exchange;
use crate::problem::Cost;
use crate::state::State;

/// A change of a placement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Shift { item: usize, to: usize },
    Swap { one: usize, other: usize },
}

/// The items of a change with their new places.
pub type Steps = [Option<(usize, usize)>; 2];

/// The best change so far; a random one of equals.
struct Best {
    delta: f64,
    change: Option<Change>,
    ties: u32,
}

impl Default for Best {
    fn default() -> Self {
        Self { delta: f64::INFINITY, change: None, ties: 0 }
    }
}

impl Best {
    fn offer(&mut self, rng: &mut Rng, delta: f64, change: Change) {
        if delta < self.delta {
            *self = Self { delta, change: Some(change), ties: 0 };
        } else if delta == self.delta {
            self.ties += 1;
            if rng.u32(..=self.ties) == 0 {
                self.change = Some(change);
            }
        }
    }
}

/// What makes the cost of traffic of all changes cheap to compute.
#[derive(Clone)]
enum Traffic {
    /// If nothing but swaps is possible.
    Swaps(Exchange),
    Any(Attraction),
}

/// A placement that changes, and the best one so far.
#[derive(Clone)]
pub struct Neighbourhood<'p> {
    pub state: State<'p>,
    traffic: Traffic,
    /// Whether a swap changes nothing but the cost of traffic, and is always allowed.
    swaps_are_free: bool,
    /// By item and place: the number of the change by which it last left that place, from 1.
    left: Vec<u64>,
    /// How many changes were made.
    pub changes: u64,
    pub best: Vec<u32>,
    pub best_cost: Cost,
    pub rng: Rng,
    /// A row of changes, kept for its allocation.
    row: Vec<f64>,
}

impl<'p> Neighbourhood<'p> {
    pub fn new(state: State<'p>, rng: Rng) -> Self {
        let (problem, best, best_cost) = (state.problem, state.places().to_vec(), state.cost());
        let is_alike = (1..problem.items).all(|item| problem.demand_of(item) == problem.demand_of(0));
        let is_free = |item: usize| {
            problem.sets_of.of_index(item).is_empty()
                && problem.allowed.of_index(item).is_empty()
                && problem.move_cost[item] == 0
        };
        let swaps_are_free = is_alike
            && problem.relocation.is_empty()
            && !problem.has_transient
            && (0..problem.items).all(is_free);
        Self {
            traffic: match swaps_are_free && (0..problem.places).all(|place| !state.may_have_room(place)) {
                true => Traffic::Swaps(Exchange::of(problem, state.places())),
                false => Traffic::Any(Attraction::of(&state)),
            },
            swaps_are_free,
            left: vec![0; problem.items * problem.places],
            row: Vec::new(),
            changes: 0,
            best,
            best_cost,
            state,
            rng,
        }
    }

    /// Keeps the placement if it is the best so far; whether it is.
    pub fn keep_best(&mut self) -> bool {
        let is_better = self.state.cost() < self.best_cost;
        if is_better {
            self.best_cost = self.state.cost();
            self.best.copy_from_slice(self.state.places());
        }
        is_better
    }

    /// The number of the last change by which an item left a place; 0 if it never was there.
    pub fn left(&self, item: usize, place: usize) -> u64 {
        self.left[item * self.state.problem.places + place]
    }

    /// The exchange of the two items whose places were theirs the longest ago.
    pub fn oldest_change(&mut self) -> Option<Change> {
        let (places, left) = (self.state.problem.places, std::mem::take(&mut self.left));
        let mut oldest = None;
        for one in 0..self.state.problem.items {
            for other in 0..one {
                let (Some(from), Some(to)) = (self.state.place_of(one), self.state.place_of(other)) else {
                    continue;
                };
                let age = left[one * places + to].max(left[other * places + from]);
                if oldest.is_none_or(|(least, _)| age < least)
                    && (self.swaps_are_free && from != to || self.state.swap_delta(one, other).is_some())
                {
                    oldest = Some((age, Change::Swap { one, other }));
                }
            }
        }
        self.left = left;
        oldest.map(|(_, change)| change)
    }

    /// A random change that is allowed.
    pub fn random_change(&mut self) -> Option<Change> {
        const TRIES: usize = 200;
        let (items, places) = (self.state.problem.items, self.state.problem.places);
        (0..TRIES).find_map(|number| {
            let (one, other, to) =
                (self.rng.usize(..items), self.rng.usize(..items), self.rng.usize(..places));
            match number % 2 {
                0 => self.state.swap_delta(one, other).map(|_| Change::Swap { one, other }),
                _ => self.state.shift_delta(one, to).map(|_| Change::Shift { item: one, to }),
            }
        })
    }

    /// The best of all changes which `suits`, given its cost and the items with their new places; a random one of equals.
    pub fn best_change(&mut self, suits: impl Fn(&Self, f64, Steps) -> bool) -> Option<(f64, Change)> {
        let items = self.state.problem.items;
        let open = self.open_places();
        let mut best = Best::default();
        let mut row = std::mem::take(&mut self.row);
        for one in 0..items {
            let from = self.state.places()[one] as usize;
            for to in &open {
                let Traffic::Any(attraction) = &self.traffic else { break };
                if let Some(local) = self.state.shift_delta_without_traffic(one, *to) {
                    let delta = local as f64 + attraction.shift_delta(one, from, *to);
                    if suits(self, delta, [Some((one, *to)), None]) {
                        best.offer(&mut self.rng, delta, Change::Shift { item: one, to: *to });
                    }
                }
            }
            match &self.traffic {
                Traffic::Swaps(exchange) => exchange.swap_deltas(one, &mut row),
                Traffic::Any(attraction) => {
                    attraction.swap_deltas(one, from, self.state.places(), &mut row);
                }
            }
            for (other, traffic) in row.iter().enumerate() {
                let delta = match self.swaps_are_free {
                    true => *traffic,
                    false => match self.state.swap_delta_without_traffic(one, other) {
                        Some(local) => *traffic + local as f64,
                        None => continue,
                    },
                };
                if delta > best.delta {
                    continue;
                }
                let to = self.state.places()[other] as usize;
                if from != to && suits(self, delta, [Some((one, to)), Some((other, from))]) {
                    best.offer(&mut self.rng, delta, Change::Swap { one, other });
                }
            }
        }
        self.row = row;
        best.change.map(|change| (best.delta, change))
    }

    /// The places into which the least demanding item might fit.
    fn open_places(&self) -> Vec<usize> {
        (0..self.state.problem.places).filter(|place| self.state.may_have_room(*place)).collect()
    }

    /// Makes a change.
    pub fn make(&mut self, change: Change) {
        self.changes += 1;
        match change {
            Change::Shift { item, to } => self.shift(item, to),
            Change::Swap { one, other } => {
                let (Some(from), Some(to)) = (self.state.place_of(one), self.state.place_of(other)) else {
                    return;
                };
                self.shift(one, to);
                self.shift(other, from);
                if let Traffic::Swaps(exchange) = &mut self.traffic {
                    exchange.swapped(one, other);
                }
            }
        }
    }

    fn shift(&mut self, item: usize, to: usize) {
        let from = self.state.places()[item];
        self.left[item * self.state.problem.places + from as usize] = self.changes;
        self.state.shift(item, to);
        if let Traffic::Any(attraction) = &mut self.traffic {
            attraction.shifted(&self.state, item, from, to as u32);
        }
    }
}
