//! Re-registration of memory regions, null regions, and `ibv_advise_mr`.

use libc::{c_int, c_void};
use softhca::{Errno, Rereg, Sge};
use verbs_abi::constants::advise_mr::{
    IBV_ADVISE_MR_ADVICE_PREFETCH, IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT,
    IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, IBV_ADVISE_MR_FLAG_FLUSH,
};
use verbs_abi::constants::rereg_mr::{
    IBV_REREG_MR_CHANGE_ACCESS, IBV_REREG_MR_CHANGE_PD, IBV_REREG_MR_CHANGE_TRANSLATION,
};
use verbs_abi::{ibv_mr, ibv_pd, ibv_sge};

use crate::context::Context;
use crate::domain::Pd;
use crate::memory::{self, Mr, PAGE};
use crate::{errno, post};

/// 0, or `IBV_REREG_MR_ERR_INPUT`: then the region stays as it was.
pub(crate) unsafe extern "C" fn ibv_rereg_mr(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    // SAFETY: the contract of verbs.
    errno::minus_one(unsafe { wanted(mr, flags, pd, addr, length, access) }.and_then(|change| {
        // SAFETY: the contract of verbs: the region is live, and the memory, which is there, stays.
        unsafe {
            let handle = Mr::of(mr).handle;
            Context::of((*mr).context).process.with(|state| state.device.rereg_mr(handle, &change))?;
            if change.translation.is_some() {
                ((*mr).addr, (*mr).length) = (addr, length);
            }
            if change.pd.is_some() {
                Pd::of((*mr).pd).leave();
                Pd::of(pd).enter();
                (*mr).pd = pd;
            }
        }
        Ok(())
    }))
}

/// # Safety
/// `mr` is a region, and `pd` a PD, of this library, the latter if the flags say so.
unsafe fn wanted(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> Result<Rereg, Errno> {
    let has = |flag: c_int| flags & flag != 0;
    let known = IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_PD | IBV_REREG_MR_CHANGE_ACCESS;
    // SAFETY: the caller's promise.
    let is_of_another = || pd.is_null() || unsafe { (*pd).context != (*mr).context };
    if flags == 0 || flags & !known != 0 || has(IBV_REREG_MR_CHANGE_PD) && is_of_another() {
        return Err(Errno::INVALID);
    }
    let moves = has(IBV_REREG_MR_CHANGE_TRANSLATION);
    let access = match has(IBV_REREG_MR_CHANGE_ACCESS) {
        true => Some(memory::access(access.cast_unsigned())?),
        false => None,
    };
    // SAFETY: the caller's promise.
    unsafe {
        let has_now = || {
            let handle = Mr::of(mr).handle;
            Context::of((*mr).context).process.with(|state| state.device.access_of(handle))
        };
        let (addr, length) = if moves { (addr, length) } else { ((*mr).addr, (*mr).length) };
        if moves || access.is_some() {
            memory::check_mapped(addr, length, access.map_or_else(has_now, Ok)?)?;
        }
    }
    Ok(Rereg {
        translation: moves.then_some((addr as u64, length as u64)),
        // SAFETY: the caller's promise.
        pd: has(IBV_REREG_MR_CHANGE_PD).then(|| unsafe { Pd::of(pd) }.handle),
        access,
    })
}

/// A region that reads as zeroes, and into which bytes vanish.
pub(crate) unsafe extern "C" fn alloc_null_mr(pd: *mut ibv_pd) -> *mut ibv_mr {
    // SAFETY: the contract of verbs.
    errno::object(|| unsafe {
        memory::give(pd, std::ptr::null_mut(), usize::MAX, None, |state, pd| state.device.alloc_null_mr(pd))
    })
}

/// Brings pages in before they are needed. Nothing is done later, so that `flags` change nothing.
pub(crate) unsafe extern "C" fn advise_mr(
    pd: *mut ibv_pd,
    advice: u32,
    flags: u32,
    list: *mut ibv_sge,
    count: u32,
) -> c_int {
    let stores = advice == IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE;
    let kernel_advice = match advice {
        IBV_ADVISE_MR_ADVICE_PREFETCH => libc::MADV_POPULATE_READ,
        IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE => libc::MADV_POPULATE_WRITE,
        IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT => libc::MADV_WILLNEED,
        _ => return libc::EOPNOTSUPP,
    };
    if flags & !IBV_ADVISE_MR_FLAG_FLUSH != 0 {
        return libc::EOPNOTSUPP;
    }
    let Ok(count) = c_int::try_from(count) else { return libc::EINVAL };
    // SAFETY: the contract of verbs: the list has `count` elements.
    errno::code(unsafe { post::elements(list, count) }.and_then(|pieces| {
        pieces.iter().try_for_each(|piece| {
            // SAFETY: the contract of verbs.
            let (start, end) = unsafe { pages(pd, piece, stores) }?;
            // SAFETY: the pages' content does not change. A kernel that does not know the advice need not follow it.
            unsafe { libc::madvise(start as *mut c_void, end - start, kernel_advice) };
            Ok(())
        })
    }))
}

/// The pages in which `piece` of `pd` lies.
///
/// # Safety
/// `pd` is a PD of this library.
unsafe fn pages(pd: *mut ibv_pd, piece: &Sge, stores: bool) -> Result<(usize, usize), Errno> {
    // SAFETY: the caller's promise; a context outlives its objects.
    let (process, handle) = unsafe { (Context::of((*pd).context).process, Pd::of(pd).handle) };
    let address = process.with(|state| Ok(state.device.address_of(handle, piece, stores)))?;
    let address = address.ok_or(Errno(libc::EFAULT))? as usize;
    let end = address + piece.length as usize;
    Ok((address & !(PAGE - 1), end.next_multiple_of(PAGE)))
}
