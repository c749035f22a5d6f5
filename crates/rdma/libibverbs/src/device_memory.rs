//! Device memory. The device is part of the program, so this is ordinary memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use libc::{c_int, c_uint, c_void};
use softhca::{Access, Errno};
use verbs_abi::{ibv_alloc_dm_attr, ibv_context, ibv_dm, ibv_mr, ibv_pd};

use crate::context::Context;
use crate::memory;
use crate::process::Process;
use crate::{errno, object};

/// How much there is, in bytes.
pub(crate) const SIZE: usize = 256 * 1024;

/// The words of an allocation, shared with the regions that register them.
pub(crate) type DeviceMemory = Arc<[AtomicU64]>;

/// Offsets and lengths of copies are multiples of this: device memory is accessed by words.
const WORD: usize = 4;

/// The strongest alignment that can be asked for, as a power of two: that of a page.
const MOST_ALIGNED: u32 = 12;

/// The object behind a program's `ibv_dm`.
#[repr(C)]
struct Dm {
    base: ibv_dm,
    words: DeviceMemory,
    /// Where in the words it begins, in bytes, and how many it has.
    start: usize,
    length: usize,
    process: &'static Process,
}

starts_with!(Dm, ibv_dm);

impl Dm {
    /// The address of `length` bytes at `offset`.
    ///
    /// # Errors
    /// `EINVAL` if they are not all within.
    fn at(&self, offset: u64, length: usize) -> Result<*mut u8, Errno> {
        let offset = usize::try_from(offset).map_err(|_| Errno::INVALID)?;
        let end = offset.checked_add(length).ok_or(Errno::INVALID)?;
        if end > self.length {
            return Err(Errno::INVALID);
        }
        // SAFETY: the offset is within the words, or at their end.
        Ok(unsafe { self.words.as_ptr().cast::<u8>().cast_mut().add(self.start + offset) })
    }

    /// The same for the program's copies, which are whole words.
    ///
    /// # Errors
    /// `EINVAL` if they are not, or not all within.
    fn words_at(&self, offset: u64, length: usize) -> Result<*mut u8, Errno> {
        let place = self.at(offset, length)?;
        let is_whole = offset.is_multiple_of(WORD as u64) && length.is_multiple_of(WORD);
        if is_whole { Ok(place) } else { Err(Errno::INVALID) }
    }
}

/// Takes `length` bytes of the free memory.
///
/// # Errors
/// `ENOMEM` if there is not as much left.
fn take(used: &AtomicUsize, length: usize) -> Result<(), Errno> {
    let with = |used: usize| used.checked_add(length).filter(|used| *used <= SIZE);
    used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, with).map(drop).map_err(|_| Errno::NO_MEMORY)
}

pub(crate) unsafe extern "C" fn alloc_dm(
    context: *mut ibv_context,
    attr: *mut ibv_alloc_dm_attr,
) -> *mut ibv_dm {
    // SAFETY: the contract of verbs.
    let (attr, process) = unsafe { (*attr, Context::of(context).process) };
    errno::object(|| allocate(context, attr, process))
}

fn allocate(
    context: *mut ibv_context,
    attr: ibv_alloc_dm_attr,
    process: &'static Process,
) -> Result<*mut ibv_dm, Errno> {
    if attr.comp_mask != 0 || attr.log_align_req > MOST_ALIGNED {
        return Err(Errno::UNSUPPORTED);
    }
    if attr.length == 0 {
        return Err(Errno::INVALID);
    }
    take(&process.device_memory, attr.length)?;
    let aligned = 1 << attr.log_align_req;
    let words: DeviceMemory = (0..(attr.length + aligned).div_ceil(8)).map(|_| AtomicU64::new(0)).collect();
    let start = words.as_ptr().cast::<u8>().align_offset(aligned);
    let (memcpy_to_dm, memcpy_from_dm) = (Some(copy_in as _), Some(copy_out as _));
    Ok(object::give(Dm {
        base: ibv_dm { context, memcpy_to_dm, memcpy_from_dm, comp_mask: 0, handle: 0 },
        words,
        start,
        length: attr.length,
        process,
    }))
}

pub(crate) unsafe extern "C" fn free_dm(dm: *mut ibv_dm) -> c_int {
    // SAFETY: the contract of verbs.
    let given_back = unsafe { Dm::of(dm) };
    if Arc::strong_count(&given_back.words) > 1 {
        return libc::EBUSY;
    }
    given_back.process.device_memory.fetch_sub(given_back.length, Ordering::Relaxed);
    // SAFETY: `alloc_dm` gave it, and the program gives it back.
    unsafe { object::take::<Dm, _>(dm) };
    0
}

/// Device memory is addressed from its region's start on, hence zero-based.
pub(crate) unsafe extern "C" fn reg_dm_mr(
    pd: *mut ibv_pd,
    dm: *mut ibv_dm,
    offset: u64,
    length: usize,
    access: c_uint,
) -> *mut ibv_mr {
    // SAFETY: the contract of verbs.
    let dm = unsafe { Dm::of(dm) };
    let place = dm.at(offset, length);
    let access = memory::access(access).and_then(|access| match access.contains(Access::ZERO_BASED) {
        true => Ok(access),
        false => Err(Errno::INVALID),
    });
    errno::object(|| {
        place.and_then(|place| {
            let access = access?;
            // SAFETY: the region keeps the memory.
            unsafe {
                memory::give(pd, std::ptr::null_mut(), length, Some(Arc::clone(&dm.words)), |state, pd| {
                    state.device.reg_mr(pd, place as u64, length as u64, 0, access)
                })
            }
        })
    })
}

unsafe extern "C" fn copy_in(dm: *mut ibv_dm, offset: u64, from: *const c_void, length: usize) -> c_int {
    // SAFETY: the contract of verbs.
    errno::code(unsafe { Dm::of(dm) }.words_at(offset, length).map(|to| {
        // SAFETY: the contract of verbs: `length` bytes can be read at `from`; so many are there at `to`.
        unsafe { to.copy_from(from.cast(), length) };
    }))
}

unsafe extern "C" fn copy_out(to: *mut c_void, dm: *mut ibv_dm, offset: u64, length: usize) -> c_int {
    // SAFETY: the contract of verbs.
    errno::code(unsafe { Dm::of(dm) }.words_at(offset, length).map(|from| {
        // SAFETY: the contract of verbs: `length` bytes can be written at `to`; so many are there at `from`.
        unsafe { to.cast::<u8>().copy_from(from, length) };
    }))
}
