//! Turning private pages into shared ones, where they are, while the program uses them.
//!
//! For each window of at most [`WINDOW`] bytes:
//!
//! 1. the window is registered with a userfaultfd: who touches a page that is missing will wait;
//! 2. `UFFDIO_MOVE` moves its pages to a [`Scratch`], but none into which the kernel is reading or another process writing
//!    (`O_DIRECT`, `process_vm_writev`): what comes would be lost. Then all go back, for another time;
//! 3. nobody sleeps on a word in it who would not be woken any more ([`sleepers`]); otherwise the same;
//! 4. the pages' content is copied into the memfd;
//! 5. the memfd is mapped over the window, and who waited is woken.
//!
//! No store is lost, since each happens either before its page is moved or after step 5. Between those steps this thread must not
//! touch the window, which may hold anything of the heap: it only makes system calls
//! and uses its stack.
//!
//! On the way back the shared window is write-protected by a userfaultfd, copied to fresh pages, and these are moved
//! over it; who sleeps on a word in it is woken, and looks again.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU8, Ordering};
use std::{mem, ptr};

use libc::{c_int, c_ulong, c_void};

use super::sleepers;
use crate::mapping::{self, Source};

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
const UFFDIO_MOVE: c_ulong = 0xc028_aa05;
const UFFDIO_WRITEPROTECT: c_ulong = 0xc018_aa06;
const UFFDIO_REGISTER_MODE_MISSING: u64 = 1;
const UFFDIO_REGISTER_MODE_WP: u64 = 2;
const UFFDIO_WRITEPROTECT_MODE_WP: u64 = 1;
const UFFDIO_MOVE_MODE_DONTWAKE: u64 = 1;
const UFFDIO_MOVE_MODE_ALLOW_SRC_HOLES: u64 = 2;

/// How often a program may lock or unlock pages that are being moved.
const MOST_LOCKS: u32 = 1000;

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

/// A sealed memfd of `length` bytes, which no other user opens anew.
///
/// # Errors
/// Those of the system calls, and `FileTooLarge` where the process' limit for files would end it by a signal.
pub(super) fn create_memory(length: u64) -> io::Result<OwnedFd> {
    const NAME: &CStr = c"transhume-pages";
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the argument is live and of the right type.
    check(unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit) })?;
    if limit.rlim_cur < length {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    // SAFETY: the name is a C string.
    let fd = unsafe { libc::memfd_create(NAME.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    let memory = owned(fd)?;
    let size = libc::off_t::try_from(length).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: no memory is passed.
    check(unsafe { libc::ftruncate(memory.as_raw_fd(), size) })?;
    // SAFETY: no memory is passed.
    check(unsafe { libc::fchmod(memory.as_raw_fd(), libc::S_IRUSR | libc::S_IWUSR) })?;
    Ok(memory)
}

/// Sees to it that nobody changes the size of `memory`, and, unless it is `writable`, that nobody can map it for writing any more,
/// by whatever descriptor: who turned it has it mapped already.
///
/// # Errors
/// `InvalidInput` before Linux 5.1, if it is not writable.
pub(super) fn seal(memory: BorrowedFd<'_>, writable: bool) -> io::Result<()> {
    let seals = SEALS | if writable { 0 } else { libc::F_SEAL_FUTURE_WRITE };
    // SAFETY: no memory is passed.
    check(unsafe { libc::fcntl(memory.as_raw_fd(), libc::F_ADD_SEALS, seals) }).map(drop)
}

/// The same memory for one who may read it only.
///
/// # Errors
/// Those of `open`; there may be no `/proc`.
pub(super) fn read_only(memory: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    Ok(File::open(format!("/proc/self/fd/{}", memory.as_raw_fd()))?.into())
}

/// Makes whoever touches missing pages, or writes to protected ones, wait, system calls as well.
///
/// # Errors
/// `PermissionDenied` without the privilege: the kernel would fail system calls on missing pages. `InvalidInput` before
/// Linux 6.8, which cannot tell pages that are being read into.
pub(super) fn fault_handler() -> io::Result<OwnedFd> {
    // SAFETY: no memory is passed.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK) };
    let handler = owned(RawFd::try_from(fd).unwrap_or(-1))?;
    let mut api = UffdApi { api: UFFD_API, features: fabric::PAGE_TURNER_FEATURES, ioctls: 0 };
    // SAFETY: the argument is live and of the request's type.
    check(unsafe { libc::ioctl(handler.as_raw_fd(), UFFDIO_API, &mut api) })?;
    Ok(handler)
}

/// Turns `window`, which lies in one private anonymous mapping, into the bytes of `memory` from
/// `offset` on.
///
/// # Errors
/// `ResourceBusy` if it cannot be done just now; otherwise those of the system calls. The window is then as it was.
///
/// # Safety
/// Nothing of this thread's stack or thread-local storage lies in the window.
pub(super) unsafe fn turn(
    window: Range<u64>,
    memory: BorrowedFd<'_>,
    offset: u64,
    handler: BorrowedFd<'_>,
) -> io::Result<()> {
    let length = window.end - window.start;
    let at = ptr::with_exposed_provenance_mut::<c_void>(window.start as usize);
    let aside = Scratch::new(length as usize, libc::PROT_READ | libc::PROT_WRITE)?;
    let _undisturbed = SignalsBlocked::new();
    let missing = Registered::new(handler, &window)?;
    let (moved, taken) = take_aside(&window, &aside, handler);
    let turned = taken
        .and_then(|()| match sleepers::any_in(&window)? {
            true => Err(io::ErrorKind::ResourceBusy.into()),
            false => Ok(()),
        })
        .and_then(|()| copy(aside.start, length as usize, memory.as_raw_fd(), offset as libc::off_t))
        .and_then(|()| {
            let rights = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_SHARED | libc::MAP_FIXED;
            // SAFETY: this replaces the window, whose content the memory now holds.
            unsafe { mapping::map(at, length as usize, rights, flags, Source::File(memory, offset)) }
                .map(drop)
        });
    if turned.is_err() {
        // SAFETY: so much of the window is aside.
        unsafe { put_back(&aside, at, moved, handler) };
    }
    drop(missing);
    turned
}

/// Puts the first `moved` bytes that are aside back to `at`.
///
/// # Safety
/// They were moved from there, and there are no pages now.
unsafe fn put_back(aside: &Scratch, at: *mut c_void, moved: u64, handler: BorrowedFd<'_>) {
    let (back, result) = aside.move_all(handler, Direction::From, at.expose_provenance() as u64, moved);
    if result.is_ok() {
        return;
    }
    // The program has changed the mapping meanwhile, as by mprotect. It gets another one then, with what it had.
    let (done, left) = (back as usize, (moved - back) as usize);
    // SAFETY: the rest is aside, and what is mapped in its place has no pages.
    if unsafe { move_pages(aside.start.byte_add(done), at.byte_add(done), left) }.is_err() {
        // The program would go on with zeros where its data was.
        std::process::abort();
    }
}

/// Moves the pages of `window` aside, where their content can be read then. Says up to where, also if that is not all.
fn take_aside(window: &Range<u64>, aside: &Scratch, handler: BorrowedFd<'_>) -> (u64, io::Result<()>) {
    let to = aside.address();
    let length = window.end - window.start;
    // Pages are moved only to where the userfaultfd is asked for them.
    let _missing = match Registered::new(handler, &(to..to + length)) {
        Ok(registered) => registered,
        Err(error) => return (0, Err(error)),
    };
    aside.move_all(handler, Direction::To, window.start, length)
}

/// Moves all pages that there are of `length` bytes. Returns how many bytes it has come.
///
/// # Errors
/// `ResourceBusy` if somebody else uses a page by its place in memory, or it is also another process'.
fn move_all(handler: BorrowedFd<'_>, from: u64, to: u64, length: u64) -> (u64, io::Result<()>) {
    let (mut done, mut in_vain) = (0, 0);
    while done < length {
        let mode = UFFDIO_MOVE_MODE_DONTWAKE | UFFDIO_MOVE_MODE_ALLOW_SRC_HOLES;
        let mut order = UffdMove { to: to + done, from: from + done, length: length - done, mode, moved: 0 };
        // SAFETY: the argument is live and of the request's type.
        match check(unsafe { libc::ioctl(handler.as_raw_fd(), UFFDIO_MOVE, &mut order) }) {
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

/// Who touches missing pages in a range waits as long as this lives.
struct Registered<'a> {
    handler: BorrowedFd<'a>,
    range: UffdRange,
}

impl<'a> Registered<'a> {
    fn new(handler: BorrowedFd<'a>, range: &Range<u64>) -> io::Result<Self> {
        let range = UffdRange { start: range.start, length: range.end - range.start };
        let mut register = UffdRegister { range, mode: UFFDIO_REGISTER_MODE_MISSING, ioctls: 0 };
        // SAFETY: the argument is live and of the request's type.
        check(unsafe { libc::ioctl(handler.as_raw_fd(), UFFDIO_REGISTER, &mut register) })?;
        Ok(Self { handler, range })
    }
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        // SAFETY: the arguments are live and of the requests' types. What has been mapped over is not registered any more; who
        // waited for it is woken all the same.
        unsafe {
            libc::ioctl(self.handler.as_raw_fd(), UFFDIO_UNREGISTER, &self.range);
            libc::ioctl(self.handler.as_raw_fd(), UFFDIO_WAKE, &self.range);
        }
    }
}

/// No handler runs in this thread as long as this lives: one that touches the window would wait for this thread.
struct SignalsBlocked(libc::sigset_t);

impl SignalsBlocked {
    fn new() -> Self {
        // SAFETY: a set of zeros is valid, and both calls fill the sets that they are passed.
        unsafe {
            let (mut all, mut before) = (mem::zeroed(), mem::zeroed());
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
            Self(before)
        }
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        // SAFETY: the set is the one that was in force before.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, ptr::null_mut()) };
    }
}

/// Whether pages come to a [`Scratch`] or leave it.
#[derive(Clone, Copy)]
enum Direction {
    To,
    From,
}

/// Room for pages, between two that nobody can touch.
///
/// Where the kernel likes, a window's pages may lie beside the window. The two mappings then become one, of which
/// the kernel (6.18) may drop the registration with the userfaultfd, where one half has none: stores to
/// the window wait no longer, and are lost.
struct Scratch {
    start: *mut c_void,
    length: usize,
}

impl Scratch {
    fn new(length: usize, rights: c_int) -> io::Result<Self> {
        let guarded = length + 2 * PAGE as usize;
        let flags = libc::MAP_PRIVATE | libc::MAP_NORESERVE;
        // SAFETY: a fresh mapping where the kernel likes.
        let below =
            unsafe { mapping::map(ptr::null_mut(), guarded, libc::PROT_NONE, flags, Source::Anonymous)? };
        // SAFETY: the first page of what was just mapped is the lower guard.
        let scratch = Self { start: unsafe { below.byte_add(PAGE as usize) }, length };
        // Where all that is mapped is locked, pages would be there as soon as they may be used.
        // SAFETY: the range is part of the scratch.
        check(unsafe { libc::munlock(scratch.start, length) })?;
        // SAFETY: as above.
        check(unsafe { libc::mprotect(scratch.start, length, rights) })?;
        Ok(scratch)
    }

    /// Moves pages to or from here, as [`move_all`]. Locked pages are moved only to where pages are locked, and others to where they are
    /// not; the program may lock or unlock its own at any time.
    fn move_all(
        &self,
        handler: BorrowedFd<'_>,
        direction: Direction,
        other: u64,
        length: u64,
    ) -> (u64, io::Result<()>) {
        let mut done = 0;
        for turn in 0..MOST_LOCKS {
            let (own, theirs) = (self.address() + done, other + done);
            let (from, to) = match direction {
                Direction::To => (theirs, own),
                Direction::From => (own, theirs),
            };
            match move_all(handler, from, to, length - done) {
                (moved, Err(error)) if error.raw_os_error() == Some(libc::EINVAL) => done += moved,
                (moved, result) => return (done + moved, result),
            }
            if let Err(error) = self.set_locked(turn % 2 == 0) {
                return (done, Err(error));
            }
        }
        (done, Err(io::ErrorKind::ResourceBusy.into()))
    }

    /// Has pages that come be locked, or not.
    fn set_locked(&self, locked: bool) -> io::Result<()> {
        let on_fault = libc::MLOCK_ONFAULT as libc::c_uint;
        // SAFETY: no memory is changed.
        let result = unsafe {
            if locked {
                libc::mlock2(self.start, self.length, on_fault)
            } else {
                libc::munlock(self.start, self.length)
            }
        };
        check(result).map(drop)
    }

    fn address(&self) -> u64 {
        self.start.expose_provenance() as u64
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // SAFETY: the range and its guards are the scratch's own.
        unsafe { mapping::unmap(self.start.byte_sub(PAGE as usize), self.length + 2 * PAGE as usize) };
    }
}

/// Moves pages, leaving a mapping without pages behind.
///
/// # Safety
/// Both ranges are mapped, the first one privately, and what the second one holds is not needed.
unsafe fn move_pages(from: *mut c_void, to: *mut c_void, length: usize) -> io::Result<()> {
    // SAFETY: the caller vouches for both ranges.
    unsafe { mapping::remap(from, to, length, libc::MREMAP_DONTUNMAP) }
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

/// Makes `range`, whose pages were turned into those of `memory` from `offset` on, private again, with its content.
///
/// It becomes anonymous: an allocator that gives memory back with `MADV_DONTNEED` expects zeros afterwards. Where the userfaultfd that
/// this takes cannot be had, or the room, it becomes a private mapping of the memory, all pages of which are its own, and which has zeros
/// behind them. What is done of the memory is given back, if it is `shown_once`, and not at another place as well.
///
/// # Safety
/// The range was turned; nothing of this thread's stack or thread-local storage lies in it.
pub(super) unsafe fn turn_back(range: &Range<u64>, memory: BorrowedFd<'_>, offset: u64, shown_once: bool) {
    let _undisturbed = SignalsBlocked::new();
    let done_with = |place, length| {
        if shown_once {
            give_back(memory, place, length);
        }
    };
    // SAFETY: the caller's promise.
    let done = unsafe { make_anonymous(range, |done, part| done_with(offset + done, part)) };
    // SAFETY: as above.
    unsafe { make_private(&(range.start + done..range.end), memory, offset + done, done_with) };
    // As far as they are known.
    let _ = sleepers::for_each_in(range, |word| wake(memory, offset + (word - range.start)));
}

/// Replaces pages by anonymous ones, and tells `done_with` from where on, and how many bytes. Returns for how many that could be done.
///
/// # Safety
/// As for [`turn_back`].
unsafe fn make_anonymous(range: &Range<u64>, done_with: impl Fn(u64, u64)) -> u64 {
    let length = range.end - range.start;
    // One place for all of it, so that the parts become one mapping again.
    let fresh = Scratch::new(length as usize, libc::PROT_READ | libc::PROT_WRITE);
    let (Ok(handler), Ok(fresh)) = (fault_handler(), fresh) else { return 0 };
    let mut done = 0;
    while done < length {
        let part = (length - done).min(WINDOW);
        let at = ptr::with_exposed_provenance_mut::<c_void>((range.start + done) as usize);
        // SAFETY: both are mapped, as long as `part`; the caller vouches for the rest.
        let replaced =
            unsafe { replace(at, fresh.start.byte_add(done as usize), part as usize, handler.as_fd()) };
        if replaced.is_err() {
            break;
        }
        done_with(done, part);
        done += part;
    }
    done
}

/// Replaces a mapping of the memory by a private one, a window at a time. No store is lost: each happens either in the memory,
/// where the private mapping shows it, or in the page's copy. Tells `done_with` which parts of the memory are not needed here any more.
///
/// # Safety
/// As for [`turn_back`]; what is mapped there now, and is not shared, is left alone.
unsafe fn make_private(
    range: &Range<u64>,
    memory: BorrowedFd<'_>,
    offset: u64,
    done_with: impl Fn(u64, u64),
) {
    for start in range.clone().step_by(WINDOW as usize) {
        let length = (range.end - start).min(WINDOW);
        let at = ptr::with_exposed_provenance_mut::<c_void>(start as usize);
        let place = offset + (start - range.start);
        // SAFETY: nothing is changed.
        if !unsafe { mapping::is_shared(at, length as usize) } {
            continue;
        }
        let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_FIXED);
        // SAFETY: the same bytes are mapped over themselves.
        if unsafe { mapping::map(at, length as usize, rights, flags, Source::File(memory, place)) }.is_err() {
            // There are too many mappings: it stays shared.
            continue;
        }
        for page in (start..start + length).step_by(PAGE as usize) {
            // SAFETY: the page was just mapped. What is there may be anything, and is not changed.
            let byte = unsafe { AtomicU8::from_ptr(ptr::with_exposed_provenance_mut(page as usize)) };
            let present = byte.load(Ordering::Relaxed);
            // Also if it has changed meanwhile, that was a store that has made the copy.
            let _ = byte.compare_exchange(present, present, Ordering::Relaxed, Ordering::Relaxed);
        }
        done_with(place, length);
    }
}

/// Frees pages of the memory that are not needed any more. Of memory that others may only read the kernel frees none before all of it goes.
fn give_back(memory: BorrowedFd<'_>, offset: u64, length: u64) {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: no memory is passed.
    unsafe { libc::fallocate(memory.as_raw_fd(), mode, offset as libc::off_t, length as libc::off_t) };
}

/// Wakes all who sleep on the word at `place` of the memory.
fn wake(memory: BorrowedFd<'_>, place: u64) {
    let length = PAGE as usize;
    let source = Source::File(memory, place / PAGE * PAGE);
    // SAFETY: a fresh mapping where the kernel likes. To write to it may be forbidden, and is not needed.
    let page = unsafe { mapping::map(ptr::null_mut(), length, libc::PROT_READ, libc::MAP_SHARED, source) };
    let Ok(page) = page else { return };
    // SAFETY: the word lies in the page that was just mapped, and nobody else knows that mapping.
    unsafe {
        libc::syscall(libc::SYS_futex, page.byte_add((place % PAGE) as usize), libc::FUTEX_WAKE, c_int::MAX);
        mapping::unmap(page, length);
    }
}

/// Puts fresh private pages at `range`.
///
/// # Errors
/// Those of `mmap`.
///
/// # Safety
/// Nothing there is needed any more.
pub(super) unsafe fn renew(range: &Range<u64>) -> io::Result<()> {
    let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_FIXED);
    let at = ptr::with_exposed_provenance_mut(range.start as usize);
    // SAFETY: the caller's promise.
    unsafe { mapping::map(at, (range.end - range.start) as usize, rights, flags, Source::Anonymous) }
        .map(drop)
}

/// Copies `length` bytes of the shared memory at `at` to `fresh`, and moves `fresh` over it. Who writes to the
/// shared memory meanwhile waits.
///
/// # Safety
/// Both are mapped; nobody else uses `fresh`, and nothing of this thread's own lies at `at`.
unsafe fn replace(
    at: *mut c_void,
    fresh: *mut c_void,
    length: usize,
    handler: BorrowedFd<'_>,
) -> io::Result<()> {
    let fd = handler.as_raw_fd();
    let range = UffdRange { start: at.addr() as u64, length: length as u64 };
    let mut register = UffdRegister { range, mode: UFFDIO_REGISTER_MODE_WP, ioctls: 0 };
    let mut protect = UffdWriteProtect { range, mode: UFFDIO_WRITEPROTECT_MODE_WP };
    // SAFETY: the arguments are live and of the requests' types.
    check(unsafe { libc::ioctl(fd, UFFDIO_REGISTER, &mut register) })?;
    // SAFETY: as above.
    let protected = check(unsafe { libc::ioctl(fd, UFFDIO_WRITEPROTECT, &mut protect) });
    let replaced = protected.and_then(|_| {
        // SAFETY: both are mapped, and nobody else knows `fresh`.
        unsafe { ptr::copy_nonoverlapping(at.cast::<u8>(), fresh.cast::<u8>(), length) };
        // SAFETY: the same bytes replace the shared ones, which nobody can have changed since.
        unsafe { move_pages(fresh, at, length) }
    });
    if replaced.is_err() {
        // SAFETY: as above. Whoever waits goes on with the shared memory.
        unsafe { libc::ioctl(fd, UFFDIO_UNREGISTER, &range) };
    }
    // SAFETY: as above.
    check(unsafe { libc::ioctl(fd, UFFDIO_WAKE, &range) })?;
    replaced
}

/// A neighbour's memory, mapped.
#[derive(Debug)]
pub(crate) struct Mapped {
    at: *mut c_void,
    length: u64,
    /// Its owner lets us write.
    pub writable: bool,
}

// SAFETY: the address of a mapping is good in every thread.
unsafe impl Send for Mapped {}
// SAFETY: a shared reference gives out addresses only.
unsafe impl Sync for Mapped {}

impl Mapped {
    /// Maps all of `memory`, if it is one that its owner cannot take away, of at most `most` bytes: not by truncation, nor by a
    /// hole where the next touch would want a huge page that nobody has.
    ///
    /// # Errors
    /// `InvalidData` if it is not; otherwise those of `mmap`.
    pub fn new(memory: &OwnedFd, most: u64) -> io::Result<Self> {
        // SAFETY: a statfs of zeros is valid, and the call fills it.
        let mut kind: libc::statfs = unsafe { std::mem::zeroed() };
        // SAFETY: `kind` is live and of the right type.
        check(unsafe { libc::fstatfs(memory.as_raw_fd(), &mut kind) })?;
        // SAFETY: a stat of zeros is valid, and the call fills it.
        let mut about: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: `about` is live and of the right type.
        check(unsafe { libc::fstat(memory.as_raw_fd(), &mut about) })?;
        // SAFETY: no memory is passed.
        let seals = check(unsafe { libc::fcntl(memory.as_raw_fd(), libc::F_GET_SEALS) })?;
        let length = u64::try_from(about.st_size).unwrap_or(0);
        let is_plain = kind.f_type == libc::TMPFS_MAGIC;
        if !is_plain || seals & SEALS != SEALS || !(1..=most).contains(&length) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "a neighbour's memory is not plain, not sealed, or too long",
            ));
        }
        // SAFETY: no memory is passed.
        let flags = check(unsafe { libc::fcntl(memory.as_raw_fd(), libc::F_GETFL) })?;
        let writable = flags & libc::O_ACCMODE == libc::O_RDWR;
        let rights = libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 };
        // SAFETY: a fresh mapping where the kernel likes.
        let at = unsafe {
            let source = Source::File(memory.as_fd(), 0);
            mapping::map(ptr::null_mut(), length as usize, rights, libc::MAP_SHARED, source)?
        };
        Ok(Self { at, length, writable })
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
        // SAFETY: the mapping is ours; windows hold it as long as they use it.
        unsafe { mapping::unmap(self.at, self.length as usize) };
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
            assert!(turned.iter().all(Result::is_ok), "{turned:?}");
            // SAFETY: the range was turned.
            unsafe { turn_back(&(start..start + LENGTH as u64), memory.as_fd(), 0, true) };
            stop.store(true, Ordering::Relaxed);
            writer.join().unwrap()
        });
        let wrong = words.iter().step_by(61).filter(|word| word.load(Ordering::Relaxed) != counted).count();
        assert_eq!(wrong, 0, "words that missed some of {counted} rounds");
        // SAFETY: nobody uses the pages' content any more.
        assert_eq!(unsafe { libc::madvise(at, LENGTH, libc::MADV_DONTNEED) }, 0);
        assert!(words.iter().all(|word| word.load(Ordering::Relaxed) == 0), "given back, but not zero");
    }

    /// As after a move that has left memory behind: who fetches that has a userfaultfd of his own.
    #[test]
    fn pages_that_somebody_else_fills_are_left_as_they_are() {
        let (Ok(ours), Ok(theirs)) = (fault_handler(), fault_handler()) else {
            return eprintln!("skipped: no privilege for userfaultfd");
        };
        let at = pages(2 * WINDOW as usize).cast::<u8>();
        let start = at.expose_provenance() as u64;
        // SAFETY: the pages are our own.
        unsafe { ptr::write_bytes(at, 7, 2 * WINDOW as usize) };
        let range = UffdRange { start: start + WINDOW, length: WINDOW };
        let mut register = UffdRegister { range, mode: UFFDIO_REGISTER_MODE_MISSING, ioctls: 0 };
        // SAFETY: the argument is live and of the request's type.
        check(unsafe { libc::ioctl(theirs.as_raw_fd(), UFFDIO_REGISTER, &mut register) }).unwrap();
        let memory = create_memory(2 * WINDOW).unwrap();
        let turned = [0, WINDOW].map(|offset| {
            let window = start + offset..start + offset + WINDOW;
            // SAFETY: the pages are our own, and no stack.
            unsafe { turn(window, memory.as_fd(), offset, ours.as_fd()) }
                .map_err(|error| error.raw_os_error())
        });
        assert_eq!(turned, [Ok(()), Err(Some(libc::EBUSY))]);
        // SAFETY: the range was turned.
        unsafe { turn_back(&(start..start + WINDOW), memory.as_fd(), 0, true) };
        // SAFETY: the pages are our own.
        let bytes = unsafe { std::slice::from_raw_parts(at, 2 * WINDOW as usize) };
        assert!(bytes.iter().all(|byte| *byte == 7));
    }

    /// Has the kernel hold pages as for a read into them that goes on, as long as what is returned is open.
    fn hold(at: *mut c_void, length: usize) -> io::Result<OwnedFd> {
        const PARAMETERS: usize = 120;
        const REGISTER_BUFFERS: c_int = 0;
        let mut parameters = [0u64; PARAMETERS / 8];
        // SAFETY: the parameters are live and as long as the kernel's.
        let ring = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, parameters.as_mut_ptr()) };
        let ring = owned(RawFd::try_from(ring).unwrap_or(-1))?;
        let buffer = libc::iovec { iov_base: at, iov_len: length };
        // SAFETY: the vector is live, and names memory of our own.
        let registered = unsafe {
            libc::syscall(
                libc::SYS_io_uring_register,
                ring.as_raw_fd(),
                REGISTER_BUFFERS,
                &raw const buffer,
                1,
            )
        };
        check(registered as c_int)?;
        Ok(ring)
    }

    #[test]
    fn pages_that_the_kernel_reads_into_are_left_until_that_is_over() {
        let Ok(handler) = fault_handler() else { return eprintln!("skipped: no privilege for userfaultfd") };
        let at = pages(WINDOW as usize);
        let (start, middle) = (at.expose_provenance() as u64, at.wrapping_byte_add(WINDOW as usize / 2));
        let Ok(held) = hold(middle, PAGE as usize) else { return eprintln!("skipped: no io_uring") };
        // SAFETY: the pages are our own.
        unsafe { ptr::write_bytes(at.cast::<u8>(), 7, WINDOW as usize) };
        let memory = create_memory(WINDOW).unwrap();
        // SAFETY: the pages are our own, and no stack.
        let turn = || unsafe { turn(start..start + WINDOW, memory.as_fd(), 0, handler.as_fd()) };
        assert_eq!(turn().unwrap_err().kind(), io::ErrorKind::ResourceBusy);
        // SAFETY: the pages are our own.
        let bytes = unsafe { std::slice::from_raw_parts_mut(at.cast::<u8>(), WINDOW as usize) };
        assert!(bytes.iter().all(|byte| *byte == 7));
        bytes[0] = 8;
        drop(held);
        while turn().is_err_and(|error| error.kind() == io::ErrorKind::ResourceBusy) {
            std::thread::yield_now();
        }
        assert!(bytes[0] == 8 && bytes[1..].iter().all(|byte| *byte == 7));
        // SAFETY: the range was turned.
        unsafe { turn_back(&(start..start + WINDOW), memory.as_fd(), 0, true) };
    }

    /// Sleeps on the word at `at` until somebody wakes it who knows it by its page.
    fn sleep_on(at: u64) -> io::Result<()> {
        let word = ptr::with_exposed_provenance::<u32>(at as usize);
        // SAFETY: the word is mapped.
        let value = unsafe { word.read_volatile() };
        // SAFETY: the word is mapped.
        check(unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAIT, value, 0) } as c_int).map(drop)
    }

    fn wait_for_a_sleeper(window: &Range<u64>) {
        while !sleepers::any_in(window).unwrap() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn who_sleeps_on_a_word_is_not_left_asleep() {
        let Ok(handler) = fault_handler() else { return eprintln!("skipped: no privilege for userfaultfd") };
        let at = pages(WINDOW as usize);
        let start = at.expose_provenance() as u64;
        let window = start..start + WINDOW;
        let memory = create_memory(WINDOW).unwrap();
        // SAFETY: the pages are our own, and no stack.
        let turn = || unsafe { turn(window.clone(), memory.as_fd(), 0, handler.as_fd()) };
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| sleep_on(start + PAGE));
            wait_for_a_sleeper(&window);
            assert_eq!(turn().unwrap_err().kind(), io::ErrorKind::ResourceBusy);
            let word = at.wrapping_byte_add(PAGE as usize);
            // SAFETY: the word is mapped.
            assert_eq!(unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAKE, 1) }, 1);
            sleeper.join().unwrap().unwrap();
        });
        turn().unwrap();
        seal(memory.as_fd(), false).unwrap();
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| sleep_on(start + PAGE));
            wait_for_a_sleeper(&window);
            // SAFETY: the range was turned.
            unsafe { turn_back(&window, memory.as_fd(), 0, true) };
            sleeper.join().unwrap().unwrap();
        });
    }

    /// How many bytes of a memory there are.
    fn allocated(memory: &OwnedFd) -> u64 {
        use std::os::unix::fs::MetadataExt;
        File::from(memory.try_clone().unwrap()).metadata().unwrap().blocks() * 512
    }

    /// Without a userfaultfd, or room: while a thread writes.
    #[test]
    fn what_cannot_become_anonymous_becomes_private_with_nothing_lost() {
        const LENGTH: u64 = 4 * WINDOW;
        let Ok(handler) = fault_handler() else { return eprintln!("skipped: no privilege for userfaultfd") };
        let at = pages(LENGTH as usize);
        let start = at.expose_provenance() as u64;
        let memory = create_memory(LENGTH).unwrap();
        for offset in (0..LENGTH).step_by(WINDOW as usize) {
            let window = start + offset..start + offset + WINDOW;
            // SAFETY: the pages are our own, and no stack.
            unsafe { turn(window, memory.as_fd(), offset, handler.as_fd()) }.unwrap();
        }
        // SAFETY: the pages are mapped, aligned, and used as atomics only.
        let words = unsafe { std::slice::from_raw_parts(at.cast::<AtomicU64>(), LENGTH as usize / 8) };
        let stop = AtomicBool::new(false);
        let done_with = |place, length| give_back(memory.as_fd(), place, length);
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
            while words[0].load(Ordering::Relaxed) == 0 {
                std::thread::yield_now();
            }
            // SAFETY: the range was turned.
            unsafe { make_private(&(start..start + LENGTH), memory.as_fd(), 0, done_with) };
            stop.store(true, Ordering::Relaxed);
            writer.join().unwrap()
        });
        assert!(words.iter().step_by(61).all(|word| word.load(Ordering::Relaxed) == counted));
        assert_eq!(allocated(&memory), 0);
        // SAFETY: nobody uses the pages' content any more.
        assert_eq!(unsafe { libc::madvise(at, LENGTH as usize, libc::MADV_DONTNEED) }, 0);
        assert!(words.iter().all(|word| word.load(Ordering::Relaxed) == 0), "given back, but not zero");
        // SAFETY: what is there now is not the memory, and is left alone.
        unsafe { make_private(&(start..start + LENGTH), memory.as_fd(), 0, done_with) };
    }

    #[test]
    fn memory_is_given_back_as_pages_are_turned_back() {
        let Ok(handler) = fault_handler() else { return eprintln!("skipped: no privilege for userfaultfd") };
        let at = pages(WINDOW as usize);
        let start = at.expose_provenance() as u64;
        // SAFETY: the pages are our own.
        unsafe { ptr::write_bytes(at.cast::<u8>(), 7, WINDOW as usize) };
        let memory = create_memory(WINDOW).unwrap();
        // SAFETY: the pages are our own, and no stack.
        unsafe { turn(start..start + WINDOW, memory.as_fd(), 0, handler.as_fd()) }.unwrap();
        assert_eq!(allocated(&memory), WINDOW);
        // SAFETY: the range was turned.
        unsafe { turn_back(&(start..start + WINDOW), memory.as_fd(), 0, true) };
        assert_eq!(allocated(&memory), 0);
        // SAFETY: the pages are our own.
        let bytes = unsafe { std::slice::from_raw_parts(at.cast::<u8>(), WINDOW as usize) };
        assert!(bytes.iter().all(|byte| *byte == 7));
    }

    /// The program may do so while they are aside.
    #[test]
    fn pages_that_are_locked_and_unlocked_meanwhile_are_moved() {
        let Ok(handler) = fault_handler() else { return eprintln!("skipped: no privilege for userfaultfd") };
        let at = pages(WINDOW as usize);
        let start = at.expose_provenance() as u64;
        // SAFETY: the pages are our own.
        unsafe { ptr::write_bytes(at.cast::<u8>(), 7, WINDOW as usize) };
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let at = ptr::with_exposed_provenance::<c_void>(start as usize);
                while !stop.load(Ordering::Relaxed) {
                    // SAFETY: no memory is changed.
                    unsafe { libc::mlock2(at, WINDOW as usize, libc::MLOCK_ONFAULT as libc::c_uint) };
                    // SAFETY: as above.
                    unsafe { libc::munlock(at, WINDOW as usize) };
                }
            });
            let sleeper = scope.spawn(|| sleep_on(start + PAGE + 8));
            wait_for_a_sleeper(&(start..start + WINDOW));
            for _ in 0..100 {
                let memory = create_memory(WINDOW).unwrap();
                // SAFETY: the pages are our own, and no stack.
                let turned = unsafe { turn(start..start + WINDOW, memory.as_fd(), 0, handler.as_fd()) };
                assert_eq!(turned.unwrap_err().kind(), io::ErrorKind::ResourceBusy);
            }
            let word = at.wrapping_byte_add(PAGE as usize + 8);
            // SAFETY: the word is mapped.
            unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAKE, 1) };
            sleeper.join().unwrap().unwrap();
            stop.store(true, Ordering::Relaxed);
        });
        // SAFETY: the pages are our own.
        let bytes = unsafe { std::slice::from_raw_parts(at.cast::<u8>(), WINDOW as usize) };
        assert!(bytes.iter().all(|byte| *byte == 7));
    }

    /// The program may change its mapping in any way while pages are aside.
    #[test]
    fn what_cannot_go_back_as_it_came_is_not_lost() {
        let Ok(handler) = fault_handler() else { return eprintln!("skipped: no privilege for userfaultfd") };
        let at = pages(WINDOW as usize);
        let start = at.expose_provenance() as u64;
        // SAFETY: the pages are our own.
        unsafe { ptr::write_bytes(at.cast::<u8>(), 7, WINDOW as usize) };
        let window = start..start + WINDOW;
        let aside = Scratch::new(WINDOW as usize, libc::PROT_READ | libc::PROT_WRITE).unwrap();
        let missing = Registered::new(handler.as_fd(), &window).unwrap();
        let (moved, taken) = take_aside(&window, &aside, handler.as_fd());
        taken.unwrap();
        // SAFETY: the pages are our own.
        assert_eq!(unsafe { libc::mprotect(at, WINDOW as usize, libc::PROT_READ) }, 0);
        // SAFETY: the window is aside.
        unsafe { put_back(&aside, at, moved, handler.as_fd()) };
        drop(missing);
        // SAFETY: the pages are our own.
        let bytes = unsafe { std::slice::from_raw_parts(at.cast::<u8>(), WINDOW as usize) };
        assert!(bytes.iter().all(|byte| *byte == 7));
    }

    #[test]
    fn locked_pages_are_turned_too() {
        let Ok(handler) = fault_handler() else { return eprintln!("skipped: no privilege for userfaultfd") };
        let at = pages(WINDOW as usize);
        let start = at.expose_provenance() as u64;
        // SAFETY: the pages are our own.
        assert_eq!(unsafe { libc::mlock(at, WINDOW as usize) }, 0);
        // SAFETY: as above.
        unsafe { ptr::write_bytes(at.cast::<u8>(), 7, WINDOW as usize) };
        let memory = create_memory(WINDOW).unwrap();
        // SAFETY: the pages are our own, and no stack.
        unsafe { turn(start..start + WINDOW, memory.as_fd(), 0, handler.as_fd()) }.unwrap();
        // SAFETY: the pages are our own.
        let bytes = unsafe { std::slice::from_raw_parts(at.cast::<u8>(), WINDOW as usize) };
        assert!(bytes.iter().all(|byte| *byte == 7));
    }

    #[test]
    fn huge_pages_of_a_neighbour_are_refused() {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING | libc::MFD_HUGETLB;
        // SAFETY: the name is a C string.
        let Ok(memory) = owned(unsafe { libc::memfd_create(c"huge".as_ptr(), flags) }) else {
            return eprintln!("skipped: this kernel has no huge pages");
        };
        // SAFETY: no memory is passed.
        check(unsafe { libc::ftruncate(memory.as_raw_fd(), 2 << 20) }).unwrap();
        seal(memory.as_fd(), true).unwrap();
        let refused = Mapped::new(&memory, u64::MAX).map(drop).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn what_may_be_read_only_cannot_be_written_by_whoever_opens_it_anew() {
        let memory = create_memory(PAGE).unwrap();
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

    #[test]
    fn both_see_the_same_bytes() {
        let Ok(handler) = fault_handler() else { return eprintln!("skipped: no privilege for userfaultfd") };
        let at = pages(WINDOW as usize);
        let start = at.expose_provenance() as u64;
        let memory = create_memory(WINDOW).unwrap();
        // SAFETY: the pages are our own, and no stack.
        unsafe { turn(start..start + WINDOW, memory.as_fd(), 0, handler.as_fd()) }.unwrap();
        seal(memory.as_fd(), true).unwrap();
        let mapped = Mapped::new(&memory, u64::MAX).unwrap();
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
