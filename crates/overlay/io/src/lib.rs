//! The overlay's devices and sockets, and the threads that move frames between them.
//!
//! * [`plane`]: all of it, as a node uses it.
//! * [`tap`]: a network device with a program that reads and writes its frames. [`socket`]: datagrams, many in
//!   one call.
//! * [`fallback`]: carries datagrams over TLS where UDP is blocked.
//! * [`kernel`]: the kernel's fast path for frames that need no decision.
//! * [`path_limit`]: the device's limit on the length of datagrams.
//! * [`offloads`]: work left to the kernel; `trial`: tests of it before use. [`faults`]: detection of faults in use.
//! * [`peer`]: a node with a session; `peers`: all of them.
//! * `forwarder`: the path of frames from the switch to ports and nodes; `outgoing`, `incoming`: to and from nodes.
//! * [`counters`]: dropped frames; `meters`: the traffic matrix.

pub mod carrier;
pub mod counters;
pub mod fallback;
pub mod faults;
mod forwarder;
mod incoming;
pub mod kernel;
mod lock;
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
