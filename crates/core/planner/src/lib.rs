//! Chooses hosts for instances: a function from a [`View`] of the cluster and a [`Goal`] to planned moves, or to a [`Refusal`].
//!
//! The rule is simple: each instance goes to the emptiest host that is allowed for it, in the order of the goal. No instance moves
//! to make room for another one. This crate does no IO and reads no clock, so a simulator can plan for thousands of hosts.
//!
//! * [`View`]: hosts, instances and planned moves.
//! * [`plan`]: the rule.

mod goal;
mod refusal;
mod view;

pub use goal::{Assignment, Goal, Leaving, New, plan};
pub use refusal::Refusal;
pub use view::{Host, Instance, Planned, View};
