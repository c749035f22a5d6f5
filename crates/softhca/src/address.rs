//! Address handles: where datagrams go.

use fabric::{FabricId, Vid};

use crate::attr::AddressVector;
use crate::groups::GroupId;
use crate::handle::Pd;

/// An address handle.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AddressHandle {
    pub pd: Pd,
    pub to: Address,
    /// Datagrams carry a global route.
    pub has_route: bool,
}

/// Whom an address handle leads to.
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

    /// The multicast group at this address.
    pub(crate) fn group(&self) -> Option<GroupId> {
        self.global.map(|route| route.dgid).filter(is_group)
    }
}

/// True for the GID of a multicast group.
pub(crate) fn is_group(gid: &GroupId) -> bool {
    gid[0] == 0xff
}
