//! The request that a node sends to another node for a link between two processes.

use serde::{Deserialize, Serialize};

use crate::{Epoch, FabricId, InstanceId, ProcessId};

/// A request of `from` for a link to `to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LinkRequest {
    /// The fabric of both.
    pub fabric: FabricId,
    /// The process that asks.
    pub from: ProcessId,
    /// The epoch of the instance that asks.
    pub epoch: Epoch,
    /// The process at the other end.
    pub to: ProcessId,
}

impl LinkRequest {
    /// The instance that asks.
    #[must_use]
    pub fn from_instance(&self) -> InstanceId {
        InstanceId { fabric: self.fabric, vid: self.from.vid }
    }

    /// Whether the asking process opens the link itself: the lower of the two does. A request of the higher one becomes a nudge.
    #[must_use]
    pub fn opens(&self) -> bool {
        self.from < self.to
    }

    /// The instance at the other end.
    #[must_use]
    pub fn to_instance(&self) -> InstanceId {
        InstanceId { fabric: self.fabric, vid: self.to.vid }
    }
}
