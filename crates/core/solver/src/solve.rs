//! The search for a placement.

use fastrand::Rng;

use crate::anneal::anneal;
use crate::compact::{Compact, NOWHERE};
use crate::descent::descend;
use crate::effort::{Effort, Until};
use crate::insertion::free;
use crate::neighbourhood::Neighbourhood;
use crate::problem::{Cost, Problem};
use crate::race;
use crate::state::State;

/// The most entries of the tables of a search that compares all changes in each step.
const SMALL: usize = 100_000;

/// The part of the effort of a large problem that the descent before annealing may take, and that is left for the one after it.
const DESCENT: f64 = 0.1;

/// A place for each item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// By item; `None` if no place is free for it.
    pub places: Vec<Option<usize>>,
    /// The cost.
    pub cost: Cost,
    /// How many sets do not have what they must.
    pub violations: usize,
}

/// Searches for a cheap placement, from the items' starts. The result depends on the seed, and on the effort.
pub fn solve(problem: &Problem, effort: &mut dyn Effort, seed: u64) -> Placement {
    let problem = &problem.0;
    let mut rng = Rng::with_seed(seed);
    let mut state = State::new(problem);
    place_new(&mut state);
    if problem.items == 0 || problem.places < 2 || state.places().contains(&NOWHERE) {
        return placement(&state);
    }
    if is_small(problem) {
        let places = race::run(Neighbourhood::new(state, rng), effort);
        return evaluate_compact(problem, &places);
    }
    descend(&mut state, &mut Until { effort, limit: DESCENT });
    anneal(&mut state, &mut Until { effort, limit: 1.0 - DESCENT }, &mut rng);
    descend(&mut state, effort);
    placement(&state)
}

/// The cost of a placement that the caller has.
#[must_use]
pub fn evaluate(problem: &Problem, places: &[Option<usize>]) -> Placement {
    let places: Vec<u32> = places.iter().map(|place| place.map_or(NOWHERE, |place| place as u32)).collect();
    evaluate_compact(&problem.0, &places)
}

fn evaluate_compact(problem: &Compact, places: &[u32]) -> Placement {
    let mut state = State::new(problem);
    for (item, place) in places.iter().enumerate().filter(|(_, place)| **place != NOWHERE) {
        state.shift(item, *place as usize);
    }
    placement(&state)
}

fn placement(state: &State<'_>) -> Placement {
    Placement {
        places: (0..state.problem.items).map(|item| state.place_of(item)).collect(),
        cost: state.cost(),
        violations: state.sets().violations(state.problem),
    }
}

fn is_small(problem: &Compact) -> bool {
    problem.items * problem.places.max(problem.items) <= SMALL
}

/// Gives each new item the cheapest place that is free for it, the most demanding items first.
fn place_new(state: &mut State<'_>) {
    let problem = state.problem;
    let mut new: Vec<usize> = (0..problem.items).filter(|item| state.place_of(*item).is_none()).collect();
    // A share of the largest capacity, since resources have different units.
    let largest: Vec<i64> = (0..problem.resources)
        .map(|resource| {
            (0..problem.places)
                .map(|place| problem.capacity[place * problem.resources + resource])
                .max()
                .unwrap_or(1)
                .max(1)
        })
        .collect();
    let size = |item: &usize| {
        let shares =
            problem.demand_of(*item).iter().zip(&largest).map(|(demand, most)| *demand as f64 / *most as f64);
        shares.fold(0.0, f64::max)
    };
    new.sort_by(|one, other| size(other).total_cmp(&size(one)).then(one.cmp(other)));
    for item in new {
        if let Some((to, _)) = free(state, item).into_iter().min_by_key(|(to, delta)| (*delta, *to)) {
            state.shift(item, to);
        }
    }
}
