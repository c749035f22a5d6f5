//! Converts shared pages into private ones, in place, while the program uses them.
//!
//! The shared block is write-protected by a userfaultfd, copied to fresh pages, and these are moved over it. Threads that sleep on a
//! futex in it are woken at the end, and check their word again.

use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::atomic::{AtomicU8, Ordering};

use libc::c_void;
use waiting::SignalsBlocked;

use super::scratch::Scratch;
use super::userfault::Handler;
use super::{BLOCK, PAGE, memfd, sleepers};
use crate::mapping::{self, Source};

/// Makes `range` private again, with its content. Its pages were converted to those of `memory` from `offset` on.
///
/// It becomes anonymous: an allocator that gives memory back with `MADV_DONTNEED` expects zeros afterwards. Without a userfaultfd
/// or room for the scratch, it becomes a private mapping of the memory, with private copies of all pages, and zeros
/// behind them. Pages of the memory are freed as they are copied, if it is `shown_once`, that is mapped at no other place.
///
/// # Safety
/// The range was converted; nothing of this thread's stack or thread-local storage lies in it.
pub(super) unsafe fn make_private(range: &Range<u64>, memory: BorrowedFd<'_>, offset: u64, shown_once: bool) {
    let _undisturbed = SignalsBlocked::new();
    let done_with = |place, length| {
        if shown_once {
            memfd::give_back(memory, place, length);
        }
    };
    // SAFETY: the caller's promise.
    let done = unsafe { make_anonymous(range, |done, part| done_with(offset + done, part)) };
    // SAFETY: as above.
    unsafe { remap_private(&(range.start + done..range.end), memory, offset + done, done_with) };
    // As far as they are known.
    let _ = sleepers::for_each_in(range, |word| memfd::wake(memory, offset + (word - range.start)));
}

/// Replaces pages by anonymous ones, and tells `done_with` from where on, and how many bytes. Returns for how many that could be done.
///
/// # Safety
/// As for [`make_private`].
unsafe fn make_anonymous(range: &Range<u64>, done_with: impl Fn(u64, u64)) -> u64 {
    let length = range.end - range.start;
    // One place for all of it, so that the parts become one mapping again.
    let (Ok(handler), Ok(fresh)) = (Handler::new(), Scratch::new(length)) else { return 0 };
    let mut done = 0;
    while done < length {
        let part = (length - done).min(BLOCK);
        let start = range.start + done;
        // SAFETY: the scratch is as long as the range; the caller vouches for the rest.
        if unsafe { replace(&(start..start + part), &fresh, done, &handler) }.is_err() {
            break;
        }
        done_with(done, part);
        done += part;
    }
    done
}

/// Copies the content of `block` to the scratch's pages from `offset` on, and moves these over it. Threads that write to it meanwhile wait.
///
/// # Errors
/// The errors of the userfaultfd, and of `mremap`. Waiting threads then continue with the shared memory.
///
/// # Safety
/// The block is mapped, the scratch has so much room, and nothing of this thread's own lies in the block.
unsafe fn replace(block: &Range<u64>, fresh: &Scratch, offset: u64, handler: &Handler) -> io::Result<()> {
    let at = ptr::with_exposed_provenance_mut::<c_void>(block.start as usize);
    let length = block.end - block.start;
    let _held = handler.hold_writers(block)?;
    // SAFETY: both are mapped, and only this code knows the scratch. The same bytes replace the shared ones, which no thread can have
    // changed since.
    unsafe {
        ptr::copy_nonoverlapping(at.cast::<u8>(), fresh.at(offset).cast(), length as usize);
        fresh.replace(offset, at, length)
    }
}

/// Replaces a mapping of the memory by a private one, a block at a time. No store is lost: each happens either in the memory,
/// where the private mapping shows it, or in the page's copy. Tells `done_with` which parts of the memory are not needed here any more.
///
/// # Safety
/// As for [`make_private`]; private mappings that are there now are left alone. An unmapped part shows that `mremap`
/// has failed: the kernel checks the program's limit (`RLIMIT_DATA`) only after the unmapping.
unsafe fn remap_private(
    range: &Range<u64>,
    memory: BorrowedFd<'_>,
    offset: u64,
    done_with: impl Fn(u64, u64),
) {
    for start in range.clone().step_by(BLOCK as usize) {
        let length = (range.end - start).min(BLOCK);
        let at = ptr::with_exposed_provenance_mut(start as usize);
        let place = offset + (start - range.start);
        // SAFETY: nothing is changed.
        let is_shared = unsafe { mapping::is_shared(at, length as usize) };
        let fixed = if is_shared { libc::MAP_FIXED } else { libc::MAP_FIXED_NOREPLACE };
        let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | fixed);
        // SAFETY: the same bytes are mapped over themselves.
        if unsafe { mapping::map(at, length as usize, rights, flags, Source::File(memory, place)) }.is_err() {
            // There are too many mappings, and it stays shared; or it is something else.
            continue;
        }
        for page in (start..start + length).step_by(PAGE as usize) {
            // SAFETY: the page was just mapped. Its content may be anything, and is not changed.
            let byte = unsafe { AtomicU8::from_ptr(ptr::with_exposed_provenance_mut(page as usize)) };
            let present = byte.load(Ordering::Relaxed);
            // Also if it has changed meanwhile, that was a store that has made the copy.
            let _ = byte.compare_exchange(present, present, Ordering::Relaxed, Ordering::Relaxed);
        }
        done_with(place, length);
    }
}

/// Puts fresh private pages at `range`.
///
/// # Errors
/// The errors of `mmap`.
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

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::{AsFd, OwnedFd};
    use std::os::unix::fs::MetadataExt;
    use std::process::Command;

    use super::*;
    use crate::share::testing::Pages;

    /// How many bytes of a memory there are.
    fn allocated(memory: &OwnedFd) -> u64 {
        File::from(memory.try_clone().unwrap()).metadata().unwrap().blocks() * 512
    }

    /// Without a userfaultfd, or room: while a thread writes.
    #[test]
    fn pages_that_cannot_become_anonymous_become_a_private_mapping() {
        const LENGTH: u64 = 4 * BLOCK;
        let Ok(handler) = Handler::new() else { return test_support::skip("no privilege for userfaultfd") };
        let pages = Pages::new(LENGTH);
        let memory = memfd::create(LENGTH).unwrap();
        pages.make_shared(&memory, &handler).unwrap();
        let done_with = |place, length| memfd::give_back(memory.as_fd(), place, length);
        // SAFETY: the range was converted. In the end it is not the memory any more, and is left alone.
        let remap = || unsafe { remap_private(&pages.range(), memory.as_fd(), 0, done_with) };
        pages.count_while(remap);
        // A page fault of the writer's, which was on its way meanwhile, may find its page given back, makes another, and then sees that it
        // has its copy. That page goes with the memory.
        assert!(allocated(&memory) <= PAGE, "{} bytes are left", allocated(&memory));
        pages.assert_zeros_when_given_back();
        remap();
    }

    /// Bytes of this process that count against `RLIMIT_DATA`.
    fn data() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmData:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
    }

    /// A limit that leaves room for the scratch, and for some of the pages moved from it. In a process of its own,
    /// since the limit is a process's; a fork would make pages busy that other tests turn.
    #[test]
    fn rlimit_data_loses_no_pages() {
        const LENGTH: u64 = 4 * BLOCK;
        const ALONE: &str = "IN_A_PROCESS_OF_ITS_OWN";
        if std::env::var_os(ALONE).is_none() {
            let name = concat!(module_path!(), "::rlimit_data_loses_no_pages");
            let name = name.split_once("::").map(|(_, name)| name).unwrap();
            let mut alone = Command::new(std::env::current_exe().unwrap());
            assert!(alone.args(["--exact", name]).env(ALONE, "1").status().unwrap().success());
            return;
        }
        let Ok(handler) = Handler::new() else { return test_support::skip("no privilege for userfaultfd") };
        let pages = Pages::new(LENGTH);
        let memory = memfd::create(LENGTH).unwrap();
        pages.make_shared(&memory, &handler).unwrap();
        let most = data() + LENGTH + BLOCK + BLOCK / 2;
        let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
        // SAFETY: the limit is live.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_DATA, &raw const limit) }, 0);
        pages.make_private(&memory);
        assert!(pages.are_intact());
    }

    #[test]
    fn shared_memory_is_freed_while_pages_become_private() {
        let Ok(handler) = Handler::new() else { return test_support::skip("no privilege for userfaultfd") };
        let pages = Pages::new(BLOCK);
        let memory = memfd::create(BLOCK).unwrap();
        pages.make_shared(&memory, &handler).unwrap();
        assert_eq!(allocated(&memory), BLOCK);
        pages.make_private(&memory);
        assert_eq!(allocated(&memory), 0);
        assert!(pages.are_intact());
    }
}
