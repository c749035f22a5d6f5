//! Address handles: where datagrams go.

use fabric::{FabricId, Vid};

use crate::attr::AddressVector;
use crate::handle::Pd;

/// An address handle.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AddressHandle {
    pub pd: Pd,
    /// The instance that it leads to.
    pub vid: Vid,
    /// Datagrams carry a global route.
    pub has_route: bool,
}

impl AddressVector {
    /// The instance at this address, if one can have it: by GID where there is one, else by LID.
    pub(crate) fn instance(&self, fabric: FabricId) -> Option<Vid> {
        let by_gid = self.global.and_then(|route| Vid::from_gid(route.dgid, fabric));
        by_gid.or_else(|| Vid::new(self.dlid))
    }
}
