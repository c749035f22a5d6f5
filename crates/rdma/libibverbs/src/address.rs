//! Address handles: the destinations of datagrams.

use libc::c_int;
use softhca::Errno;
use verbs_abi::constants::wc_flags::IBV_WC_GRH;
use verbs_abi::{ibv_ah, ibv_ah_attr, ibv_context, ibv_global_route, ibv_grh, ibv_pd, ibv_wc};

use crate::context::Context;
use crate::convert::address_from_c;
use crate::domain::Pd;
use crate::process::Held;
use crate::{errno, object};

/// The object behind a program's `ibv_ah`.
#[repr(C)]
pub(crate) struct Ah {
    base: ibv_ah,
    pub(crate) handle: softhca::Ah,
}

starts_with!(Ah, ibv_ah);

pub(crate) unsafe extern "C" fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    // SAFETY: the contract of verbs.
    errno::object(|| unsafe { create(pd, &*attr) })
}

/// # Safety
/// `pd` is a PD of this library.
unsafe fn create(pd: *mut ibv_pd, attr: &ibv_ah_attr) -> Result<*mut ibv_ah, Errno> {
    // SAFETY: the caller's promise; a context outlives its objects.
    let (context, domain) = unsafe { ((*pd).context, Pd::of(pd).handle) };
    // SAFETY: as above.
    let process = unsafe { Context::of(context) }.process;
    process.with(|state| {
        let handle = state.device.create_ah(domain, &address_from_c(attr))?;
        state.objects.ahs.insert(handle, Held(context));
        Ok(object::give(Ah { base: ibv_ah { context, pd, handle: handle.0 }, handle }))
    })
}

pub(crate) unsafe extern "C" fn ibv_create_ah_from_wc(
    pd: *mut ibv_pd,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    port: u8,
) -> *mut ibv_ah {
    // SAFETY: the contract of verbs.
    errno::object(|| unsafe { sender(&*wc, grh, port).and_then(|attr| create(pd, &attr)) })
}

pub(crate) unsafe extern "C" fn ibv_init_ah_from_wc(
    _context: *mut ibv_context,
    port: u8,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    attr: *mut ibv_ah_attr,
) -> c_int {
    // SAFETY: the contract of verbs.
    let sender = unsafe { sender(&*wc, grh, port) };
    errno::minus_one(sender.map(|sender| {
        // SAFETY: the contract of verbs: `attr` can be written.
        unsafe { attr.write(sender) };
    }))
}

/// The address of the sender of the datagram that completed with `wc`.
///
/// # Safety
/// If `wc` says so, `grh` is the start of the datagram's receive.
unsafe fn sender(wc: &ibv_wc, grh: *mut ibv_grh, port: u8) -> Result<ibv_ah_attr, Errno> {
    let has_route = wc.wc_flags & IBV_WC_GRH != 0;
    let grh = match has_route {
        // SAFETY: the caller's promise. Receives may start anywhere.
        true if !grh.is_null() => unsafe { route_back(&grh.read_unaligned()) },
        true => return Err(Errno::INVALID),
        // SAFETY: zeroes are values of these fields.
        false => unsafe { object::zeroed() },
    };
    Ok(ibv_ah_attr {
        grh,
        dlid: wc.slid,
        sl: wc.sl,
        src_path_bits: wc.dlid_path_bits,
        static_rate: 0,
        is_global: has_route.into(),
        port_num: port,
    })
}

fn route_back(grh: &ibv_grh) -> ibv_global_route {
    let word = u32::from_be(grh.version_tclass_flow);
    ibv_global_route {
        dgid: grh.sgid,
        flow_label: word & 0x000f_ffff,
        sgid_index: 0,
        hop_limit: grh.hop_limit,
        traffic_class: (word >> 20) as u8,
    }
}

pub(crate) unsafe extern "C" fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int {
    // SAFETY: the contract of verbs; a context outlives its objects.
    let (process, handle) = unsafe { (Context::of((*ah).context).process, Ah::of(ah).handle) };
    errno::code(process.with(|state| {
        state.device.destroy_ah(handle)?;
        state.objects.ahs.remove(&handle);
        // SAFETY: `create` gave it, and the program gives it back.
        unsafe { object::take::<Ah, _>(ah) };
        Ok(())
    }))
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
