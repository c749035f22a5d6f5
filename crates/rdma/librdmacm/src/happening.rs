//! Internal events of an identifier, before they become events of the program.

use std::sync::Arc;

use cm::{Incoming, Offer, Reason};
use verbs_abi::ibv_gid;

use crate::id::Core;

/// See the module.
#[derive(Clone)]
pub(crate) enum Happening {
    AddressResolved,
    /// With a negative errno.
    AddressFailed(i32),
    RouteResolved,
    /// A connection request to the listening identifier; with the identifier for the connection.
    Requested(Arc<Core>, Box<Incoming>),
    Replied(Box<Offer>),
    Established,
    Rejected(Reason, Vec<u8>),
    /// With a negative errno.
    Unreachable(i32),
    Disconnected,
    TimewaitExit,
    /// With the group, and the context that the program has given.
    Joined(ibv_gid, usize),
    /// With a negative errno.
    JoinFailed(i32, usize),
}
