//! Items that get places one after the other, each by its caller's choice.

use crate::problem::{Cost, Problem};
use crate::state::State;

/// A placement that grows.
pub struct Insertion<'p> {
    state: State<'p>,
}

impl<'p> Insertion<'p> {
    /// All items at their starts, those without a start nowhere.
    #[must_use]
    pub fn new(problem: &'p Problem) -> Self {
        Self { state: State::new(&problem.0) }
    }

    /// The places that are free for an item, each with the cost that the item adds there.
    #[must_use]
    pub fn free(&mut self, item: usize) -> Vec<(usize, Cost)> {
        free(&mut self.state, item)
    }

    /// Gives an item a place.
    pub fn put(&mut self, item: usize, place: usize) {
        self.state.shift(item, place);
    }
}

/// The places that are free for an item, each with the cost of moving it there.
pub fn free(state: &mut State<'_>, item: usize) -> Vec<(usize, Cost)> {
    (0..state.problem.places).filter_map(|to| Some((to, state.shift_delta(item, to)?))).collect()
}
