//! The attributes of the device and its port.

use std::ffi::c_char;
use std::mem::offset_of;
use std::ptr;

use libc::{c_int, ssize_t};
use softhca::{Errno, Limits};
use verbs_abi::constants::port_state::IBV_PORT_ACTIVE;
use verbs_abi::constants::{
    IBV_ATOMIC_HCA, IBV_GID_TYPE_IB, IBV_LINK_LAYER_INFINIBAND, IBV_MTU_4096, device_cap,
};
use verbs_abi::{
    ibv_context, ibv_device_attr, ibv_device_attr_ex, ibv_gid, ibv_gid_entry, ibv_port_attr,
    ibv_query_device_ex_input,
};

use crate::process::Process;
use crate::{cq_ex, device_memory, errno, object};

/// "tra" as an OUI of our own: programs then take no vendor's shortcuts.
const VENDOR_ID: u32 = 0x0074_7261;

/// The default partition, full membership.
const PKEY: u16 = 0xffff;

/// `ibv_port_attr.active_width`: 4 lanes; `active_speed`: 25 Gbit/s each; `phys_state`: link up.
const WIDTH_4X: u8 = 2;
const SPEED_EDR: u8 = 32;
const LINK_UP: u8 = 5;

pub(crate) unsafe extern "C" fn ibv_query_device(
    context: *mut ibv_context,
    attr: *mut ibv_device_attr,
) -> c_int {
    // SAFETY: the contract of verbs.
    errno::code(unsafe { object::context(context) }.map(|context| {
        let found = device_attr(context.process);
        // SAFETY: the contract of verbs: `attr` can be written.
        unsafe { attr.write(found) };
    }))
}

pub(crate) unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    _input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    size: usize,
) -> c_int {
    // SAFETY: the contract of verbs.
    errno::code(unsafe { object::context(context) }.and_then(|context| {
        if size < size_of::<ibv_device_attr>() {
            return Err(Errno::INVALID);
        }
        // SAFETY: zeroes are values of these fields, and mean "not supported".
        let mut found: ibv_device_attr_ex = unsafe { object::zeroed() };
        found.orig_attr = device_attr(context.process);
        found.device_cap_flags_ex = found.orig_attr.device_cap_flags.into();
        found.phys_port_cnt_ex = 1;
        found.completion_timestamp_mask = u64::MAX;
        found.hca_core_clock = cq_ex::CLOCK_KHZ;
        found.max_dm_size = device_memory::SIZE as u64;
        // SAFETY: the contract of verbs: `size` bytes at `attr` can be written.
        unsafe { write_sized(&found, attr, size) };
        Ok(())
    }))
}

fn device_attr(process: &Process) -> ibv_device_attr {
    // SAFETY: zeroes are values of these fields, and mean "none" or "not supported".
    let mut attr: ibv_device_attr = unsafe { object::zeroed() };
    let version = concat!(env!("CARGO_PKG_VERSION"), "\0");
    for (to, from) in attr.fw_ver.iter_mut().zip(version.bytes()) {
        *to = from as c_char;
    }
    attr.node_guid = u64::from_ne_bytes(process.identity.vid.guid());
    attr.sys_image_guid = attr.node_guid;
    attr.page_size_cap = 0xffff_ffff_ffff_f000;
    attr.vendor_id = VENDOR_ID;
    attr.vendor_part_id = 1;
    attr.device_cap_flags = device_cap::IBV_DEVICE_CURR_QP_STATE_MOD
        | device_cap::IBV_DEVICE_SYS_IMAGE_GUID
        | device_cap::IBV_DEVICE_RC_RNR_NAK_GEN
        | device_cap::IBV_DEVICE_N_NOTIFY_CQ
        | device_cap::IBV_DEVICE_MEM_WINDOW
        | device_cap::IBV_DEVICE_XRC
        | device_cap::IBV_DEVICE_MEM_WINDOW_TYPE_2B;
    attr.atomic_cap = IBV_ATOMIC_HCA;
    attr.max_pkeys = 1;
    attr.phys_port_cnt = 1;
    set_limits(&mut attr, &process.limits);
    attr
}

fn set_limits(attr: &mut ibv_device_attr, limits: &Limits) {
    attr.max_mr_size = limits.max_mr_size;
    attr.max_qp = int(limits.max_qp);
    attr.max_qp_wr = int(limits.max_qp_wr);
    attr.max_sge = int(limits.max_sge);
    attr.max_sge_rd = int(limits.max_sge);
    attr.max_cq = int(limits.max_cq);
    attr.max_cqe = int(limits.max_cqe);
    attr.max_mr = int(limits.max_mr);
    attr.max_mw = int(limits.max_mw);
    attr.max_pd = int(limits.max_pd);
    attr.max_ah = int(limits.max_ah);
    attr.max_mcast_grp = int(limits.max_groups);
    attr.max_mcast_qp_attach = int(limits.max_qp);
    attr.max_total_mcast_qp_attach = int(limits.max_qp.saturating_mul(limits.max_groups));
    attr.max_qp_rd_atom = limits.max_rd_atomic.into();
    attr.max_qp_init_rd_atom = limits.max_rd_atomic.into();
    attr.max_res_rd_atom = int(limits.max_qp.saturating_mul(limits.max_rd_atomic.into()));
    attr.max_srq = int(limits.max_srq);
    attr.max_srq_wr = int(limits.max_srq_wr);
    attr.max_srq_sge = int(limits.max_sge);
}

/// The limit as C has it, which counts no further.
fn int(limit: u32) -> c_int {
    c_int::try_from(limit).unwrap_or(c_int::MAX)
}

/// The exported function, for programs that bypass the macro: they have the first, smaller form of
/// the structure, up to `link_layer`.
pub(crate) unsafe extern "C" fn ibv_query_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
) -> c_int {
    // SAFETY: the contract of verbs.
    unsafe { query_port(context, port, attr, offset_of!(ibv_port_attr, flags)) }
}

pub(crate) unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
    size: usize,
) -> c_int {
    // SAFETY: the contract of verbs.
    errno::code(unsafe { object::context(context) }.and_then(|context| {
        only_port(port.into())?;
        let found = port_attr(context.process);
        // SAFETY: the contract of verbs: `size` bytes at `attr` can be written.
        unsafe { write_sized(&found, attr, size) };
        Ok(())
    }))
}

fn port_attr(process: &Process) -> ibv_port_attr {
    // SAFETY: zeroes are values of these fields.
    let mut attr: ibv_port_attr = unsafe { object::zeroed() };
    attr.state = IBV_PORT_ACTIVE;
    attr.max_mtu = IBV_MTU_4096;
    attr.active_mtu = IBV_MTU_4096;
    attr.gid_tbl_len = 1;
    attr.max_msg_sz = process.limits.max_message;
    attr.pkey_tbl_len = 1;
    attr.lid = process.identity.vid.lid();
    attr.sm_lid = 1;
    attr.max_vl_num = 1;
    // The device of a forked child's parent has nothing to count here.
    attr.qkey_viol_cntr = process.locked(|state| Ok(state.device.wrong_keys())).unwrap_or_default();
    attr.subnet_timeout = 18;
    attr.active_width = WIDTH_4X;
    attr.active_speed = SPEED_EDR;
    attr.phys_state = LINK_UP;
    attr.link_layer = IBV_LINK_LAYER_INFINIBAND;
    attr
}

/// Fills `size` bytes: the known part, then zeroes for the fields of newer programs.
///
/// # Safety
/// `size` bytes at `to` can be written.
unsafe fn write_sized<T>(from: &T, to: *mut T, size: usize) {
    let known = size.min(size_of::<T>());
    // SAFETY: the caller's promise; `known` is within both.
    unsafe {
        ptr::write_bytes(to.cast::<u8>(), 0, size);
        ptr::copy_nonoverlapping(ptr::from_ref(from).cast::<u8>(), to.cast::<u8>(), known);
    }
}

fn only_port(port: u32) -> Result<(), Errno> {
    if port == 1 { Ok(()) } else { Err(Errno::INVALID) }
}

fn only_entry(port: u32, index: i64) -> Result<(), Errno> {
    only_port(port)?;
    if index == 0 { Ok(()) } else { Err(Errno::INVALID) }
}

fn own_gid(process: &Process) -> ibv_gid {
    ibv_gid { raw: process.identity.vid.gid(process.fabric) }
}

pub(crate) unsafe extern "C" fn ibv_query_gid(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    gid: *mut ibv_gid,
) -> c_int {
    // SAFETY: the contract of verbs.
    errno::minus_one(unsafe { object::context(context) }.and_then(|context| {
        only_entry(port.into(), index.into())?;
        // SAFETY: the contract of verbs: `gid` can be written.
        unsafe { gid.write(own_gid(context.process)) };
        Ok(())
    }))
}

fn gid_entry(process: &Process) -> ibv_gid_entry {
    ibv_gid_entry {
        gid: own_gid(process),
        gid_index: 0,
        port_num: 1,
        gid_type: IBV_GID_TYPE_IB,
        ndev_ifindex: 0,
    }
}

pub(crate) unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut ibv_context,
    port: u32,
    index: u32,
    entry: *mut ibv_gid_entry,
    flags: u32,
    size: usize,
) -> c_int {
    // SAFETY: the contract of verbs.
    errno::code(unsafe { object::context(context) }.and_then(|context| {
        if flags != 0 {
            return Err(Errno::UNSUPPORTED);
        }
        only_entry(port, index.into())?;
        // SAFETY: the contract of verbs: `size` bytes at `entry` can be written.
        unsafe { write_sized(&gid_entry(context.process), entry, size) };
        Ok(())
    }))
}

/// The number of entries written, or minus an errno value.
pub(crate) unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    room: usize,
    flags: u32,
    size: usize,
) -> ssize_t {
    // SAFETY: the contract of verbs.
    let Ok(context) = (unsafe { object::context(context) }) else { return -(libc::EINVAL as ssize_t) };
    if flags != 0 {
        return -(libc::EOPNOTSUPP as ssize_t);
    }
    if room == 0 {
        return -(libc::EINVAL as ssize_t);
    }
    // SAFETY: the contract of verbs: `room` entries of `size` bytes at `entries` can be written.
    unsafe { write_sized(&gid_entry(context.process), entries, size) };
    1
}

/// Private to rdma-core's own libraries.
pub(crate) unsafe extern "C" fn ibv_query_gid_type(
    _context: *mut ibv_context,
    port: u8,
    index: u32,
    gid_type: *mut u32,
) -> c_int {
    errno::minus_one(only_entry(port.into(), index.into()).map(|()| {
        // SAFETY: the contract of verbs: `gid_type` can be written.
        unsafe { gid_type.write(IBV_GID_TYPE_IB) };
    }))
}

pub(crate) unsafe extern "C" fn ibv_query_pkey(
    _context: *mut ibv_context,
    port: u8,
    index: c_int,
    pkey: *mut u16,
) -> c_int {
    errno::minus_one(only_entry(port.into(), index.into()).map(|()| {
        // SAFETY: the contract of verbs: `pkey` can be written.
        unsafe { pkey.write(PKEY.to_be()) };
    }))
}

/// The index of `pkey` (network byte order), or -1.
pub(crate) unsafe extern "C" fn ibv_get_pkey_index(_context: *mut ibv_context, port: u8, pkey: u16) -> c_int {
    let found = if u16::from_be(pkey) == PKEY { only_port(port.into()) } else { Err(Errno::INVALID) };
    errno::minus_one(found)
}
