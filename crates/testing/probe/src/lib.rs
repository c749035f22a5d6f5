//! Measures from outside how long an address is unreachable: numbered packets every [`INTERVAL`], over
//! UDP, which [`answer`] in the measured instance returns, or echo requests to its kernel; and requests
//! over TCP. The program `probe-answer` answers those over UDP and TCP.
//!
//! * [`namespace`]: sockets of another network namespace.
//! * [`gaps`]: the recorded times without an answer.
//! * [`Prober`]: the packets, in either `form`. [`requests`]: the requests.

pub mod gaps;
pub mod namespace;
pub mod requests;

mod form;
mod prober;

pub use gaps::{Gap, Gaps};
pub use prober::{INTERVAL, Prober, answer};
pub use requests::Requester;
