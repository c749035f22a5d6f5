//! Measures from outside how long an address is unreachable: numbered UDP packets every
//! [`INTERVAL`], which [`answer`] in the measured instance returns.
//!
//! * [`namespace`]: sockets of another network namespace.
//! * [`gaps`]: the recorded times without an answer.
//! * [`Prober`]: the packets.

pub mod gaps;
pub mod namespace;

mod prober;

pub use gaps::{Gap, Gaps};
pub use prober::{INTERVAL, Prober, answer};
