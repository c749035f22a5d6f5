//! Finds cheap placements of items at places, by local search from a given placement. It does no IO and reads no clock.
//!
//! * [`problem`]: what a problem is made of. [`effort`]: how long a search goes on.
//! * [`solve`]: the search. `race` searches small problems, by `breakout` or `tabu`; `descent` and `anneal` search large ones.
//! * [`Insertion`]: places for new items, one after the other, by the caller's choice.
//! * [`order`]: an order of moves to a placement.
//! * `compact`: a problem in flat arrays. `state`: a placement with its cost. `sets`: constraints of sets. `attraction` and `exchange`: traffic as a table.

mod anneal;
mod attraction;
mod breakout;
mod compact;
mod descent;
pub mod effort;
mod exchange;
mod insertion;
mod neighbourhood;
pub mod order;
pub mod problem;
mod race;
mod sets;
mod solve;
mod state;
mod tabu;

pub use insertion::Insertion;
pub use solve::{Placement, evaluate, solve};
