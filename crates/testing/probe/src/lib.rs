//! Measures from outside how long an address is unreachable: numbered UDP packets every
//! [`INTERVAL`], which [`answer`] in the measured instance returns; and requests over TCP. The
//! program `probe-answer` answers both.
//!
//! * [`namespace`]: sockets of another network namespace.
//! * [`gaps`]: the recorded times without an answer.
//! * [`Prober`]: the packets. [`requests`]: the requests.

pub mod gaps;
pub mod namespace;
pub mod requests;

mod prober;

pub use gaps::{Gap, Gaps};
pub use prober::{INTERVAL, Prober, answer};
pub use requests::Requester;
