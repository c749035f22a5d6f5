//! The network device of an instance, and the bridge of its host.
//!
//! * [`link`]: `eth0` in the network namespace of the instance, which is cut and mended in a move;
//! * [`bridge`]: the host's bridge, to which it is plugged unless it is on the overlay;
//! * [`netlink`]: the kernel's messages for both.

pub mod bridge;
pub mod link;
pub mod netlink;
