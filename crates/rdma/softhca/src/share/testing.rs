//! Helpers of the tests that convert pages.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use libc::c_void;

use super::BLOCK;
use super::make_private::make_private;
use super::make_shared::make_shared;
use super::syscall::check;
use super::userfault::Handler;

const FILL: u8 = 7;

/// Pages of our own, as a program has them, no stack, with something in them.
pub(super) struct Pages {
    at: *mut c_void,
    length: u64,
}

// SAFETY: the address of a mapping is good in every thread.
unsafe impl Sync for Pages {}

impl Pages {
    pub fn new(length: u64) -> Self {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a fresh mapping where the kernel likes.
        let at = unsafe { libc::mmap(ptr::null_mut(), length as usize, rights, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        // SAFETY: it was just mapped.
        unsafe { ptr::write_bytes(at.cast::<u8>(), FILL, length as usize) };
        Self { at, length }
    }

    pub fn at(&self) -> *mut c_void {
        self.at
    }

    pub fn range(&self) -> Range<u64> {
        let start = self.at.expose_provenance() as u64;
        start..start + self.length
    }

    /// Whether all of it is as it was made.
    pub fn are_intact(&self) -> bool {
        // SAFETY: the pages are mapped, and no other thread writes to them now.
        unsafe { std::slice::from_raw_parts(self.at.cast::<u8>(), self.length as usize) }
            .iter()
            .all(|byte| *byte == FILL)
    }

    /// One of some words, in all pages.
    pub fn words(&self) -> impl Iterator<Item = &AtomicU64> {
        // SAFETY: the pages are mapped, aligned, and used as atomics only.
        let words =
            unsafe { std::slice::from_raw_parts(self.at.cast::<AtomicU64>(), self.length as usize / 8) };
        words.iter().step_by(61)
    }

    /// Lets a thread count in all words while `during` runs, and sees whether anything was lost.
    pub fn count_while(&self, during: impl FnOnce()) {
        self.words().for_each(|word| word.store(0, Ordering::Relaxed));
        let stop = AtomicBool::new(false);
        let counted = std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let mut rounds = 0u64;
                while !stop.load(Ordering::Relaxed) {
                    for word in self.words() {
                        word.fetch_add(1, Ordering::Relaxed);
                    }
                    rounds += 1;
                }
                rounds
            });
            while self.words().any(|word| word.load(Ordering::Relaxed) == 0) {
                std::thread::yield_now();
            }
            during();
            stop.store(true, Ordering::Relaxed);
            writer.join().unwrap()
        });
        let wrong = self.words().filter(|word| word.load(Ordering::Relaxed) != counted).count();
        assert_eq!(wrong, 0, "words that missed some of {counted} rounds");
    }

    /// As an allocator expects it.
    pub fn assert_zeros_when_given_back(&self) {
        // SAFETY: the pages' content is not used any more.
        assert_eq!(unsafe { libc::madvise(self.at, self.length as usize, libc::MADV_DONTNEED) }, 0);
        assert!(self.words().all(|word| word.load(Ordering::Relaxed) == 0));
    }

    /// Converts all of it into `memory`.
    pub fn make_shared(&self, memory: &OwnedFd, handler: &Handler) -> io::Result<()> {
        let range = self.range();
        for start in range.clone().step_by(BLOCK as usize) {
            // SAFETY: the pages are not a stack.
            unsafe { make_shared(&(start..start + BLOCK), memory.as_fd(), start - range.start, handler)? };
        }
        Ok(())
    }

    /// Converts it back, which was converted into `memory`.
    pub fn make_private(&self, memory: &OwnedFd) {
        // SAFETY: the caller's promise; the pages are not a stack.
        unsafe { make_private(&self.range(), memory.as_fd(), 0, true) };
    }

    /// Wakes the thread that sleeps on the word at `offset`.
    pub fn wake(&self, offset: u64) {
        let word = self.at.wrapping_byte_add(offset as usize);
        // SAFETY: the word is mapped.
        assert_eq!(unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAKE, 1) }, 1);
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the pages are our own.
        unsafe { libc::munmap(self.at, self.length as usize) };
    }
}

/// Sleeps on the process-shared futex at `at` until another thread wakes it.
pub(super) fn sleep_on(at: u64) -> io::Result<()> {
    let word = ptr::with_exposed_provenance::<u32>(at as usize);
    // SAFETY: the word is mapped.
    let value = unsafe { word.read_volatile() };
    // SAFETY: the word is mapped.
    check(unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAIT, value, 0) }).map(drop)
}

pub(super) fn wait_for_a_sleeper(range: &Range<u64>) {
    while !super::sleepers::any_waiter_in(range).unwrap() {
        std::thread::yield_now();
    }
}
