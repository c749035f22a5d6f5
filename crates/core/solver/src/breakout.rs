//! Descents to local optima, and perturbations that grow as long as a descent ends where the last one did.
//!
//! Source: U. Benlic and J.-K. Hao, "Breakout local search for the quadratic assignment problem", 2013, here with shifts beside swaps.

use crate::effort::Effort;
use crate::neighbourhood::Neighbourhood;
use crate::problem::Cost;
use crate::tabu::{self, Recent};

/// The local optima without a better one after which a perturbation is strong.
const PATIENCE: u32 = 2500;

/// The least probability of a perturbation that avoids recent places.
const LEAST_TABU: f64 = 0.75;

/// The share of the others that chooses the least recently moved items.
const RECENCY: f64 = 0.3;

/// The least perturbation, as a part of all items.
const LEAST_JUMP: f64 = 0.15;

/// What a search remembers between its turns.
pub struct Breakout {
    last_cost: Option<Cost>,
    least: usize,
    jump: usize,
    /// Local optima since the last best one.
    without: u32,
}

impl Breakout {
    pub fn new(items: usize) -> Self {
        let least = ((items as f64 * LEAST_JUMP).ceil() as usize).max(2);
        Self { last_cost: None, least, jump: least, without: 0 }
    }

    /// Searches until the effort is spent.
    pub fn run(&mut self, near: &mut Neighbourhood<'_>, effort: &mut dyn Effort) {
        loop {
            let begun = near.changes;
            descend(near);
            self.without = if near.keep_best() { 0 } else { self.without + 1 };
            self.choose_jump(near);
            self.perturb(near);
            if effort.spent((near.changes - begun).max(1)) >= 1.0 {
                return;
            }
        }
    }

    fn choose_jump(&mut self, near: &Neighbourhood<'_>) {
        let cost = near.state.cost();
        self.jump = match self.last_cost == Some(cost) {
            true => (self.jump + 1).min(near.state.problem.items),
            false => self.least,
        };
        self.last_cost = Some(cost);
    }

    fn perturb(&mut self, near: &mut Neighbourhood<'_>) {
        let is_strong = self.without > PATIENCE;
        let jump = if is_strong { near.state.problem.items } else { self.jump };
        let tabu = (-f64::from(self.without) / f64::from(PATIENCE)).exp().max(LEAST_TABU);
        let draw = near.rng.f64();
        for _ in 0..jump {
            let change = match draw {
                _ if is_strong => near.random_change(),
                draw if draw < tabu => tabu::change(near, Recent::Any),
                draw if draw < tabu + (1.0 - tabu) * RECENCY => near.oldest_change(),
                _ => near.random_change(),
            };
            let Some(change) = change.or_else(|| near.random_change()) else { return };
            near.make(change);
            near.keep_best();
        }
        self.without = if is_strong { 0 } else { self.without };
    }
}

/// Makes the best change as long as it lowers the cost.
fn descend(near: &mut Neighbourhood<'_>) {
    while let Some((delta, change)) = near.best_change(|_, _, _| true)
        && delta < 0.0
    {
        near.make(change);
    }
}
