//! The memfd that both sides map.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::{mem, ptr};

use libc::{c_int, c_long, c_void};

use super::PAGE;
use super::syscall::{check, owned};
use crate::mapping::{self, Source};

const SEALS: c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// A memfd of `length` bytes, which no other user can open again.
///
/// # Errors
/// The errors of the system calls, and `FileTooLarge` where the process' limit for files would end it by a
/// signal.
pub(super) fn create(length: u64) -> io::Result<OwnedFd> {
    const NAME: &CStr = c"transhume-pages";
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the argument is live and of the right type.
    check(unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit) })?;
    if limit.rlim_cur < length {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    // SAFETY: the name is a C string.
    let memory =
        owned(unsafe { libc::memfd_create(NAME.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) })?;
    let size = libc::off_t::try_from(length).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: no memory is passed.
    check(unsafe { libc::ftruncate(memory.as_raw_fd(), size) })?;
    // SAFETY: no memory is passed.
    check(unsafe { libc::fchmod(memory.as_raw_fd(), libc::S_IRUSR | libc::S_IWUSR) })?;
    Ok(memory)
}

/// Seals `memory` against changes of its size and, unless it is `writable`, against new writable mappings
/// by any descriptor; the owner has it mapped already.
///
/// # Errors
/// `InvalidInput` before Linux 5.1, if it is not writable.
pub(super) fn seal(memory: BorrowedFd<'_>, writable: bool) -> io::Result<()> {
    let seals = SEALS | if writable { 0 } else { libc::F_SEAL_FUTURE_WRITE };
    // SAFETY: no memory is passed.
    check(unsafe { libc::fcntl(memory.as_raw_fd(), libc::F_ADD_SEALS, seals) }).map(drop)
}

/// A read-only descriptor of the same memory.
///
/// # Errors
/// The errors of `open`; `/proc` may be missing.
pub(super) fn read_only(memory: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    Ok(File::open(format!("/proc/self/fd/{}", memory.as_raw_fd()))?.into())
}

/// Writes `length` bytes at `from` to `place` of the memory.
///
/// # Errors
/// The errors of the system call.
///
/// # Safety
/// The bytes at `from` are mapped.
pub(super) unsafe fn write(
    memory: BorrowedFd<'_>,
    place: u64,
    from: *const c_void,
    length: u64,
) -> io::Result<()> {
    let mut done = 0;
    while done < length {
        // SAFETY: the caller's promise.
        let written = unsafe {
            let (rest, at) = (from.byte_add(done as usize), (place + done) as libc::off_t);
            libc::pwrite(memory.as_raw_fd(), rest, (length - done) as usize, at)
        };
        match check(written as c_long) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => done += written as u64,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Frees pages of the memory that are not needed any more. Of memory that others may only read the kernel frees none before all of it goes.
pub(super) fn give_back(memory: BorrowedFd<'_>, place: u64, length: u64) {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: no memory is passed.
    unsafe { libc::fallocate(memory.as_raw_fd(), mode, place as libc::off_t, length as libc::off_t) };
}

/// Wakes all threads that sleep on the word at `place` of the memory.
pub(super) fn wake(memory: BorrowedFd<'_>, place: u64) {
    let length = PAGE as usize;
    let source = Source::File(memory, place / PAGE * PAGE);
    // SAFETY: a fresh mapping where the kernel likes. To write to it may be forbidden, and is not needed.
    let page = unsafe { mapping::map(ptr::null_mut(), length, libc::PROT_READ, libc::MAP_SHARED, source) };
    let Ok(page) = page else { return };
    // SAFETY: the word lies in the page that was just mapped, and no other code knows that mapping.
    unsafe {
        libc::syscall(libc::SYS_futex, page.byte_add((place % PAGE) as usize), libc::FUTEX_WAKE, c_int::MAX);
        mapping::unmap(page, length);
    }
}

/// Memories of all neighbours that a process maps: half of the mappings that the kernel allows it by default.
const MAX_MEMORIES: u64 = 32 * 1024;

/// Their bytes: a quarter of the addresses that there are.
const MAX_BYTES: u64 = 1 << 45;

/// How much of these is used.
#[derive(Debug)]
struct Usage {
    memories: AtomicU64,
    bytes: AtomicU64,
}

/// By this process.
static USAGE: Usage = Usage::new();

/// One memory's part of it.
#[derive(Debug)]
struct Quota {
    of: &'static Usage,
    bytes: u64,
}

impl Usage {
    const fn new() -> Self {
        Self { memories: AtomicU64::new(0), bytes: AtomicU64::new(0) }
    }

    /// A part for a memory of so many bytes, if they are left.
    fn take(&'static self, bytes: u64) -> Option<Quota> {
        let taken = Quota { of: self, bytes };
        let memories = self.memories.fetch_add(1, Ordering::Relaxed) + 1;
        let all = self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        (memories <= MAX_MEMORIES && all <= MAX_BYTES).then_some(taken)
    }
}

impl Drop for Quota {
    fn drop(&mut self) {
        self.of.memories.fetch_sub(1, Ordering::Relaxed);
        self.of.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A neighbour's memory, mapped.
#[derive(Debug)]
pub(crate) struct Mapped {
    at: *mut c_void,
    length: u64,
    /// Its owner lets us write.
    pub writable: bool,
    _quota: Quota,
}

// SAFETY: the address of a mapping is good in every thread.
unsafe impl Send for Mapped {}
// SAFETY: a shared reference gives out addresses only.
unsafe impl Sync for Mapped {}

impl Mapped {
    /// Maps all of `memory`, if it is one that its owner cannot take away, of at most `most` bytes: not by truncation, nor by a
    /// hole where the next access would need a huge page that is not there.
    ///
    /// # Errors
    /// `InvalidData` if it is not, `OutOfMemory` if too much is mapped already; otherwise the errors of
    /// `mmap`.
    pub fn new(memory: &OwnedFd, most: u64) -> io::Result<Self> {
        // SAFETY: a statfs of zeros is valid, and the call fills it.
        let mut kind: libc::statfs = unsafe { mem::zeroed() };
        // SAFETY: `kind` is live and of the right type.
        check(unsafe { libc::fstatfs(memory.as_raw_fd(), &mut kind) })?;
        // SAFETY: a stat of zeros is valid, and the call fills it.
        let mut about: libc::stat = unsafe { mem::zeroed() };
        // SAFETY: `about` is live and of the right type.
        check(unsafe { libc::fstat(memory.as_raw_fd(), &mut about) })?;
        // SAFETY: no memory is passed.
        let seals = check(unsafe { libc::fcntl(memory.as_raw_fd(), libc::F_GET_SEALS) })?;
        let length = u64::try_from(about.st_size).unwrap_or(0);
        let is_plain = kind.f_type == libc::TMPFS_MAGIC;
        if !is_plain || seals & SEALS as usize != SEALS as usize || !(1..=most).contains(&length) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "a neighbour's memory is not plain, not sealed, or too long",
            ));
        }
        let quota = USAGE.take(length).ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: no memory is passed.
        let flags = check(unsafe { libc::fcntl(memory.as_raw_fd(), libc::F_GETFL) })?;
        let writable = flags & libc::O_ACCMODE as usize == libc::O_RDWR as usize;
        let rights = libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 };
        // SAFETY: a fresh mapping where the kernel likes.
        let at = unsafe {
            let source = Source::File(memory.as_fd(), 0);
            mapping::map(ptr::null_mut(), length as usize, rights, libc::MAP_SHARED, source)?
        };
        Ok(Self { at, length, writable, _quota: quota })
    }

    /// Its bytes.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Where `length` bytes from `offset` on are, if the memory has them.
    pub fn address(&self, offset: u64, length: u64) -> Option<u64> {
        let end = offset.checked_add(length)?;
        (end <= self.length).then(|| self.at.expose_provenance() as u64 + offset)
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours; direct mappings hold it as long as they use it.
        unsafe { mapping::unmap(self.at, self.length as usize) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn huge_pages_of_a_neighbour_are_refused() {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING | libc::MFD_HUGETLB;
        // SAFETY: the name is a C string.
        let Ok(memory) = owned(unsafe { libc::memfd_create(c"huge".as_ptr(), flags) }) else {
            return test_support::skip("this kernel has no huge pages");
        };
        // SAFETY: no memory is passed.
        check(unsafe { libc::ftruncate(memory.as_raw_fd(), 2 << 20) }).unwrap();
        seal(memory.as_fd(), true).unwrap();
        let refused = Mapped::new(&memory, u64::MAX).map(drop).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn neighbours_together_are_limited_to_a_part_of_the_address_space() {
        static USAGE: Usage = Usage::new();
        let all_of = |bytes| (0..).map_while(|_| USAGE.take(bytes)).collect::<Vec<_>>();
        for (bytes, count) in [(MAX_BYTES / 8, 8), (PAGE, MAX_MEMORIES)] {
            let mut quotas = all_of(bytes);
            assert_eq!(quotas.len() as u64, count);
            quotas.pop();
            assert_eq!(all_of(bytes).len(), 1, "released memory is available again");
        }
    }

    #[test]
    fn a_read_only_memfd_cannot_be_reopened_for_writing() {
        let memory = create(PAGE).unwrap();
        seal(memory.as_fd(), false).unwrap();
        let again = File::options()
            .read(true)
            .write(true)
            .open(format!("/proc/self/fd/{}", memory.as_raw_fd()))
            .unwrap();
        assert!(std::os::unix::fs::FileExt::write_at(&again, b"x", 0).is_err());
        assert!(Mapped::new(&again.into(), u64::MAX).is_err());
        assert!(Mapped::new(&read_only(memory.as_fd()).unwrap(), u64::MAX).is_ok());
    }
}
