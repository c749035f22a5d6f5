//! Converts private pages into shared ones, in place, while the program uses them.
//!
//! For each block of at most [`BLOCK`](super::BLOCK) bytes:
//!
//! 1. the block is registered with a userfaultfd: a thread that touches a missing page waits;
//! 2. its pages are moved to a [`Scratch`], but none into which the kernel is reading or another process writing
//!    (`O_DIRECT`, `process_vm_writev`), since those bytes would be lost. Then all pages go back, for a later attempt;
//! 3. if a thread sleeps on a futex in it that would not be woken any more ([`sleepers`]), all pages go back as well;
//! 4. the pages' content is copied into the memfd;
//! 5. the memfd is mapped over the block, and waiting threads are woken.
//!
//! No store is lost, since each happens either before its page is moved or after step 5. Between those steps this thread must not
//! touch the block, which may hold any part of the heap: it makes only system calls
//! and uses only its stack.

use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::ptr;

use libc::c_void;
use waiting::SignalsBlocked;

use super::scratch::Scratch;
use super::userfault::{Handler, PageTable};
use super::{memfd, sleepers};
use crate::mapping::{self, Source};

/// Converts `block`, which lies in one private anonymous mapping, into the bytes of `memory` from
/// `offset` on.
///
/// # Errors
/// `ResourceBusy` if it cannot be done just now; otherwise the errors of the system calls. The block is then as it
/// was.
///
/// # Safety
/// Nothing of this thread's stack or thread-local storage lies in the block.
pub(super) unsafe fn make_shared(
    block: &Range<u64>,
    memory: BorrowedFd<'_>,
    offset: u64,
    handler: &Handler,
) -> io::Result<()> {
    let at = ptr::with_exposed_provenance_mut::<c_void>(block.start as usize);
    let (aside, pages) = (Scratch::new(block.end - block.start)?, PageTable::open()?);
    // A handler that touches the block would wait for this thread.
    let _undisturbed = SignalsBlocked::new();
    let held = handler.hold_at_missing(block)?;
    // SAFETY: the caller's promise.
    let converted =
        aside.take(block, handler, &pages).and_then(|()| unsafe { share(block, &aside, memory, offset) });
    if converted.is_err() {
        // SAFETY: a thread that touches a missing page waits.
        unsafe { aside.put_back(at, handler, &pages) };
    }
    drop(held);
    converted
}

/// Maps `memory` over `block`, with its content. The pages of the block are `aside`.
///
/// # Safety
/// As for [`make_shared`].
unsafe fn share(block: &Range<u64>, aside: &Scratch, memory: BorrowedFd<'_>, offset: u64) -> io::Result<()> {
    if sleepers::any_waiter_in(block)? {
        return Err(io::ErrorKind::ResourceBusy.into());
    }
    let length = block.end - block.start;
    // SAFETY: the scratch is as long as the block.
    unsafe { memfd::write(memory, offset, aside.at(0), length)? };
    let at = ptr::with_exposed_provenance_mut(block.start as usize);
    let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_FIXED);
    // SAFETY: this replaces the block, whose content the memory now holds.
    unsafe { mapping::map(at, length as usize, rights, flags, Source::File(memory, offset)) }.map(drop)
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, AsRawFd, OwnedFd};
    use std::sync::atomic::{AtomicBool, Ordering};

    use libc::c_int;

    use super::*;
    use crate::share::memfd::Mapped;
    use crate::share::syscall::{check, owned};
    use crate::share::testing::{Pages, sleep_on, wait_for_a_sleeper};
    use crate::share::{BLOCK, PAGE};

    #[test]
    fn no_store_is_lost_while_pages_are_converted_and_back() {
        let Ok(handler) = Handler::new() else { return test_support::skip("no privilege for userfaultfd") };
        let pages = Pages::new(4 * BLOCK);
        let memory = memfd::create(4 * BLOCK).unwrap();
        pages.count_while(|| {
            pages.make_shared(&memory, &handler).unwrap();
            pages.make_private(&memory);
        });
        pages.assert_zeros_when_given_back();
    }

    /// As after a post-copy move: the pager has a userfaultfd of its own.
    #[test]
    fn pages_with_a_userfaultfd_of_another_owner_are_not_converted() {
        let (Ok(ours), Ok(theirs)) = (Handler::new(), Handler::new()) else {
            return test_support::skip("no privilege for userfaultfd");
        };
        let pages = Pages::new(2 * BLOCK);
        let [first, second] = [0, BLOCK].map(|offset| {
            let start = pages.range().start + offset;
            start..start + BLOCK
        });
        let _filled = theirs.hold_at_missing(&second).unwrap();
        let memory = memfd::create(2 * BLOCK).unwrap();
        let converted = [(&first, 0), (&second, BLOCK)].map(|(block, offset)| {
            // SAFETY: the pages are our own, and no stack.
            unsafe { make_shared(block, memory.as_fd(), offset, &ours) }.map_err(|error| error.raw_os_error())
        });
        assert_eq!(converted, [Ok(()), Err(Some(libc::EBUSY))]);
        assert!(pages.are_intact());
    }

    /// Has the kernel hold pages as for a read into them that goes on, until the returned value is dropped.
    fn hold(at: *mut c_void, length: u64) -> io::Result<OwnedFd> {
        const PARAMETERS: usize = 120;
        const REGISTER_BUFFERS: c_int = 0;
        let mut parameters = [0u64; PARAMETERS / 8];
        // SAFETY: the parameters are live and as long as the kernel's.
        let ring = owned(unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, parameters.as_mut_ptr()) })?;
        let buffer = libc::iovec { iov_base: at, iov_len: length as usize };
        // SAFETY: the vector is live, and names memory of our own.
        check(unsafe {
            let vector = &raw const buffer;
            libc::syscall(libc::SYS_io_uring_register, ring.as_raw_fd(), REGISTER_BUFFERS, vector, 1)
        })?;
        Ok(ring)
    }

    #[test]
    fn pages_with_direct_io_in_flight_are_not_converted() {
        let Ok(handler) = Handler::new() else { return test_support::skip("no privilege for userfaultfd") };
        let pages = Pages::new(BLOCK);
        let middle = pages.at().wrapping_byte_add(BLOCK as usize / 2);
        let Ok(held) = hold(middle, PAGE) else { return test_support::skip("no io_uring") };
        let memory = memfd::create(BLOCK).unwrap();
        let attempt = || pages.make_shared(&memory, &handler);
        assert_eq!(attempt().unwrap_err().kind(), io::ErrorKind::ResourceBusy);
        assert!(pages.are_intact());
        drop(held);
        while attempt().is_err_and(|error| error.kind() == io::ErrorKind::ResourceBusy) {
            std::thread::yield_now();
        }
        assert!(pages.are_intact());
    }

    #[test]
    fn futex_waiters_are_woken_after_a_conversion() {
        let Ok(handler) = Handler::new() else { return test_support::skip("no privilege for userfaultfd") };
        let pages = Pages::new(BLOCK);
        let memory = memfd::create(BLOCK).unwrap();
        let word = pages.range().start + PAGE;
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| sleep_on(word));
            wait_for_a_sleeper(&pages.range());
            assert_eq!(pages.make_shared(&memory, &handler).unwrap_err().kind(), io::ErrorKind::ResourceBusy);
            pages.wake(PAGE);
            sleeper.join().unwrap().unwrap();
        });
        pages.make_shared(&memory, &handler).unwrap();
        memfd::seal(memory.as_fd(), false).unwrap();
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| sleep_on(word));
            wait_for_a_sleeper(&pages.range());
            pages.make_private(&memory);
            sleeper.join().unwrap().unwrap();
        });
    }

    /// The program may do so while they are aside.
    #[test]
    fn pages_that_are_locked_and_unlocked_meanwhile_are_moved() {
        let Ok(handler) = Handler::new() else { return test_support::skip("no privilege for userfaultfd") };
        let pages = Pages::new(BLOCK);
        let word = pages.range().start + PAGE + 8;
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    // SAFETY: no memory is changed.
                    unsafe {
                        let on_fault = libc::MLOCK_ONFAULT as libc::c_uint;
                        libc::mlock2(pages.at(), BLOCK as usize, on_fault);
                        libc::munlock(pages.at(), BLOCK as usize);
                    }
                }
            });
            let sleeper = scope.spawn(|| sleep_on(word));
            wait_for_a_sleeper(&pages.range());
            for _ in 0..100 {
                let converted = pages.make_shared(&memfd::create(BLOCK).unwrap(), &handler);
                assert_eq!(converted.unwrap_err().kind(), io::ErrorKind::ResourceBusy);
            }
            pages.wake(PAGE + 8);
            sleeper.join().unwrap().unwrap();
            stop.store(true, Ordering::Relaxed);
        });
        assert!(pages.are_intact());
    }

    #[test]
    fn locked_pages_are_converted() {
        let Ok(handler) = Handler::new() else { return test_support::skip("no privilege for userfaultfd") };
        let pages = Pages::new(BLOCK);
        // SAFETY: the pages are our own.
        assert_eq!(unsafe { libc::mlock(pages.at(), BLOCK as usize) }, 0);
        pages.make_shared(&memfd::create(BLOCK).unwrap(), &handler).unwrap();
        assert!(pages.are_intact());
    }

    #[test]
    fn both_mappings_see_the_same_bytes() {
        let Ok(handler) = Handler::new() else { return test_support::skip("no privilege for userfaultfd") };
        let pages = Pages::new(BLOCK);
        let memory = memfd::create(BLOCK).unwrap();
        pages.make_shared(&memory, &handler).unwrap();
        memfd::seal(memory.as_fd(), true).unwrap();
        let mapped = Mapped::new(&memory, u64::MAX).unwrap();
        let neighbour = mapped.address(100, 8).unwrap();
        // SAFETY: both are mapped.
        unsafe {
            crate::memory::store(neighbour, b"from him");
            let mut seen = Vec::new();
            crate::memory::load(pages.range().start + 100, 8, &mut seen);
            assert_eq!(seen, b"from him");
        }
    }
}
