//! The overlay's devices and sockets.
//!
//! * [`tap`]: a network device whose frames a program reads and writes.
//! * [`socket`]: datagrams between nodes, many in one call.

pub mod socket;
pub mod tap;
