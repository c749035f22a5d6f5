//! Addresses and routes as the program sees them in its identifiers.

use verbs_abi::rdma_cm_id;

use crate::address;
use crate::device::PORT;
use crate::id::Id;
use crate::manager::Manager;
use waiting::lock;

/// `ibv_sa_path_rec`'s fields that never differ: the full-membership key, 4096 bytes, and "exactly".
const PKEY: u16 = 0xffff;
const MTU: u8 = 5;
const EXACTLY: u8 = 2;

impl Id {
    /// Shows the identifier's own address and its destination.
    pub(crate) fn show_addresses(&mut self) {
        let (local, remote) = {
            let state = lock(&self.core.state);
            (state.local, state.remote)
        };
        if let Some(local) = local {
            self.c.route.addr.src_storage = address::store(local).0;
        }
        if let Some(remote) = remote {
            self.c.route.addr.dst_storage = address::store(remote).0;
        }
        // An identifier bound to any address has no device before it has a peer.
        if local.is_some_and(|local| remote.is_some() || !address::is_any(local.ip()))
            && let Some(manager) = Manager::current()
        {
            self.c.verbs = manager.device.context;
            self.c.port_num = PORT;
            self.c.pd = if self.c.pd.is_null() { manager.device.pd } else { self.c.pd };
            self.c.route.addr.ibaddr.sgid = manager.device.gid;
            self.c.route.addr.ibaddr.pkey = PKEY.to_be();
        }
    }

    /// Shows the known part of the way to the other side.
    pub(crate) fn show_route(&mut self) {
        let (peer, Some(manager)) = (lock(&self.core.state).peer, Manager::current()) else { return };
        let device = &manager.device;
        self.path.sgid = device.gid;
        self.path.slid = device.lid.to_be();
        if let Some(peer) = peer {
            self.path.dgid = device.gid_of(peer.lid);
            self.path.dlid = peer.lid.to_be();
            self.c.route.addr.ibaddr.dgid = self.path.dgid;
        }
        self.path.pkey = PKEY.to_be();
        self.path.reversible = 1;
        (self.path.mtu_selector, self.path.mtu) = (EXACTLY, MTU);
        self.path.numb_path = 1;
    }

    /// Shows the route: there is one.
    pub(crate) fn show_path(&mut self) {
        self.show_route();
        self.c.route.path_rec = &raw mut self.path;
        self.c.route.num_paths = 1;
    }
}

/// In network byte order; 0 if the identifier is not bound.
pub(crate) unsafe extern "C" fn rdma_get_src_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: the contract of the connection manager: a live identifier.
    let local = unsafe { Id::given(id) }.ok().and_then(|id| lock(&id.core.state).local);
    local.map_or(0, |local| local.port().to_be())
}

/// In network byte order; 0 if nothing was resolved.
pub(crate) unsafe extern "C" fn rdma_get_dst_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: as above.
    let remote = unsafe { Id::given(id) }.ok().and_then(|id| lock(&id.core.state).remote);
    remote.map_or(0, |remote| remote.port().to_be())
}
