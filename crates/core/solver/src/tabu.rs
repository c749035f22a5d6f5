//! Robust tabu search: always the best change that does not bring items back to places that they have left lately.
//!
//! Source: É. Taillard, "Robust taboo search for the quadratic assignment problem", 1991, here with shifts beside swaps.

use crate::effort::Effort;
use crate::neighbourhood::{Change, Neighbourhood, Steps};

/// Changes between two looks at the effort.
const TURN: u64 = 16;

/// Which items of a change make it tabu, if they come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recent {
    Any,
    All,
}

/// Searches until the effort is spent.
pub fn run(near: &mut Neighbourhood<'_>, effort: &mut dyn Effort) {
    loop {
        for _ in 0..TURN {
            let Some(change) = change(near, Recent::All).or_else(|| near.random_change()) else { return };
            near.make(change);
            near.keep_best();
        }
        if effort.spent(TURN) >= 1.0 {
            return;
        }
    }
}

/// The best change that is not tabu, or leads to the best placement so far, or brings items to places that they have not had for very
/// long.
pub fn change(near: &mut Neighbourhood<'_>, recent: Recent) -> Option<Change> {
    let items = near.state.problem.items as f64;
    let tenure = (items * (0.9 + 0.2 * near.rng.f64())) as u64;
    let (now, wanted) = (near.changes, (near.best_cost - near.state.cost()) as f64);
    let is_recent = |near: &Neighbourhood<'_>, (item, place): (usize, usize)| {
        let left = near.left(item, place);
        left > 0 && left + tenure > now
    };
    let is_tabu = |near: &Neighbourhood<'_>, steps: Steps| {
        let mut recents = steps.into_iter().flatten().map(|step| is_recent(near, step));
        match recent {
            Recent::Any => recents.any(|is_recent| is_recent),
            Recent::All => recents.all(|is_recent| is_recent),
        }
    };
    let found = near.best_change(|near, delta, steps| delta < wanted || !is_tabu(near, steps));
    found.map(|(_, change)| change)
}
