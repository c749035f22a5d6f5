//! Address handles: the destinations of datagrams.

use fabric::{FabricId, Vid};

use crate::attr::{AddressVector, GlobalRoute};
use crate::groups::GroupId;
use crate::handle::Pd;

/// An address handle.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AddressHandle {
    pub pd: Pd,
    pub to: Address,
    /// Datagrams carry a global route.
    pub has_route: bool,
    pub way: Way,
}

/// Service level, traffic class and flow label of datagrams, as the receiver's completion reports them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Way {
    /// Service level, of 4 bits.
    pub sl: u8,
    /// Traffic class, of a global route.
    pub traffic_class: u8,
    /// Flow label of 20 bits, of a global route.
    pub flow_label: u32,
    /// Hop limit, of a global route. No hop decrements it.
    pub hop_limit: u8,
}

impl Way {
    /// All but the hop limit, as a header has it.
    pub fn word(self) -> u32 {
        u32::from(self.sl) << 28 | u32::from(self.traffic_class) << 20 | self.flow_label & 0x000f_ffff
    }

    /// Decodes a [`Self::word`] and a hop limit.
    pub fn of_word(word: u32, hop_limit: u8) -> Self {
        let [sl, traffic_class] = [28, 20].map(|shift| (word >> shift) as u8);
        Self { sl, traffic_class, flow_label: word & 0x000f_ffff, hop_limit }
    }
}

/// The destination of an address handle.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Address {
    Instance(Vid),
    Group(GroupId),
}

impl AddressVector {
    /// Whether the own GID that it names is there: there is one.
    pub(crate) fn has_known_source(&self) -> bool {
        self.global.is_none_or(|route| route.sgid_index == 0)
    }

    /// The instance at this address, if one can have it: by GID where there is one, else by LID.
    pub(crate) fn instance(&self, fabric: FabricId) -> Option<Vid> {
        let by_gid = self.global.and_then(|route| Vid::from_gid(route.dgid, fabric));
        by_gid.or_else(|| Vid::new(self.dlid))
    }

    /// The traffic attributes of datagrams to this address.
    pub(crate) fn way(&self) -> Way {
        let GlobalRoute { traffic_class, flow_label, hop_limit, .. } = self.global.unwrap_or_default();
        Way { sl: self.sl, traffic_class, flow_label, hop_limit }
    }

    /// The multicast group at this address.
    pub(crate) fn group(&self) -> Option<GroupId> {
        self.global.map(|route| route.dgid).filter(is_group)
    }
}

/// True for the GID of a multicast group.
pub(crate) fn is_group(gid: &GroupId) -> bool {
    gid[0] == 0xff
}
