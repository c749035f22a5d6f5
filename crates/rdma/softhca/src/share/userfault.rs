//! A userfaultfd: threads and system calls that touch missing pages, or write to protected ones, wait.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;

use libc::c_ulong;

use super::PAGE;
use super::syscall::{check, owned};

// From linux/userfaultfd.h.
const UFFD_API: u64 = 0xaa;
const UFFDIO_API: c_ulong = 0xc018_aa3f;
const UFFDIO_REGISTER: c_ulong = 0xc020_aa00;
const UFFDIO_UNREGISTER: c_ulong = 0x8010_aa01;
const UFFDIO_WAKE: c_ulong = 0x8010_aa02;
const UFFDIO_MOVE: c_ulong = 0xc028_aa05;
const UFFDIO_WRITEPROTECT: c_ulong = 0xc018_aa06;
const UFFDIO_REGISTER_MODE_MISSING: u64 = 1;
const UFFDIO_REGISTER_MODE_WP: u64 = 2;
const UFFDIO_WRITEPROTECT_MODE_WP: u64 = 1;
const UFFDIO_MOVE_MODE_DONTWAKE: u64 = 1;
const UFFDIO_MOVE_MODE_ALLOW_SRC_HOLES: u64 = 2;

/// How often in a row the kernel may ask to try again and have moved nothing.
const MOST_IN_VAIN: u32 = 16;

#[repr(C)]
struct UffdApi {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
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

#[repr(C)]
struct UffdWriteProtect {
    range: UffdRange,
    mode: u64,
}

#[repr(C)]
struct UffdMove {
    to: u64,
    from: u64,
    length: u64,
    mode: u64,
    /// Bytes, or an error.
    moved: i64,
}

/// The descriptor.
pub(super) struct Handler(OwnedFd);

impl Handler {
    /// Opens one.
    ///
    /// # Errors
    /// `PermissionDenied` without the privilege: the kernel would fail system calls on missing pages. `InvalidInput` before
    /// Linux 6.8, which cannot tell pages that are being read into.
    pub fn new() -> io::Result<Self> {
        // SAFETY: no memory is passed.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK) };
        let handler = Self(owned(fd)?);
        let mut api = UffdApi { api: UFFD_API, features: fabric::PAGE_TURNER_FEATURES, ioctls: 0 };
        // SAFETY: the argument is live and of the request's type.
        check(unsafe { libc::ioctl(handler.0.as_raw_fd(), UFFDIO_API, &mut api) })?;
        Ok(handler)
    }

    /// Makes threads that touch missing pages of `range` wait.
    ///
    /// # Errors
    /// `ResourceBusy` if another userfaultfd has them; otherwise the errors of the system call.
    pub fn hold_at_missing(&self, range: &Range<u64>) -> io::Result<Held<'_>> {
        self.register(range, UFFDIO_REGISTER_MODE_MISSING)
    }

    /// Makes threads that write to `range` wait.
    ///
    /// # Errors
    /// As for [`Self::hold_at_missing`].
    pub fn hold_writers(&self, range: &Range<u64>) -> io::Result<Held<'_>> {
        let held = self.register(range, UFFDIO_REGISTER_MODE_WP)?;
        let mut protect = UffdWriteProtect { range: held.range, mode: UFFDIO_WRITEPROTECT_MODE_WP };
        // SAFETY: the argument is live and of the request's type.
        check(unsafe { libc::ioctl(self.0.as_raw_fd(), UFFDIO_WRITEPROTECT, &mut protect) })?;
        Ok(held)
    }

    fn register(&self, range: &Range<u64>, mode: u64) -> io::Result<Held<'_>> {
        let range = UffdRange { start: range.start, length: range.end - range.start };
        let mut register = UffdRegister { range, mode, ioctls: 0 };
        // SAFETY: the argument is live and of the request's type.
        check(unsafe { libc::ioctl(self.0.as_raw_fd(), UFFDIO_REGISTER, &mut register) })?;
        Ok(Held { handler: self, range })
    }

    /// Moves all existing pages of `length` bytes to a range that is registered here for missing pages. Returns the
    /// number of processed bytes; pages behind them may have been moved, too. The kernel (6.18) reports too few where it has moved pages in
    /// memory meanwhile, as to compact it.
    ///
    /// # Errors
    /// `ResourceBusy` if the kernel or another process has a page pinned or shares it. `AlreadyExists` if there is a
    /// page at both places.
    pub fn move_all(&self, pages: &PageTable, from: u64, to: u64, length: u64) -> (u64, io::Result<()>) {
        let (mut done, mut in_vain) = (0, 0);
        while done < length {
            let mode = UFFDIO_MOVE_MODE_DONTWAKE | UFFDIO_MOVE_MODE_ALLOW_SRC_HOLES;
            let mut order =
                UffdMove { to: to + done, from: from + done, length: length - done, mode, moved: 0 };
            // SAFETY: the argument is live and of the request's type.
            match check(unsafe { libc::ioctl(self.0.as_raw_fd(), UFFDIO_MOVE, &mut order) }) {
                Err(error)
                    if error.raw_os_error() == Some(libc::EEXIST)
                        && pages.has(from + done).is_ok_and(|is_left| !is_left) =>
                {
                    order.moved = PAGE as i64;
                }
                Err(error) if error.raw_os_error() != Some(libc::EAGAIN) => return (done, Err(error)),
                _ => {}
            }
            let moved = u64::try_from(order.moved).unwrap_or(0);
            in_vain = if moved == 0 { in_vain + 1 } else { 0 };
            if in_vain > MOST_IN_VAIN {
                return (done, Err(io::ErrorKind::ResourceBusy.into()));
            }
            done += moved;
        }
        (done, Ok(()))
    }
}

/// Which pages this process has.
pub(super) struct PageTable(File);

impl PageTable {
    /// Opens it.
    ///
    /// # Errors
    /// The errors of `open`; `/proc` may be missing.
    pub fn open() -> io::Result<Self> {
        File::open("/proc/self/pagemap").map(Self)
    }

    /// Whether there is one at `address`, also one that is swapped out, or on its way.
    ///
    /// # Errors
    /// The errors of reading.
    pub fn has(&self, address: u64) -> io::Result<bool> {
        // Bits of an entry, from admin-guide/mm/pagemap.rst.
        const PRESENT: u64 = 1 << 63;
        const SWAPPED: u64 = 1 << 62;
        let mut entry = [0; size_of::<u64>()];
        self.0.read_exact_at(&mut entry, address / PAGE * size_of::<u64>() as u64)?;
        Ok(u64::from_ne_bytes(entry) & (PRESENT | SWAPPED) != 0)
    }
}

/// A range for which threads wait as long as this value exists.
pub(super) struct Held<'a> {
    handler: &'a Handler,
    range: UffdRange,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let fd = self.handler.0.as_raw_fd();
        // SAFETY: the arguments are live and of the requests' types. Ranges that were mapped over are not registered any more; threads
        // that wait for them are woken all the same.
        unsafe {
            libc::ioctl(fd, UFFDIO_UNREGISTER, &self.range);
            libc::ioctl(fd, UFFDIO_WAKE, &self.range);
        }
    }
}
