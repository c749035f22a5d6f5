//! The overlay's devices and sockets, and the threads that move frames between them.
//!
//! * [`plane`]: all of it, as a node uses it.
//! * [`tap`]: a network device whose frames a program reads and writes. [`socket`]: datagrams, many in one call.
//! * [`fallback`]: another way for datagrams, where those of a socket do not arrive.
//! * [`kernel`]: what carries frames where nothing has to be decided.
//! * [`path_limit`]: how long a datagram may be.
//! * [`offloads`]: what is left to the kernel; `trial`: whether it does that right. [`faults`]: what is found to be wrong later.
//! * [`peer`]: a node that this one speaks to; `peers`: all of them.
//! * `forwarder`: one thread's way from the switch to ports and nodes; `outgoing`, `incoming`: to and from nodes.
//! * [`counters`]: what went nowhere; `meters`: who sends how much to whom.

pub mod counters;
pub mod fallback;
pub mod faults;
mod forwarder;
mod incoming;
pub mod kernel;
mod meters;
pub mod offloads;
mod outgoing;
pub mod path_limit;
pub mod peer;
mod peers;
pub mod plane;
pub mod socket;
pub mod tap;
mod trial;
