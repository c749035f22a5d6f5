//! Measures from outside how long an address does not answer: numbered UDP packets every
//! [`INTERVAL`], answered by [`answer`] in the instance that is measured.
//!
//! * [`namespace`]: sockets of another network namespace.
//! * [`gaps`]: what is kept of the answers.
//! * [`Prober`]: the packets.

pub mod gaps;
pub mod namespace;

mod prober;

pub use gaps::{Gap, Gaps};
pub use prober::{INTERVAL, Prober, answer};
