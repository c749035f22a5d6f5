//! Search of small problems: two searches begin, and the better one goes on.
//!
//! Breakout search is better where the costs have a structure, such as clusters of items, and tabu search where they have none.

use crate::breakout::Breakout;
use crate::effort::{Effort, Until};
use crate::neighbourhood::Neighbourhood;
use crate::tabu;

/// The part of the effort that each of both gets.
const TRIAL: f64 = 0.15;

/// Searches until the effort is spent; the best placement.
pub fn run(near: Neighbourhood<'_>, effort: &mut dyn Effort) -> Vec<u32> {
    let (mut one, mut other) = (near.clone(), near);
    let mut breakout = Breakout::new(one.state.problem.items);
    breakout.run(&mut one, &mut Until { effort, limit: TRIAL });
    tabu::run(&mut other, &mut Until { effort, limit: 2.0 * TRIAL });
    if one.best_cost <= other.best_cost {
        breakout.run(&mut one, effort);
    } else {
        tabu::run(&mut other, effort);
    }
    match one.best_cost <= other.best_cost {
        true => one.best,
        false => other.best,
    }
}
