//! Chooses hosts for instances: a function from a [`View`] of the cluster and a [`Goal`] to planned moves, or to a [`Refusal`].
//!
//! The rule is simple: each instance goes to the emptiest host that is allowed for it, in the order of the goal. No instance moves
//! to make room for another one. This crate does no IO and reads no clock, so a simulator can plan for thousands of hosts.
//!
//! A running cluster gets better by [`improve`]: a search over processors, memory and traffic, whose moves must pay for themselves.
//!
//! * [`View`]: hosts, instances and planned moves. [`Loads`]: what they need and have, and their traffic.
//! * [`plan`]: the rule. [`improve`]: the search.

mod goal;
mod improve;
mod load;
mod refusal;
mod view;

pub use goal::{Assignment, Goal, Leaving, New, plan};
pub use improve::{Aim, Bounds, Improvement, Score, Step, improve};
pub use load::{Amounts, Loads, Need, Talk};
pub use refusal::Refusal;
pub use view::{Host, Instance, Planned, View};
