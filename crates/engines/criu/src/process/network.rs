//! The network device of an instance.
//!
//! * [`link`]: `eth0` in the instance's network namespace, which a move cuts and mends;
//! * [`bridge`]: the host's bridge;
//! * [`netlink`]: netlink messages for both.

pub mod bridge;
pub mod link;
pub mod netlink;
