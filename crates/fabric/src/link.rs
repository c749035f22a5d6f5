//! What nodes ask each other for, when a process of one host wants a link to a process of another one.

use serde::{Deserialize, Serialize};

use crate::{Epoch, FabricId, InstanceId, ProcessId};

/// A link that `from` wants to `to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LinkRequest {
    /// The fabric of both.
    pub fabric: FabricId,
    /// Who asks.
    pub from: ProcessId,
    /// The epoch of the instance that asks.
    pub epoch: Epoch,
    /// Who is wanted.
    pub to: ProcessId,
}

impl LinkRequest {
    /// The instance that asks.
    #[must_use]
    pub fn from_instance(&self) -> InstanceId {
        InstanceId { fabric: self.fabric, vid: self.from.vid }
    }

    /// Whether the one that asks is the one of the two that opens links: the lower one. The other one's wish is passed on to it.
    #[must_use]
    pub fn opens(&self) -> bool {
        self.from < self.to
    }

    /// The instance that is wanted.
    #[must_use]
    pub fn to_instance(&self) -> InstanceId {
        InstanceId { fabric: self.fabric, vid: self.to.vid }
    }
}
