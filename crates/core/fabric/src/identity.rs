//! Identities in a fabric, and how an application sees them.
//!
//! ```text
//! LID  (16 bit) = VID
//! GID (128 bit) = fe80:0000:FFFF:FFFF : 7472:6100:0000:VVVV     F = fabric, V = VID
//! QPN  (24 bit) = process index (8) : number in the process (16)
//! ```
//!
//! An application sends LID (or GID) and QPN to its peer by its own means. So these alone
//! must lead to the peer, wherever it has moved.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A tenant's RDMA address space. Instances of different fabrics never reach each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FabricId(pub u32);

/// Counts an instance's moves. A location is valid with its epoch, and the higher epoch wins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Epoch(pub u64);

impl Epoch {
    /// The epoch after one more move.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// An instance's identity, unique in its fabric. Applications see it as the port's LID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u16", into = "u16")]
pub struct Vid(u16);

/// A number that is not a unicast LID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} is not the VID of an instance")]
pub struct NoVid(u16);

impl TryFrom<u16> for Vid {
    type Error = NoVid;

    fn try_from(lid: u16) -> Result<Self, NoVid> {
        Self::new(lid).ok_or(NoVid(lid))
    }
}

impl From<Vid> for u16 {
    fn from(vid: Vid) -> Self {
        vid.lid()
    }
}

impl Vid {
    /// The largest unicast LID of InfiniBand.
    pub const MAX: u16 = 0xbfff;

    /// `None` if `lid` is not a unicast LID (0 is reserved; multicast begins at 0xc000).
    #[must_use]
    pub fn new(lid: u16) -> Option<Self> {
        (1..=Self::MAX).contains(&lid).then_some(Self(lid))
    }

    /// The LID under which applications see this instance.
    #[must_use]
    pub fn lid(self) -> u16 {
        self.0
    }

    /// The port's GID, in network byte order.
    #[must_use]
    pub fn gid(self, fabric: FabricId) -> [u8; 16] {
        let mut gid = [0; 16];
        gid[..4].copy_from_slice(&[0xfe, 0x80, 0, 0]);
        gid[4..8].copy_from_slice(&fabric.0.to_be_bytes());
        gid[8..].copy_from_slice(&self.guid());
        gid
    }

    /// The port's GUID, in network byte order: the lower half of its GID.
    #[must_use]
    pub fn guid(self) -> [u8; 8] {
        let [high, low] = self.0.to_be_bytes();
        [b't', b'r', b'a', 0, 0, 0, high, low]
    }

    /// The instance that a GID of `fabric` names, if the GID is an instance's.
    #[must_use]
    pub fn from_gid(gid: [u8; 16], fabric: FabricId) -> Option<Self> {
        let vid = Self::new(u16::from_be_bytes([gid[14], gid[15]]))?;
        (vid.gid(fabric) == gid).then_some(vid)
    }
}

impl fmt::Display for Vid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#06x}", self.0)
    }
}

/// A process that uses verbs: the end of a reliable stream. It keeps its index for life,
/// also when its instance moves, since the index is part of its QPNs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ProcessId {
    /// The instance to which the process belongs.
    pub vid: Vid,
    /// The index of the process in its instance: 1 to 255. 0 is unused, so that QPNs 0 and 1 stay reserved.
    pub index: u8,
}

impl ProcessId {
    /// The QPN of this process' QP number `number`.
    #[must_use]
    pub fn qpn(self, number: u16) -> u32 {
        u32::from(self.index) << 16 | u32::from(number)
    }

    /// The process that owns `qpn` in the instance `vid`; `None` for a reserved or invalid QPN.
    #[must_use]
    pub fn of_qpn(vid: Vid, qpn: u32) -> Option<Self> {
        let index = u8::try_from(qpn >> 16).ok()?;
        (index != 0).then_some(Self { vid, index })
    }
}

impl fmt::Display for ProcessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.vid, self.index)
    }
}

/// An instance in all fabrics of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct InstanceId {
    /// Its fabric.
    pub fabric: FabricId,
    /// Its VID in that fabric.
    pub vid: Vid,
}

impl fmt::Display for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.fabric.0, self.vid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gid_names_its_instance_in_its_own_fabric_only() {
        let vid = Vid::new(0x1234).unwrap();
        let gid = vid.gid(FabricId(7));
        assert_eq!(Vid::from_gid(gid, FabricId(7)), Some(vid));
        assert_eq!(Vid::from_gid(gid, FabricId(8)), None);
    }

    #[test]
    fn reserved_lids_are_not_vids() {
        assert_eq!(Vid::new(0), None);
        assert_eq!(Vid::new(0xc000), None);
        assert_eq!(Vid::new(0xbfff).map(Vid::lid), Some(0xbfff));
    }

    #[test]
    fn a_qpn_leads_back_to_its_process() {
        let process = ProcessId { vid: Vid::new(3).unwrap(), index: 255 };
        assert_eq!(ProcessId::of_qpn(process.vid, process.qpn(9)), Some(process));
        assert_eq!(ProcessId::of_qpn(process.vid, 1), None);
        assert_eq!(ProcessId::of_qpn(process.vid, 1 << 24), None);
    }
}
