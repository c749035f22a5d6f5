//! Extended completion queues: polling one completion at a time, read field by field.

use libc::c_int;
use softhca::{Errno, Wc};
use verbs_abi::constants::{
    IBV_VALUES_MASK_RAW_CLOCK, IBV_WC_EX_WITH_COMPLETION_TIMESTAMP,
    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK, IBV_WC_STANDARD_FLAGS,
};
use verbs_abi::{ibv_context, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_poll_cq_attr, ibv_values_ex};

use crate::cq::{self, Cq};
use crate::errno;

/// `IBV_CQ_INIT_ATTR_MASK_FLAGS`.
const MASK_FLAGS: u32 = 1;

/// `IBV_CQ_INIT_ATTR_MASK_PD`: a parent domain, which changes nothing.
const MASK_PD: u32 = 2;

/// Times that a completion can be reported with. The device's clock is the one on the wall, which goes on over a move.
const STAMPS: u64 = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;

/// Its frequency: it counts nanoseconds.
pub(crate) const CLOCK_KHZ: u64 = 1_000_000;

/// Both creation flags (single-threaded, ignore overrun) promise something that is not needed.
const KNOWN_FLAGS: u32 = 3;

pub(crate) unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    // SAFETY: the contract of verbs.
    let attr = unsafe { &*attr };
    let clock: Option<fn() -> u64> = if attr.wc_flags & STAMPS != 0 { Some(now) } else { None };
    errno::object(|| {
        check(attr).and_then(|()| {
            // SAFETY: the contract of verbs.
            let cq = unsafe { cq::create(context, attr.cqe, attr.cq_context, attr.channel, clock, extend) };
            cq.map(|cq| cq.cast())
        })
    })
}

fn check(attr: &ibv_cq_init_attr_ex) -> Result<(), Errno> {
    let flags = if attr.comp_mask & MASK_FLAGS == 0 { 0 } else { attr.flags };
    if attr.comp_mask & !(MASK_FLAGS | MASK_PD) != 0 || flags & !KNOWN_FLAGS != 0 {
        return Err(Errno::UNSUPPORTED);
    }
    if attr.wc_flags & !(IBV_WC_STANDARD_FLAGS | STAMPS) != 0 {
        return Err(Errno::UNSUPPORTED);
    }
    if attr.cqe == 0 || attr.comp_vector != 0 { Err(Errno::INVALID) } else { Ok(()) }
}

fn extend(cq: &mut ibv_cq_ex) {
    cq.start_poll = Some(start_poll);
    cq.next_poll = Some(next_poll);
    cq.end_poll = Some(end_poll);
    cq.read_opcode = Some(read_opcode);
    cq.read_vendor_err = Some(read_vendor_err);
    cq.read_byte_len = Some(read_byte_len);
    cq.read_imm_data = Some(read_imm_data);
    cq.read_qp_num = Some(read_qp_num);
    cq.read_src_qp = Some(read_src_qp);
    cq.read_wc_flags = Some(read_wc_flags);
    cq.read_slid = Some(read_slid);
    cq.read_sl = Some(read_sl);
    cq.read_dlid_path_bits = Some(read_zero);
    cq.read_completion_ts = Some(read_timestamp);
    cq.read_completion_wallclock_ns = Some(read_timestamp);
}

/// Nanoseconds since 1970.
fn now() -> u64 {
    // SAFETY: zeroes are values of these fields.
    let mut time: libc::timespec = unsafe { crate::object::zeroed() };
    // SAFETY: the structure can be written.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The device's clock now, as a count in `tv_nsec`.
pub(crate) unsafe extern "C" fn query_rt_values(
    _context: *mut ibv_context,
    values: *mut ibv_values_ex,
) -> c_int {
    // SAFETY: the contract of verbs: `values` can be read and written.
    unsafe {
        if (*values).comp_mask & IBV_VALUES_MASK_RAW_CLOCK != 0 {
            ((*values).raw_clock.tv_sec, (*values).raw_clock.tv_nsec) = (0, now().cast_signed());
        }
        (*values).comp_mask &= IBV_VALUES_MASK_RAW_CLOCK;
    }
    0
}

/// 0 at a completion; then, and only then, the program ends with `end_poll`. `ENOENT`: none.
unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: the contract of verbs: NULL or readable.
    if unsafe { attr.as_ref() }.is_some_and(|attr| attr.comp_mask != 0) {
        return libc::EINVAL;
    }
    // SAFETY: the contract of verbs.
    let object = unsafe { Cq::of(cq.cast()) };
    object.polling.get().take();
    // SAFETY: this thread holds `polling`.
    let result = unsafe { advance(cq) };
    if result != 0 {
        // SAFETY: this thread has taken it.
        unsafe { object.polling.get().leave() };
    }
    result
}

unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: the contract of verbs: between `start_poll` and `end_poll`.
    unsafe { advance(cq) }
}

unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    // SAFETY: the contract of verbs: after a successful `start_poll`, which has taken it.
    unsafe { Cq::of(cq.cast()).polling.get().leave() };
}

/// # Safety
/// The calling thread holds `polling` of the CQ.
unsafe fn advance(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: the caller's promise.
    let object = unsafe { Cq::of(cq.cast()) };
    let polled = object.poll(1, |found| {
        // SAFETY: the holder of `polling` has exclusive access to these fields.
        unsafe {
            (*cq).status = found.status as u32;
            (*cq).wr_id = found.wr_id;
            object.current.get().write(*found);
        }
    });
    match polled {
        Ok(1) => 0,
        Ok(_) => libc::ENOENT,
        Err(errno) => errno.0,
    }
}

/// The completion at which polling stands.
///
/// # Safety
/// `cq` is between `start_poll` and `end_poll`.
unsafe fn current(cq: *mut ibv_cq_ex) -> Wc {
    // SAFETY: the caller's promise.
    unsafe { *Cq::of(cq.cast()).current.get() }
}

macro_rules! readers {
    ($($name:ident: $type:ty = |$wc:ident| $value:expr;)*) => {$(
        unsafe extern "C" fn $name(cq: *mut ibv_cq_ex) -> $type {
            // SAFETY: the contract of verbs: between `start_poll` and `end_poll`.
            let $wc = unsafe { current(cq) };
            $value
        }
    )*};
}

readers! {
    read_opcode: u32 = |wc| wc.opcode as u32;
    read_vendor_err: u32 = |wc| wc.vendor_error;
    read_byte_len: u32 = |wc| wc.byte_len;
    read_imm_data: u32 = |wc| cq::data(&wc);
    read_qp_num: u32 = |wc| wc.qpn;
    read_src_qp: u32 = |wc| wc.src_qp;
    read_wc_flags: u32 = |wc| cq::flags(&wc);
    read_slid: u32 = |wc| wc.slid.into();
    read_sl: u8 = |wc| wc.sl;
    read_timestamp: u64 = |wc| wc.timestamp;
}

/// Path bits of a fabric that has none.
unsafe extern "C" fn read_zero(_: *mut ibv_cq_ex) -> u8 {
    0
}
