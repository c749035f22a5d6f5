//! Address handles and multicast: for datagrams, which this device does not have.

use libc::c_int;
use softhca::Errno;
use verbs_abi::{ibv_ah, ibv_ah_attr, ibv_context, ibv_gid, ibv_grh, ibv_pd, ibv_qp, ibv_wc};

use crate::errno;

pub(crate) unsafe extern "C" fn ibv_create_ah(_pd: *mut ibv_pd, _attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    errno::object(Err(Errno::UNSUPPORTED))
}

pub(crate) unsafe extern "C" fn ibv_create_ah_from_wc(
    _pd: *mut ibv_pd,
    _wc: *mut ibv_wc,
    _grh: *mut ibv_grh,
    _port: u8,
) -> *mut ibv_ah {
    errno::object(Err(Errno::UNSUPPORTED))
}

pub(crate) unsafe extern "C" fn ibv_init_ah_from_wc(
    _context: *mut ibv_context,
    _port: u8,
    _wc: *mut ibv_wc,
    _grh: *mut ibv_grh,
    _attr: *mut ibv_ah_attr,
) -> c_int {
    errno::minus_one(Err(Errno::UNSUPPORTED))
}

pub(crate) unsafe extern "C" fn ibv_destroy_ah(_ah: *mut ibv_ah) -> c_int {
    libc::EOPNOTSUPP
}

pub(crate) unsafe extern "C" fn ibv_attach_mcast(_qp: *mut ibv_qp, _gid: *const ibv_gid, _lid: u16) -> c_int {
    libc::EOPNOTSUPP
}

pub(crate) unsafe extern "C" fn ibv_detach_mcast(_qp: *mut ibv_qp, _gid: *const ibv_gid, _lid: u16) -> c_int {
    libc::EOPNOTSUPP
}

/// Ethernet addresses are for RoCE ports.
pub(crate) unsafe extern "C" fn ibv_resolve_eth_l2_from_gid(
    _context: *mut ibv_context,
    _attr: *mut ibv_ah_attr,
    _mac: *mut u8,
    _vlan: *mut u16,
) -> c_int {
    errno::minus_one(Err(Errno::UNSUPPORTED))
}
