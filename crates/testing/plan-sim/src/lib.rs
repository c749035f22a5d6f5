//! A cluster in virtual time: days of a thousand hosts pass in minutes.
//!
//! The planner, the controller and the coordinator's state machine of moves are the real ones. Simulated are the nodes, which answer directives
//! after a while, the loads, and the tasks of the coordinator between them.
//!
//! * [`cluster`]: hosts and instances. [`pattern`]: how their loads change. [`trace`]: recorded loads.
//! * `nodes`: the nodes' answers, and the memory of hosts. [`world`]: everything together, step by step. `state`: the coordinator's state. `drains`: emptied hosts.
//! * `rules`: what must hold at every move. [`report`]: the figures of a run.

pub mod cluster;
mod drains;
mod nodes;
pub mod pattern;
pub mod report;
mod rules;
mod state;
#[cfg(test)]
mod tests;
pub mod trace;
pub mod world;
