//! Memory regions.

use libc::{c_int, c_void};
use softhca::{Access, Errno, Keys};
use verbs_abi::constants::access::IBV_ACCESS_OPTIONAL_RANGE;
use verbs_abi::{ibv_mr, ibv_pd};

use crate::context::Context;
use crate::device_memory::DeviceMemory;
use crate::domain::Pd;
use crate::process::{Held, State};
use crate::{areas, errno, object};

/// The object behind a program's `ibv_mr`.
#[repr(C)]
pub(crate) struct Mr {
    base: ibv_mr,
    pub(crate) handle: softhca::Mr,
    /// Device memory that it is in, and keeps.
    within: Option<DeviceMemory>,
}

starts_with!(Mr, ibv_mr);

pub(crate) unsafe extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the contract of verbs.
    unsafe { ibv_reg_mr_iova2(pd, addr, length, addr as u64, access.cast_unsigned()) }
}

pub(crate) unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the contract of verbs.
    unsafe { ibv_reg_mr_iova2(pd, addr, length, iova, access.cast_unsigned()) }
}

pub(crate) unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: u32,
) -> *mut ibv_mr {
    let access = self::access(access).and_then(|access| check_mapped(addr, length, access).map(|()| access));
    let iova = if access.is_ok_and(|access| access.contains(Access::ZERO_BASED)) { 0 } else { iova };
    errno::object(|| {
        access.and_then(|access| {
            // SAFETY: the memory is there, and the contract of verbs is that it stays until `ibv_dereg_mr`.
            unsafe {
                give(pd, addr, length, None, |state, pd| {
                    state.device.reg_mr(pd, addr as u64, length as u64, iova, access)
                })
            }
        })
    })
}

/// Gives the program a region that `make` makes in `pd`, `within` device memory if it is.
///
/// # Safety
/// `pd` is a PD of this library.
pub(crate) unsafe fn give(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    within: Option<DeviceMemory>,
    make: impl FnOnce(&mut State, softhca::Pd) -> Result<(softhca::Mr, Keys), Errno>,
) -> Result<*mut ibv_mr, Errno> {
    // SAFETY: the caller's promise.
    let (context, domain) = unsafe { ((*pd).context, Pd::of(pd)) };
    // SAFETY: a context outlives its objects.
    let process = unsafe { Context::of(context) }.process;
    process.with(|state| {
        let (handle, Keys { lkey, rkey }) = make(state, domain.handle)?;
        state.objects.mrs.insert(handle, Held(context));
        domain.enter();
        let base = ibv_mr { context, pd, addr, length, handle: handle.0, lkey, rkey };
        Ok(object::give(Mr { base, handle, within }))
    })
}

/// A page of x86-64.
pub(crate) const PAGE: usize = 4096;

/// Refuses memory that is not mapped, not readable, or not writable although `access` includes
/// writes: pinning it for hardware would fail as well.
///
/// # Errors
/// `EFAULT`; `EINVAL` for no bytes, or past the end of the address space.
pub(crate) fn check_mapped(addr: *mut c_void, length: usize, access: Access) -> Result<(), Errno> {
    let start = addr as usize & !(PAGE - 1);
    let end = (addr as usize).checked_add(length).and_then(|end| end.checked_next_multiple_of(PAGE));
    let end = end.filter(|_| length > 0).ok_or(Errno::INVALID)?;
    let writes = access.contains(Access::LOCAL_WRITE);
    let advice = if writes { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
    // SAFETY: no memory is changed; an address that is not mapped is an error, and nothing else is done.
    let is_mapped = unsafe { libc::msync(start as *mut c_void, end - start, libc::MS_ASYNC) } == 0;
    // The first and the last page tell of themselves, and most regions have no others.
    let may_be_used = [start, end - PAGE].into_iter().all(|page| can_populate(page, advice))
        && (end - start <= 2 * PAGE || areas::may_use(&(start as u64..end as u64), writes));
    if is_mapped && may_be_used { Ok(()) } else { Err(Errno(libc::EFAULT)) }
}

/// Whether the kernel can bring in the page at `page`. Those before 5.14 do not know how, and are taken to say yes.
fn can_populate(page: usize, advice: c_int) -> bool {
    // SAFETY: the page's content does not change.
    let populate = |page: usize| unsafe { libc::madvise(page as *mut c_void, PAGE, advice) } == 0;
    let own = 0u8;
    populate(page) || !populate((&raw const own).addr() & !(PAGE - 1))
}

/// Optional flags are hints. Features that the device lacks (on-demand paging, huge-page hints) are refused.
pub(crate) fn access(flags: u32) -> Result<Access, Errno> {
    Access::from_bits(flags & !IBV_ACCESS_OPTIONAL_RANGE).ok_or(Errno::UNSUPPORTED)
}

pub(crate) unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    // SAFETY: the contract of verbs.
    let (process, handle) = unsafe { (Context::of((*mr).context).process, Mr::of(mr).handle) };
    errno::code(process.with(|state| {
        state.device.dereg_mr(handle)?;
        state.objects.mrs.remove(&handle);
        // SAFETY: the contract of verbs.
        unsafe { Pd::of((*mr).pd) }.leave();
        // SAFETY: registration gave it, and the program gives it back.
        unsafe { object::take::<Mr, _>(mr) };
        Ok(())
    }))
}

/// Not supported: the device has no memory to share.
pub(crate) unsafe extern "C" fn ibv_reg_dmabuf_mr(
    _pd: *mut ibv_pd,
    _offset: u64,
    _length: usize,
    _iova: u64,
    _fd: c_int,
    _access: c_int,
) -> *mut ibv_mr {
    errno::object(|| Err(Errno::UNSUPPORTED))
}
