//! The move protocol: how an instance gets from one host to another, never twice and never lost.
//!
//! Nothing here does IO. [`Coordinator`] and [`NodeAgent`] take what happened and the time, and
//! answer with what is to be done; the daemons do it. The same code runs in the daemons and, under
//! faults and in virtual time, in the simulator.
//!
//! * [`protocol`]: the messages between coordinator and nodes, with the sequence diagram.
//! * [`journal`]: what the coordinator must remember, and [`entry`]: what a node must.
//! * [`placement`]: which instances may share a host.
//! * [`coordinator`]: all moves, locations and epochs; it alone decides.
//! * [`node`]: the instances of one host; it turns directives into operations of the engine.
//! * [`progress`]: what a user sees of a move.
//! * `sim` (feature `sim`): the simulator and the exhaustive check.
//!
//! # The contract with the daemons
//! * Outputs are acted on in their order. A record must be durable before anything behind it is
//!   done; a daemon that cannot write its records stops.
//! * A message may be lost, doubled, late or out of order: directives are sent again until the
//!   node reports that they are fulfilled, and each can be received any number of times.
//! * After a restart the machine is built from its durable state alone; the engine has no
//!   operation of the daemon's former life still at work.

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
