//! Descent of large problems: each item's best change, until none lowers the cost.
//!
//! It keeps a placement that is good already, which annealing does not. Its result is where the next descent ends, too, so that a
//! second plan of the same cluster moves nothing.

use crate::effort::Effort;
use crate::problem::Cost;
use crate::state::State;

/// A change of an item's place.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Change {
    Shift { to: usize },
    Swap { other: usize },
}

/// Descends until no change lowers the cost, or the effort is spent. A step is an item with all its changes.
pub fn descend(state: &mut State<'_>, effort: &mut dyn Effort) {
    let mut residents = residents(state);
    loop {
        let before = state.cost();
        for item in 0..state.problem.items {
            if state.most_gain(item) <= 0 {
                continue;
            }
            if let Some((_, change)) = best_change(state, &residents, item) {
                make(state, &mut residents, item, change);
            }
            if effort.spent(1) >= 1.0 {
                return;
            }
        }
        if state.cost() == before {
            return;
        }
    }
}

/// By place: its items.
fn residents(state: &State<'_>) -> Vec<Vec<usize>> {
    let mut residents = vec![Vec::new(); state.problem.places];
    for item in 0..state.problem.items {
        if let Some(place) = state.place_of(item) {
            residents[place].push(item);
        }
    }
    residents
}

/// The shift to any place, or the swap with an item beside one that this item has traffic with, that lowers the cost the most.
fn best_change(state: &mut State<'_>, residents: &[Vec<usize>], item: usize) -> Option<(Cost, Change)> {
    let mut best = None::<(Cost, Change)>;
    let mut offer = |delta: Option<Cost>, change| {
        if let Some(delta) = delta.filter(|delta| *delta < 0) {
            best = Some(best.map_or((delta, change), |best| best.min((delta, change))));
        }
    };
    for to in 0..state.problem.places {
        offer(state.shift_delta(item, to), Change::Shift { to });
    }
    let problem = state.problem;
    for neighbour in problem.neighbours_of(item) {
        let Some(place) = state.place_of(neighbour.item as usize) else { continue };
        for other in &residents[place] {
            offer(state.swap_delta(item, *other), Change::Swap { other: *other });
        }
    }
    best
}

fn make(state: &mut State<'_>, residents: &mut [Vec<usize>], item: usize, change: Change) {
    let mut shift = |state: &mut State<'_>, item: usize, to: usize| {
        if let Some(from) = state.place_of(item) {
            residents[from].retain(|resident| *resident != item);
        }
        residents[to].push(item);
        state.shift(item, to);
    };
    match change {
        Change::Shift { to } => shift(state, item, to),
        Change::Swap { other } => {
            let (Some(from), Some(to)) = (state.place_of(item), state.place_of(other)) else { return };
            shift(state, item, to);
            shift(state, other, from);
        }
    }
}
