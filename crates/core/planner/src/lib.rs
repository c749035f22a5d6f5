//! Chooses hosts for instances: a function from a [`View`] of the cluster and a [`Goal`] to planned moves, or to a [`Refusal`].
//!
//! All plans have one model of the cluster, with the same constraints and costs. [`plan`] gives new instances, and those that leave their
//! hosts, the cheapest host that is allowed, in the order of the goal; no instance moves to make room for another one. A running cluster gets
//! better by [`improve`]: a search whose moves must pay for themselves. This crate does no IO and reads no clock, so a simulator can plan
//! for thousands of hosts.
//!
//! * [`View`]: hosts, instances and planned moves. [`Loads`]: what they need and have, and their traffic.
//! * [`plan`]: goals of starts, groups and drains. `choice`: the rule by which an instance gets a host.
//! * [`improve`]: the search. `model`: the cluster as a problem of the solver. `units`: instances with one place.

mod choice;
mod goal;
mod improve;
mod load;
mod model;
pub mod price;
mod refusal;
mod units;
mod view;

pub use goal::{Assignment, Goal, Leaving, New, destinations, plan};
pub use improve::{Aim, Bounds, Far, Improvement, Score, Step, improve};
pub use load::{Amounts, Loads, Need, Talk};
pub use refusal::{Refusal, Resource};
pub use view::{Host, Instance, Planned, View};
