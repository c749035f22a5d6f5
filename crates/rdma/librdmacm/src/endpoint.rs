//! Endpoints: an identifier with all that its address information asks for, in one call.

use std::ptr;

use libc::c_int;
use verbs_abi::rai::RAI_PASSIVE;
use verbs_abi::{ibv_pd, ibv_qp_init_attr, rdma_addrinfo, rdma_cm_id};

use crate::bind::{self, rdma_bind_addr, rdma_resolve_addr, rdma_resolve_route};
use crate::errno::{Errno, INVALID, Result, last, status};
use crate::id::{Id, Prepared};
use crate::manager::Manager;
use crate::qp;
use waiting::uncancelled;

/// How long the other side's address may take to be found, in milliseconds.
const RESOLVE_MS: c_int = 2000;

fn checked(code: c_int) -> Result<()> {
    if code == 0 { Ok(()) } else { Err(last()) }
}

/// # Safety
/// `info` is a result of `rdma_getaddrinfo`, and `attr` NULL or attributes that can be written.
unsafe fn create(
    info: &rdma_addrinfo,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> Result<*mut rdma_cm_id> {
    Manager::get()?;
    let space = u32::try_from(info.ai_port_space).map_err(|_| INVALID)?;
    let qp_type = u32::try_from(info.ai_qp_type).map_err(|_| INVALID)?;
    let id = Id::create(ptr::null_mut(), ptr::null_mut(), space, qp_type)?;
    // SAFETY: the identifier was just made; the rest is the caller's promise.
    let prepared = unsafe {
        if info.ai_flags & RAI_PASSIVE != 0 {
            passive(id, info, pd, attr)
        } else {
            active(id, info, pd, attr)
        }
    };
    if let Err(errno) = prepared {
        // SAFETY: no other code knows the identifier yet.
        unsafe { rdma_destroy_ep(id) };
        return Err(errno);
    }
    Ok(id)
}

/// # Safety
/// As for [`create`]; `id` is live.
unsafe fn passive(
    id: *mut rdma_cm_id,
    info: &rdma_addrinfo,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe {
        checked(rdma_bind_addr(id, info.ai_src_addr))?;
        let qp_type = Id::of(id).c.qp_type;
        let prepared =
            |attr: &ibv_qp_init_attr| Prepared { pd, attributes: ibv_qp_init_attr { qp_type, ..*attr } };
        Id::of(id).prepared = attr.as_ref().map(prepared);
    }
    Ok(())
}

/// # Safety
/// As for [`passive`].
unsafe fn active(
    id: *mut rdma_cm_id,
    info: &rdma_addrinfo,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> Result<()> {
    if info.ai_dst_len == 0 {
        return Err(Errno(libc::EDESTADDRREQ));
    }
    // SAFETY: the caller's promise.
    unsafe {
        checked(rdma_resolve_addr(id, info.ai_src_addr, info.ai_dst_addr, RESOLVE_MS))?;
        checked(rdma_resolve_route(id, RESOLVE_MS))?;
        match attr.as_mut() {
            Some(attr) => {
                attr.qp_type = Id::of(id).c.qp_type;
                qp::create_classic(Id::of(id), pd, attr)
            }
            None => Ok(()),
        }
    }
}

pub(crate) unsafe extern "C" fn rdma_create_ep(
    id: *mut *mut rdma_cm_id,
    info: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: the contract of the connection manager: `info` is NULL or of `rdma_getaddrinfo`.
    let Some(info) = (unsafe { info.as_ref() }).filter(|_| !id.is_null()) else {
        return status(|| Err(INVALID));
    };
    // SAFETY: as above; `id` can be written.
    status(|| unsafe { create(info, pd, attr).map(|created| id.write(created)) })
}

pub(crate) unsafe extern "C" fn rdma_destroy_ep(id: *mut rdma_cm_id) {
    // SAFETY: the contract of the connection manager: a live identifier, which is not used again.
    uncancelled(|| unsafe {
        if let Ok(given) = Id::given(id) {
            qp::destroy(given);
            qp::destroy_srq(given);
        }
        if !id.is_null() {
            bind::destroy(id);
        }
    });
}
