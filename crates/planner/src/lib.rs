//! Where instances go: a function from a [`View`] of the cluster and a [`Goal`] to planned moves, or to a [`Refusal`].
//!
//! The rule is simple: each instance takes the emptiest host that is allowed for it, in the order of the goal. No instance changes
//! places to make room for another one. Nothing here does IO or reads a clock, so a simulator can plan for thousands of hosts.
//!
//! * [`View`]: hosts, instances and moves that are planned already.
//! * [`plan`]: the rule.

mod goal;
mod refusal;
mod view;

pub use goal::{Assignment, Goal, Leaving, New, plan};
pub use refusal::Refusal;
pub use view::{Host, Instance, Planned, View};
