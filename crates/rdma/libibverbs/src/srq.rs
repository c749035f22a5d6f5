//! Shared receive queues.

use libc::c_int;
use softhca::{Errno, SrqAttr, Xrc};
use verbs_abi::constants::event::IBV_EVENT_SRQ_LIMIT_REACHED;
use verbs_abi::constants::srq_init_attr::{
    IBV_SRQ_INIT_ATTR_CQ, IBV_SRQ_INIT_ATTR_PD, IBV_SRQ_INIT_ATTR_TYPE, IBV_SRQ_INIT_ATTR_XRCD,
};
use verbs_abi::constants::srq_type::{IBV_SRQT_BASIC, IBV_SRQT_XRC};
use verbs_abi::{ibv_context, ibv_pd, ibv_srq, ibv_srq_attr, ibv_srq_init_attr, ibv_srq_init_attr_ex};

use crate::context::{Context, Raised};
use crate::cq::Cq;
use crate::domain::Pd;
use crate::process::{Held, Process};
use crate::xrc::Xrcd;
use crate::{errno, object};
use waiting::Acks;

/// `enum ibv_srq_attr_mask`.
const MAX_WR: u32 = 1;
const LIMIT: u32 = 2;

/// The object behind a program's `ibv_srq`.
#[repr(C)]
pub(crate) struct Srq {
    base: ibv_srq,
    pub(crate) process: &'static Process,
    pub(crate) handle: softhca::Srq,
    pub(crate) acks: Acks,
}

starts_with!(Srq, ibv_srq);

pub(crate) unsafe extern "C" fn ibv_create_srq(
    pd: *mut ibv_pd,
    init: *mut ibv_srq_init_attr,
) -> *mut ibv_srq {
    // SAFETY: the contract of verbs.
    errno::object(|| unsafe { create(pd, &mut *init, None) })
}

/// # Safety
/// `pd` is a PD of this library.
unsafe fn create(
    pd: *mut ibv_pd,
    init: &mut ibv_srq_init_attr,
    xrc: Option<Xrc>,
) -> Result<*mut ibv_srq, Errno> {
    // SAFETY: the caller's promise.
    let (context, pd_handle) = unsafe { ((*pd).context, Pd::of(pd).handle) };
    // SAFETY: a context outlives its objects.
    let process = unsafe { Context::of(context) }.process;
    process.with(|state| {
        // The limit is set by modifying, not by creating.
        let wanted = SrqAttr { max_wr: init.attr.max_wr, max_sge: init.attr.max_sge, limit: 0 };
        let (handle, granted) = match xrc {
            Some(xrc) => state.device.create_xrc_srq(pd_handle, xrc, &wanted)?,
            None => state.device.create_srq(pd_handle, &wanted)?,
        };
        (init.attr.max_wr, init.attr.max_sge) = (granted.max_wr, granted.max_sge);
        let base = ibv_srq {
            context,
            srq_context: init.srq_context,
            pd,
            handle: handle.0,
            mutex: libc::PTHREAD_MUTEX_INITIALIZER,
            cond: libc::PTHREAD_COND_INITIALIZER,
            events_completed: 0,
        };
        let srq = object::give(Srq { base, process, handle, acks: Acks::default() });
        state.objects.srqs.insert(handle, Held(srq));
        // SAFETY: the caller's promise.
        unsafe { Pd::of(pd) }.enter();
        Ok(srq)
    })
}

/// Basic SRQs, and SRQs of extended reliable connections. Tag matching is not supported.
pub(crate) unsafe extern "C" fn create_srq_ex(
    context: *mut ibv_context,
    init: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    // SAFETY: the contract of verbs.
    let xrc = unsafe { wanted(context, &*init) };
    // SAFETY: the contract of verbs; the extended attributes start with the plain ones.
    errno::object(|| xrc.and_then(|xrc| unsafe { create((*init).pd, &mut *init.cast(), xrc) }))
}

/// The extended attributes of an SRQ for extended reliable connections, or none.
///
/// # Safety
/// The objects that `init` names are of this library.
unsafe fn wanted(context: *mut ibv_context, init: &ibv_srq_init_attr_ex) -> Result<Option<Xrc>, Errno> {
    const XRC: u32 = IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
    let has = |bits: u32| init.comp_mask & bits == bits;
    let srq_type = if has(IBV_SRQ_INIT_ATTR_TYPE) { init.srq_type } else { IBV_SRQT_BASIC };
    let known = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | XRC;
    if srq_type > IBV_SRQT_XRC || init.comp_mask & !known != 0 {
        return Err(Errno::UNSUPPORTED);
    }
    // SAFETY: the caller's promise.
    if !has(IBV_SRQ_INIT_ATTR_PD) || init.pd.is_null() || unsafe { (*init.pd).context } != context {
        return Err(Errno::INVALID);
    }
    if srq_type == IBV_SRQT_BASIC {
        return Ok(None);
    }
    if !has(XRC) || init.xrcd.is_null() || init.cq.is_null() {
        return Err(Errno::INVALID);
    }
    // SAFETY: the caller's promise.
    unsafe {
        if (*init.xrcd).context != context || (*init.cq).context != context {
            return Err(Errno::INVALID);
        }
        Ok(Some(Xrc { xrcd: Xrcd::of(init.xrcd).handle, cq: Cq::of(init.cq).handle }))
    }
}

pub(crate) unsafe extern "C" fn ibv_modify_srq(
    srq: *mut ibv_srq,
    attr: *mut ibv_srq_attr,
    mask: c_int,
) -> c_int {
    // SAFETY: the contract of verbs.
    let (object, attr) = unsafe { (Srq::of(srq), &*attr) };
    let mask = mask.cast_unsigned();
    if mask & !(MAX_WR | LIMIT) != 0 {
        return libc::EINVAL;
    }
    let max_wr = (mask & MAX_WR != 0).then_some(attr.max_wr);
    let limit = (mask & LIMIT != 0).then_some(attr.srq_limit);
    errno::code(object.process.with(|state| state.device.modify_srq(object.handle, max_wr, limit)))
}

pub(crate) unsafe extern "C" fn ibv_query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    // SAFETY: the contract of verbs.
    let object = unsafe { Srq::of(srq) };
    errno::code(object.process.with(|state| state.device.query_srq(object.handle)).map(|found| {
        let found = ibv_srq_attr { max_wr: found.max_wr, max_sge: found.max_sge, srq_limit: found.limit };
        // SAFETY: the contract of verbs: `attr` can be written.
        unsafe { attr.write(found) };
    }))
}

pub(crate) unsafe extern "C" fn get_srq_num(srq: *mut ibv_srq, number: *mut u32) -> c_int {
    // SAFETY: the contract of verbs.
    let object = unsafe { Srq::of(srq) };
    errno::code(object.process.with(|state| state.device.srq_number(object.handle)).map(|found| {
        // SAFETY: the contract of verbs: `number` can be written.
        unsafe { number.write(found) };
    }))
}

/// Waits until the program has acknowledged the SRQ's events.
pub(crate) unsafe extern "C" fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
    // SAFETY: the contract of verbs.
    let object = unsafe { Srq::of(srq) };
    let destroyed = object.process.with(|state| {
        state.device.destroy_srq(object.handle)?;
        state.objects.srqs.remove(&object.handle);
        // SAFETY: a PD outlives its objects.
        unsafe { Pd::of(object.base.pd) }.leave();
        Ok(())
    });
    if let Err(errno) = destroyed {
        return errno.0;
    }
    // SAFETY: a context outlives its objects.
    unsafe { Context::of(object.base.context) }.asynchronous.withdraw(|Raised(event)| {
        // SAFETY: the type says that this member is set.
        event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED && unsafe { event.element.srq } == srq
    });
    object.acks.wait();
    // SAFETY: `create` gave it, and the program gives it back.
    unsafe { object::take::<Srq, _>(srq) };
    0
}
