//! The move protocol: moves an instance from one host to another; it never runs twice, and is never lost.
//!
//! This crate does no IO. [`Coordinator`] and [`NodeAgent`] take inputs and the time, and
//! return outputs, which the daemons perform. The same code runs in the daemons and, under
//! faults and in virtual time, in the simulator.
//!
//! * [`protocol`]: the messages between coordinator and nodes, with the sequence diagram.
//! * [`journal`]: the coordinator's durable state, and [`entry`]: a node's.
//! * [`placement`]: labels, anti-affinity and the cool-down of an instance.
//! * [`coordinator`]: all moves, locations and epochs; the coordinator alone decides.
//! * [`node`]: the instances of one host; a node turns directives into operations of the engine.
//! * [`progress`]: the events of a move for its user.
//! * `sim` (feature `sim`): the simulator and the exhaustive check.
//!
//! # The contract with the daemons
//! * Outputs are performed in order. A record must be durable before any output after it is
//!   performed; a daemon that cannot write its records stops.
//! * A message may be lost, duplicated, delayed or reordered: directives are sent again until the
//!   node reports that they are fulfilled, and each may be received any number of times.
//! * After a restart the machine is built from its durable state alone; no engine
//!   operation of the daemon's previous process is still running.

pub mod coordinator;
mod due;
pub mod entry;
mod ids;
pub mod journal;
pub mod node;
pub mod placement;
pub mod progress;
pub mod protocol;
#[cfg(any(test, feature = "sim"))]
pub mod sim;

pub use coordinator::Coordinator;
pub use ids::{HostName, InvalidHostName, MoveId, Side};
pub use node::NodeAgent;
