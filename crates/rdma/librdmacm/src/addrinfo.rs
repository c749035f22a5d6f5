//! `rdma_getaddrinfo`: names to addresses, by the C library's resolver.

use std::ffi::c_char;
use std::ptr;

use libc::{addrinfo, c_int, sockaddr, socklen_t};
use verbs_abi::port_space::{RDMA_PS_TCP, RDMA_PS_UDP};
use verbs_abi::rai::{RAI_FAMILY, RAI_NUMERICHOST, RAI_PASSIVE};
use verbs_abi::rdma_addrinfo;

use crate::errno::{Errno, INVALID, Result, made, status};
use crate::verbs::{kind, zeroed};

/// A copy of an address in memory of `malloc`.
///
/// # Safety
/// `address` is readable for `length` bytes.
unsafe fn copy(address: *const sockaddr, length: socklen_t) -> Result<*mut sockaddr> {
    let size = length as usize;
    // SAFETY: no memory is passed.
    let copy = made(unsafe { libc::malloc(size.max(1)) })?;
    // SAFETY: the caller's promise; the copy is as long.
    unsafe { ptr::copy_nonoverlapping(address.cast::<u8>(), copy.cast(), size) };
    Ok(copy.cast())
}

/// The resolver's answer, which is freed with it.
struct Resolved(*mut addrinfo);

impl Drop for Resolved {
    fn drop(&mut self) {
        // SAFETY: the list came from `getaddrinfo`.
        unsafe { libc::freeaddrinfo(self.0) };
    }
}

/// # Safety
/// Both are NULL or strings.
unsafe fn resolve(node: *const c_char, service: *const c_char, hints: &rdma_addrinfo) -> Result<Resolved> {
    // SAFETY: null pointers and zeroes are values of the structure.
    let mut wanted: addrinfo = unsafe { zeroed() };
    wanted.ai_family = if hints.ai_flags & RAI_FAMILY != 0 { hints.ai_family } else { libc::AF_UNSPEC };
    if hints.ai_flags & RAI_PASSIVE != 0 {
        wanted.ai_flags |= libc::AI_PASSIVE;
    }
    if hints.ai_flags & RAI_NUMERICHOST != 0 {
        wanted.ai_flags |= libc::AI_NUMERICHOST;
    }
    wanted.ai_socktype =
        if hints.ai_qp_type == kind::UD as c_int { libc::SOCK_DGRAM } else { libc::SOCK_STREAM };
    let mut found = ptr::null_mut();
    // SAFETY: the caller's promise; the other two can be read and written.
    match unsafe { libc::getaddrinfo(node, service, &raw const wanted, &raw mut found) } {
        0 => Ok(Resolved(found)),
        libc::EAI_SYSTEM => Err(crate::errno::last()),
        libc::EAI_MEMORY => Err(Errno(libc::ENOMEM)),
        _ => Err(Errno(libc::ENODATA)),
    }
}

/// # Safety
/// Names are NULL or strings; the hints' addresses are as long as they say.
unsafe fn get(
    node: *const c_char,
    service: *const c_char,
    hints: &rdma_addrinfo,
) -> Result<*mut rdma_addrinfo> {
    // SAFETY: no memory is passed.
    let info = made(unsafe { libc::calloc(1, size_of::<rdma_addrinfo>()) })?.cast::<rdma_addrinfo>();
    // SAFETY: the memory is there, and zeroes are a value of the structure.
    let filled = unsafe { fill(&mut *info, node, service, hints) };
    if let Err(errno) = filled {
        // SAFETY: no other code knows it yet.
        unsafe { rdma_freeaddrinfo(info) };
        return Err(errno);
    }
    Ok(info)
}

/// # Safety
/// As for [`get`].
unsafe fn fill(
    info: &mut rdma_addrinfo,
    node: *const c_char,
    service: *const c_char,
    hints: &rdma_addrinfo,
) -> Result<()> {
    let passive = hints.ai_flags & RAI_PASSIVE != 0;
    info.ai_flags = hints.ai_flags;
    info.ai_family = hints.ai_family;
    set_kind(info, hints);
    if !node.is_null() || !service.is_null() {
        // SAFETY: the caller's promise.
        let resolved = unsafe { resolve(node, service, hints)? };
        // SAFETY: the list has at least one element, with a whole address.
        let first = unsafe { &*resolved.0 };
        info.ai_family = first.ai_family;
        // SAFETY: as above.
        let address = unsafe { copy(first.ai_addr, first.ai_addrlen)? };
        if passive {
            (info.ai_src_addr, info.ai_src_len) = (address, first.ai_addrlen);
        } else {
            (info.ai_dst_addr, info.ai_dst_len) = (address, first.ai_addrlen);
        }
    }
    // SAFETY: the caller's promise.
    unsafe {
        if info.ai_src_len == 0 && hints.ai_src_len > 0 {
            info.ai_src_addr = copy(hints.ai_src_addr, hints.ai_src_len)?;
            info.ai_src_len = hints.ai_src_len;
        }
        if info.ai_dst_len == 0 && hints.ai_dst_len > 0 {
            info.ai_dst_addr = copy(hints.ai_dst_addr, hints.ai_dst_len)?;
            info.ai_dst_len = hints.ai_dst_len;
        }
    }
    Ok(())
}

/// Of port space and type of queue pair, one gives the other.
fn set_kind(info: &mut rdma_addrinfo, hints: &rdma_addrinfo) {
    info.ai_port_space = hints.ai_port_space;
    info.ai_qp_type = hints.ai_qp_type;
    let datagrams = hints.ai_qp_type == kind::UD as c_int
        || hints.ai_qp_type == 0 && hints.ai_port_space == RDMA_PS_UDP as c_int;
    if info.ai_port_space == 0 {
        info.ai_port_space = (if datagrams { RDMA_PS_UDP } else { RDMA_PS_TCP }) as c_int;
    }
    if info.ai_qp_type == 0 {
        info.ai_qp_type = (if datagrams { kind::UD } else { kind::RC }) as c_int;
    }
}

pub(crate) unsafe extern "C" fn rdma_getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
    found: *mut *mut rdma_addrinfo,
) -> c_int {
    // SAFETY: all-zero bytes are a value of the structure.
    let none: rdma_addrinfo = unsafe { zeroed() };
    // SAFETY: the contract of the connection manager: NULL, or hints that can be read.
    let hints = unsafe { hints.as_ref() }.unwrap_or(&none);
    let nothing = node.is_null() && service.is_null() && hints.ai_src_len == 0 && hints.ai_dst_len == 0;
    if nothing || found.is_null() {
        return status(|| Err(INVALID));
    }
    // SAFETY: as above; names are NULL or strings, and `found` can be written.
    status(|| unsafe { get(node, service, hints).map(|info| found.write(info)) })
}

pub(crate) unsafe extern "C" fn rdma_freeaddrinfo(info: *mut rdma_addrinfo) {
    let mut next = info;
    while !next.is_null() {
        let info = next;
        // SAFETY: the contract of the connection manager: a list of `rdma_getaddrinfo`. All its parts came from
        // `malloc`.
        unsafe {
            next = (*info).ai_next;
            for part in [
                (*info).ai_src_addr.cast(),
                (*info).ai_dst_addr.cast(),
                (*info).ai_src_canonname.cast(),
                (*info).ai_dst_canonname.cast(),
                (*info).ai_route,
                (*info).ai_connect,
                info.cast(),
            ] {
                libc::free(part);
            }
        }
    }
}
