//! Search of large problems: random changes, of which worse ones are accepted the less the longer the search goes on.

use fastrand::Rng;

use crate::effort::Effort;
use crate::problem::Cost;
use crate::state::State;

/// Steps between two looks at the effort.
const TURN: u64 = 2048;

/// How many changes are drawn for the first temperature.
const SAMPLES: usize = 20_000;

/// The first temperature, in mean costs of random changes for the worse: a few changes cost far more than most, and decide.
const FIRST: f64 = 30.0;

/// The last temperature, as a quantile of those costs.
const LAST: f64 = 0.01;

/// The least steps for each item. Fewer only scatter a placement that is good already.
const LEAST_STEPS: f64 = 500.0;

/// Searches until the effort is spent, if that is enough. The result is never worse than the start.
pub fn anneal(state: &mut State<'_>, effort: &mut dyn Effort, rng: &mut Rng) {
    let (start, start_cost) = (state.places().to_vec(), state.cost());
    let losses = losses(state, rng);
    let mean = losses.iter().sum::<Cost>() as f64 / losses.len().max(1) as f64;
    let least = losses.get((losses.len() as f64 * LAST) as usize).map_or(1.0, |loss| *loss as f64);
    let (first, last) = (mean * FIRST, least);
    let mut best = (start_cost, start);
    let mut spent = effort.spent(0);
    let begun = spent;
    while spent < 1.0 {
        let temperature = first * (last / first).powf((spent - begun) / (1.0 - begun));
        for _ in 0..TURN {
            let bound = (-temperature * rng.f64().max(f64::MIN_POSITIVE).ln()) as Cost;
            step(state, bound, rng);
        }
        if spent > 0.5 && state.cost() < best.0 {
            best = (state.cost(), state.places().to_vec());
        }
        let before = spent;
        spent = effort.spent(TURN);
        let steps = TURN as f64 * (1.0 - begun) / (spent - before);
        if before == begun && steps < LEAST_STEPS * state.problem.items as f64 {
            break;
        }
    }
    if best.0 < state.cost() {
        for (item, place) in best.1.iter().enumerate() {
            state.shift(item, *place as usize);
        }
    }
}

/// One random change, if it costs at most `bound`.
fn step(state: &mut State<'_>, bound: Cost, rng: &mut Rng) {
    let (items, places) = (state.problem.items, state.problem.places);
    let item = rng.usize(..items);
    match rng.u8(..) {
        ..128 => {
            let to = wish(state, item, rng).unwrap_or_else(|| rng.usize(..places));
            if state.shift_delta(item, to).is_some_and(|delta| delta <= bound) {
                state.shift(item, to);
            }
        }
        _ => {
            let other = rng.usize(..items);
            if state.swap_delta(item, other).is_some_and(|delta| delta <= bound) {
                state.swap(item, other);
            }
        }
    }
}

/// The place of an item that it has traffic with, half of the time.
fn wish(state: &State<'_>, item: usize, rng: &mut Rng) -> Option<usize> {
    let neighbours = state.problem.neighbours_of(item);
    if neighbours.is_empty() || rng.bool() {
        return None;
    }
    state.place_of(neighbours[rng.usize(..neighbours.len())].item as usize)
}

/// The costs of random changes for the worse, in ascending order.
fn losses(state: &mut State<'_>, rng: &mut Rng) -> Vec<Cost> {
    let (items, places) = (state.problem.items, state.problem.places);
    let mut change = |_| match rng.bool() {
        true => state.shift_delta(rng.usize(..items), rng.usize(..places)),
        false => state.swap_delta(rng.usize(..items), rng.usize(..items)),
    };
    let mut losses: Vec<Cost> = (0..SAMPLES).filter_map(&mut change).filter(|delta| *delta > 0).collect();
    losses.sort_unstable();
    losses
}
