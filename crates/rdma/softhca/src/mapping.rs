//! Changes of the address space by plain system calls, past the hooks of other libraries.
//!
//! UCX and Open MPI patch the C library's `mmap`, `munmap` and `mremap` with hooks that invalidate their registration caches.
//! This library remaps registered memory without changing its content; the hooks would take that for a deallocation, and
//! Open MPI would end the job. Nor may code of the program run while this library holds its lock, or while it has
//! taken away pages that this code may need.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use libc::{c_int, c_long, c_void};

/// The source of a mapping.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// Fresh pages.
    Anonymous,
    /// A file, from this offset on.
    File(BorrowedFd<'a>, u64),
}

/// `mmap`.
///
/// # Errors
/// The errors of the system call.
///
/// # Safety
/// With `MAP_FIXED` among `flags`, nothing at `at` is needed any more.
pub unsafe fn map(
    at: *mut c_void,
    length: usize,
    rights: c_int,
    flags: c_int,
    source: Source<'_>,
) -> io::Result<*mut c_void> {
    let (flags, file, offset) = match source {
        Source::Anonymous => (flags | libc::MAP_ANONYMOUS, -1, 0),
        Source::File(file, offset) => (flags, file.as_raw_fd(), offset),
    };
    // SAFETY: the caller's promise.
    result(unsafe { libc::syscall(libc::SYS_mmap, at, length, rights, flags, file, offset) })
}

/// `munmap` for callers that ignore a failure: the mapping then remains.
///
/// # Safety
/// Nothing at `at` is needed any more.
pub unsafe fn unmap(at: *mut c_void, length: usize) {
    // SAFETY: the caller's promise.
    unsafe { libc::syscall(libc::SYS_munmap, at, length) };
}

/// `mremap`, to a place that is given.
///
/// # Errors
/// The errors of the system call.
///
/// # Safety
/// Both ranges are mapped, and nothing at `to` is needed any more.
pub unsafe fn remap(from: *mut c_void, to: *mut c_void, length: usize, flags: c_int) -> io::Result<()> {
    let flags = flags | libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: the caller's promise.
    result(unsafe { libc::syscall(libc::SYS_mremap, from, length, length, flags, to) }).map(drop)
}

/// Whether one shared mapping is at `at`; false also if that cannot be found out.
///
/// # Safety
/// None is needed but that `at` is an address.
pub unsafe fn is_shared(at: *mut c_void, length: usize) -> bool {
    // SAFETY: of a length of 0 the kernel makes a second mapping, where it likes, if the one that is there is shared.
    let again = unsafe { libc::syscall(libc::SYS_mremap, at, 0usize, length, libc::MREMAP_MAYMOVE, 0usize) };
    match result(again) {
        Ok(second) => {
            // SAFETY: it was just made, and no other code knows it.
            unsafe { unmap(second, length) };
            true
        }
        Err(error) => !matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EFAULT)),
    }
}

fn result(code: c_long) -> io::Result<*mut c_void> {
    if code == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok(std::ptr::with_exposed_provenance_mut(code.cast_unsigned() as usize))
}
