//! Turning private pages into shared ones, where they are, while the program uses them.
//!
//! For each window of at most [`WINDOW`] bytes:
//!
//! 1. the window is registered with a userfaultfd: who touches a page that is missing will wait;
//! 2. `mremap(MREMAP_DONTUNMAP)` moves its pages elsewhere: from here on they are all missing;
//! 3. the pages' content is copied into the memfd;
//! 4. the memfd is mapped over the window, and who waited is woken.
//!
//! No store is lost, since each happens either before step 2 or after step 4. Between those steps this thread must not
//! touch the window, which may hold anything of the heap: it only makes system calls
//! and uses its stack.
//!
//! The way back is one `mmap(MAP_PRIVATE)` of the same memfd over the range.

use std::ffi::CStr;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

use libc::{c_int, c_ulong, c_void};

/// Who touches a window while it is turned waits for this many bytes to be copied.
pub(super) const WINDOW: u64 = 1 << 20;

pub(super) const PAGE: u64 = 4096;

const SEALS: c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

// From linux/userfaultfd.h.
const UFFD_API: u64 = 0xaa;
const UFFDIO_API: c_ulong = 0xc018_aa3f;
const UFFDIO_REGISTER: c_ulong = 0xc020_aa00;
const UFFDIO_UNREGISTER: c_ulong = 0x8010_aa01;
const UFFDIO_WAKE: c_ulong = 0x8010_aa02;
const UFFDIO_REGISTER_MODE_MISSING: u64 = 1;

#[repr(C)]
struct UffdApi {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct UffdRange {
    start: u64,
    length: u64,
}

#[repr(C)]
struct UffdRegister {
    range: UffdRange,
    mode: u64,
    ioctls: u64,
}

/// A sealed memfd of `length` bytes.
pub(super) fn create_memory(length: u64) -> io::Result<OwnedFd> {
    const NAME: &CStr = c"transhume-pages";
    // SAFETY: the name is a C string.
    let fd = unsafe { libc::memfd_create(NAME.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    let memory = owned(fd)?;
    let size = libc::off_t::try_from(length).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: no memory is passed.
    check(unsafe { libc::ftruncate(memory.as_raw_fd(), size) })?;
    // SAFETY: no memory is passed.
    check(unsafe { libc::fcntl(memory.as_raw_fd(), libc::F_ADD_SEALS, SEALS) })?;
    Ok(memory)
}

/// Makes missing pages wait, for system calls as well.
///
/// # Errors
/// `PermissionDenied` without the privilege: the kernel would fail system calls on missing pages.
pub(super) fn fault_handler() -> io::Result<OwnedFd> {
    // SAFETY: no memory is passed.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK) };
    let handler = owned(RawFd::try_from(fd).unwrap_or(-1))?;
    let mut api = UffdApi { api: UFFD_API, features: 0, ioctls: 0 };
    // SAFETY: the argument is live and of the request's type.
    check(unsafe { libc::ioctl(handler.as_raw_fd(), UFFDIO_API, &mut api) })?;
    Ok(handler)
}

/// Turns `window`, which lies in one private anonymous mapping, into the bytes of `memory` from
/// `offset` on.
///
/// # Errors
/// Those of the system calls. The window is then as it was.
///
/// # Safety
/// Nothing of this thread's stack or thread-local storage lies in the window.
pub(super) unsafe fn turn(
    window: Range<u64>,
    memory: BorrowedFd<'_>,
    offset: u64,
    handler: BorrowedFd<'_>,
) -> io::Result<()> {
    let length = (window.end - window.start) as usize;
    let at = ptr::with_exposed_provenance_mut::<c_void>(window.start as usize);
    let file = memory.as_raw_fd();
    let place = offset as libc::off_t;
    let range = || UffdRange { start: window.start, length: length as u64 };
    let mut register = UffdRegister { range: range(), mode: UFFDIO_REGISTER_MODE_MISSING, ioctls: 0 };
    let fd = handler.as_raw_fd();
    // SAFETY: the argument is live and of the request's type.
    check(unsafe { libc::ioctl(fd, UFFDIO_REGISTER, &mut register) })?;
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP;
    // SAFETY: the window is private memory that stays mapped; its pages are put back below. The kernel looks at
    // the last argument, a hint, also without MREMAP_FIXED.
    let moved = unsafe { libc::mremap(at, length, length, flags, ptr::null_mut::<c_void>()) };
    if moved == libc::MAP_FAILED {
        let error = io::Error::last_os_error();
        // SAFETY: the argument is live and of the request's type.
        unsafe { libc::ioctl(fd, UFFDIO_UNREGISTER, &range()) };
        return Err(error);
    }
    let turned = copy(moved, length, file, place).and_then(|()| {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: this replaces the window, whose content the memory now holds.
        let mapped =
            unsafe { libc::mmap(at, length, rights, libc::MAP_SHARED | libc::MAP_FIXED, file, place) };
        if mapped == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
    });
    // SAFETY: `moved` is this function's own; where turning failed its pages go back to the window.
    unsafe {
        match turned {
            Ok(()) => {
                libc::munmap(moved, length);
            }
            Err(_) => {
                libc::mremap(moved, length, length, libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED, at);
            }
        }
        libc::ioctl(fd, UFFDIO_WAKE, &range());
    }
    turned
}

/// Writes `length` bytes at `from` into `file` at `place`.
fn copy(from: *mut c_void, length: usize, file: RawFd, place: libc::off_t) -> io::Result<()> {
    let mut done = 0;
    while done < length {
        // SAFETY: the range is mapped, by the move that was just made.
        let written =
            unsafe { libc::pwrite(file, from.byte_add(done), length - done, place + done as libc::off_t) };
        match usize::try_from(written) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => done += written,
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
    Ok(())
}

/// Makes `range`, which shows `memory` from `offset` on, private again, with its content.
///
/// # Errors
/// Those of `mmap`; the range is then still shared.
///
/// # Safety
/// `range` shows `memory` from `offset` on.
pub(super) unsafe fn turn_back(range: &Range<u64>, memory: BorrowedFd<'_>, offset: u64) -> io::Result<()> {
    let at = ptr::with_exposed_provenance_mut::<c_void>(range.start as usize);
    let length = (range.end - range.start) as usize;
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_FIXED;
    // SAFETY: the same bytes of the same file replace the mapping, so that nothing changes but who sees stores.
    let mapped = unsafe { libc::mmap(at, length, rights, flags, memory.as_raw_fd(), offset as libc::off_t) };
    if mapped == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A neighbour's memory, mapped.
#[derive(Debug)]
pub(crate) struct Mapped {
    at: *mut c_void,
    length: u64,
}

// SAFETY: the address of a mapping is good in every thread.
unsafe impl Send for Mapped {}
// SAFETY: a shared reference gives out addresses only.
unsafe impl Sync for Mapped {}

impl Mapped {
    /// Maps all of `memory`, if it is one that its owner cannot take away by truncation.
    ///
    /// # Errors
    /// `InvalidData` if it is not; otherwise those of `mmap`.
    pub fn new(memory: &OwnedFd) -> io::Result<Self> {
        // SAFETY: a stat of zeros is valid, and the call fills it.
        let mut about: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: `about` is live and of the right type.
        check(unsafe { libc::fstat(memory.as_raw_fd(), &mut about) })?;
        // SAFETY: no memory is passed.
        let seals = check(unsafe { libc::fcntl(memory.as_raw_fd(), libc::F_GET_SEALS) })?;
        let length = u64::try_from(about.st_size).unwrap_or(0);
        if seals & SEALS != SEALS || length == 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a neighbour's memory is not sealed"));
        }
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a fresh mapping where the kernel likes.
        let at = unsafe {
            libc::mmap(ptr::null_mut(), length as usize, rights, libc::MAP_SHARED, memory.as_raw_fd(), 0)
        };
        if at == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(Self { at, length }) }
    }

    /// Where `length` bytes from `offset` on are, if the memory has them.
    pub fn address(&self, offset: u64, length: u64) -> Option<u64> {
        let end = offset.checked_add(length)?;
        (end <= self.length).then(|| self.at.expose_provenance() as u64 + offset)
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours; windows hold it as long as they use it.
        unsafe { libc::munmap(self.at, self.length as usize) };
    }
}

fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn owned(fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: a descriptor that a call has just returned belongs to nobody else.
    check(fd).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    /// Pages of our own, as a program has them.
    fn pages(length: usize) -> *mut c_void {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a fresh mapping where the kernel likes.
        let at = unsafe { libc::mmap(ptr::null_mut(), length, rights, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        at
    }

    #[test]
    fn no_store_is_lost_while_pages_are_turned_and_turned_back() {
        const LENGTH: usize = 4 << 20;
        let Ok(handler) = fault_handler() else { return eprintln!("skipped: no privilege for userfaultfd") };
        let at = pages(LENGTH);
        let start = at.expose_provenance() as u64;
        // SAFETY: the pages are mapped, aligned, and used as atomics only.
        let words = unsafe { std::slice::from_raw_parts(at.cast::<AtomicU64>(), LENGTH / 8) };
        let memory = create_memory(LENGTH as u64).unwrap();
        let stop = AtomicBool::new(false);
        let counted = std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let mut rounds = 0u64;
                while !stop.load(Ordering::Relaxed) {
                    for word in words.iter().step_by(61) {
                        word.fetch_add(1, Ordering::Relaxed);
                    }
                    rounds += 1;
                }
                rounds
            });
            let turned: Vec<_> = (0..LENGTH as u64)
                .step_by(WINDOW as usize)
                .map(|offset| {
                    let window = start + offset..start + offset + WINDOW;
                    // SAFETY: the pages are our own, and no stack.
                    unsafe { turn(window, memory.as_fd(), offset, handler.as_fd()) }
                })
                .collect();
            // SAFETY: the range shows the memory from its start, or the test fails below.
            let back = unsafe { turn_back(&(start..start + LENGTH as u64), memory.as_fd(), 0) };
            stop.store(true, Ordering::Relaxed);
            assert!(turned.iter().all(Result::is_ok) && back.is_ok(), "{turned:?} {back:?}");
            writer.join().unwrap()
        });
        assert!(words.iter().step_by(61).all(|word| word.load(Ordering::Relaxed) == counted));
    }

    #[test]
    fn both_see_the_same_bytes() {
        let Ok(handler) = fault_handler() else { return eprintln!("skipped: no privilege for userfaultfd") };
        let at = pages(WINDOW as usize);
        let start = at.expose_provenance() as u64;
        let memory = create_memory(WINDOW).unwrap();
        // SAFETY: the pages are our own, and no stack.
        unsafe { turn(start..start + WINDOW, memory.as_fd(), 0, handler.as_fd()) }.unwrap();
        let mapped = Mapped::new(&memory).unwrap();
        let neighbour = mapped.address(100, 8).unwrap();
        // SAFETY: both are mapped.
        unsafe {
            crate::memory::store(neighbour, b"from him");
            let mut seen = Vec::new();
            crate::memory::load(start + 100, 8, &mut seen);
            assert_eq!(seen, b"from him");
        }
    }
}
