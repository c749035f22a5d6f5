//! Memory windows.

use libc::c_int;
use softhca::{Access, Binding, Errno, Payload, SendOp, SendWr, WindowKind};
use verbs_abi::constants::mw_type::{IBV_MW_TYPE_1, IBV_MW_TYPE_2};
use verbs_abi::constants::send_flags::{IBV_SEND_FENCE, IBV_SEND_SIGNALED};
use verbs_abi::{ibv_mw, ibv_mw_bind, ibv_mw_bind_info, ibv_pd, ibv_qp};

use crate::context::Context;
use crate::domain::Pd;
use crate::process::Held;
use crate::qp::Qp;
use crate::{errno, object};

/// Keys of one window: the lowest byte goes round.
const KEYS: u32 = 0xff;

/// The object behind a program's `ibv_mw`.
#[repr(C)]
struct Mw {
    base: ibv_mw,
    handle: softhca::Mw,
}

starts_with!(Mw, ibv_mw);

pub(crate) unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, mw_type: u32) -> *mut ibv_mw {
    let kind = match mw_type {
        IBV_MW_TYPE_1 => WindowKind::One,
        IBV_MW_TYPE_2 => WindowKind::Two,
        _ => return errno::object(|| Err(Errno::INVALID)),
    };
    // SAFETY: the contract of verbs.
    let (context, pd_handle) = unsafe { ((*pd).context, Pd::of(pd).handle) };
    // SAFETY: a context outlives its objects.
    let process = unsafe { Context::of(context) }.process;
    errno::object(|| {
        process.with(|state| {
            let (handle, rkey) = state.device.alloc_mw(pd_handle, kind)?;
            state.objects.mws.insert(handle, Held(context));
            // SAFETY: the contract of verbs.
            unsafe { Pd::of(pd) }.enter();
            let base = ibv_mw { context, pd, rkey, handle: handle.0, r#type: mw_type };
            Ok(object::give(Mw { base, handle }))
        })
    })
}

pub(crate) unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    // SAFETY: the contract of verbs.
    let (process, handle) = unsafe { (Context::of((*mw).context).process, Mw::of(mw).handle) };
    errno::code(process.with(|state| {
        state.device.dealloc_mw(handle)?;
        state.objects.mws.remove(&handle);
        // SAFETY: the contract of verbs.
        unsafe { Pd::of((*mw).pd) }.leave();
        // SAFETY: `alloc_mw` gave it, and the program gives it back.
        unsafe { object::take::<Mw, _>(mw) };
        Ok(())
    }))
}

/// Posts the binding of a window of type 1, and gives it the key that it then has.
pub(crate) unsafe extern "C" fn bind_mw(qp: *mut ibv_qp, mw: *mut ibv_mw, bind: *mut ibv_mw_bind) -> c_int {
    // SAFETY: the contract of verbs.
    let (qp, bind, rkey) = unsafe { (Qp::of(qp), &*bind, (*mw).rkey) };
    let key = next_key(rkey);
    errno::code(
        // SAFETY: the contract of verbs.
        unsafe { binding(mw, key, &bind.bind_info) }.and_then(|op| {
            let wr = SendWr {
                wr_id: bind.wr_id,
                op,
                signaled: bind.send_flags & IBV_SEND_SIGNALED != 0,
                fence: bind.send_flags & IBV_SEND_FENCE != 0,
                solicited: false,
                srq_number: 0,
                payload: Payload::Sges(&[]),
            };
            qp.process.with(|state| {
                // SAFETY: nothing is inline.
                unsafe { state.device.post_send(qp.handle, &wr) }?;
                state.device.flush_doorbell(qp.handle);
                Ok(())
            })?;
            // SAFETY: the contract of verbs: the window is live.
            unsafe { (*mw).rkey = key };
            Ok(())
        }),
    )
}

/// As `ibv_inc_rkey`.
fn next_key(rkey: u32) -> u32 {
    rkey & !KEYS | rkey.wrapping_add(1) & KEYS
}

/// The request to bind `mw` under the key `rkey`.
///
/// # Safety
/// `mw` is a window, and the region that `info` names one of this library, or NULL.
pub(crate) unsafe fn binding(mw: *mut ibv_mw, rkey: u32, info: &ibv_mw_bind_info) -> Result<SendOp, Errno> {
    // SAFETY: the caller's promise.
    let (own, region) = unsafe { (mw.as_ref(), info.mr.as_ref()) };
    let is_own_key = own.is_some_and(|mw| mw.rkey & !KEYS == rkey & !KEYS);
    // A region that is only named need not be bound to.
    let length = if region.is_some() { info.length } else { 0 };
    if !is_own_key {
        return Err(Errno::INVALID);
    }
    Ok(SendOp::Bind(Binding {
        key: rkey,
        lkey: region.map_or(0, |mr| mr.lkey),
        // Programs include local rights as well, which a window does not have, and hardware ignores that.
        access: Access::from_bits(info.mw_access_flags).ok_or(Errno::INVALID)? - Access::LOCAL_WRITE,
        va: info.addr,
        length,
    }))
}
