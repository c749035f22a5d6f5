//! Memory that changes all the time, in every way that a program has.

use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

/// Pages that children do not have.
const OWN: usize = 256;

/// Pages that are mapped together.
const CHUNK: usize = 16;
const PAGE: usize = 4096;

/// What is to be in the memory is known apart from it: a number for each page, which makes its content; 0 is a page of zeros.
struct Memory {
    chunks: Vec<*mut u8>,
    seeds: Vec<u64>,
    random: u64,
    /// Pages that are zeros in children. Nobody touches them but those.
    own: *mut u8,
}

/// Changes so many MiB, and looks again and again whether they are as they must be: in two processes, one of which was forked
/// when it was all there. Both also count in a page that they share.
pub fn change(mebibytes: usize) {
    let mut memory = Memory::new(mebibytes * 256 / CHUNK);
    (0..memory.seeds.len()).for_each(|page| memory.write(page));
    let shared = map(PAGE, libc::MAP_SHARED).cast::<AtomicU64>();
    // SAFETY: the page is mapped for good, zeroed and aligned.
    let (mine, other) = unsafe { (&*shared, &*shared.add(1)) };
    // SAFETY: this process has one thread.
    let child = unsafe { libc::fork() };
    assert_ne!(child, -1);
    if child == 0 {
        memory.random = 7;
        for round in 1.. {
            memory.change_for_a_while();
            other.store(round, Ordering::SeqCst);
        }
    }
    for round in 1_u64.. {
        memory.change_for_a_while();
        mine.store(round, Ordering::SeqCst);
        assert_eq!(mine.load(Ordering::SeqCst), round);
        // What the other has found wrong has ended it.
        // SAFETY: a null status asks for none.
        assert_eq!(unsafe { libc::waitpid(child, ptr::null_mut(), libc::WNOHANG) }, 0, "the child has ended");
        println!("{} {}", round, other.load(Ordering::SeqCst));
    }
}

/// Has so many MiB in common with three children, of which each has filled all.
pub fn share(mebibytes: usize) {
    let length = mebibytes << 20;
    let memory = map(length, libc::MAP_SHARED);
    for _ in 0..3 {
        // SAFETY: this process has one thread.
        let child = unsafe { libc::fork() };
        assert_ne!(child, -1);
        // SAFETY: the memory is mapped for good; others only write the same to it.
        unsafe { memory.write_bytes(1, length) };
        if child == 0 {
            thread::sleep(Duration::MAX);
        }
    }
    crate::count(u64::MAX);
}

impl Memory {
    fn new(chunks: usize) -> Self {
        // First, so that it is last to come.
        let own = map(OWN * PAGE, libc::MAP_PRIVATE);
        // SAFETY: the pages are ours.
        unsafe {
            assert_eq!(libc::madvise(own.cast(), OWN * PAGE, libc::MADV_WIPEONFORK), 0);
            own.write_bytes(1, OWN * PAGE);
        }
        let mapped = (0..chunks).map(|_| map(CHUNK * PAGE, libc::MAP_PRIVATE)).collect();
        Self { chunks: mapped, seeds: vec![0; chunks * CHUNK], random: 1, own }
    }

    fn change_for_a_while(&mut self) {
        self.fork();
        for _ in 0..200 {
            let page = self.below(self.seeds.len());
            match self.below(100) {
                0..60 => self.check(page),
                60..90 => self.write(page),
                90..94 => self.give_back(page),
                94..97 => self.relocate(page / CHUNK),
                _ => self.renew(page / CHUNK),
            }
        }
    }

    fn below(&mut self, limit: usize) -> usize {
        self.random = self.random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        (self.random >> 33) as usize % limit
    }

    fn page(&self, page: usize) -> *mut u64 {
        // SAFETY: each chunk has so many pages.
        unsafe { self.chunks[page / CHUNK].add(page % CHUNK * PAGE).cast() }
    }

    fn check(&self, page: usize) {
        for word in 0..PAGE / 8 {
            // SAFETY: the page is mapped, and has so many words.
            let found = unsafe { self.page(page).add(word).read_volatile() };
            assert_eq!(found, content(self.seeds[page], word), "word {word} of page {page}");
        }
    }

    fn write(&mut self, page: usize) {
        let seed = self.below(usize::MAX) as u64 | 1;
        self.seeds[page] = seed;
        for word in 0..PAGE / 8 {
            // SAFETY: as in `check`.
            unsafe { self.page(page).add(word).write_volatile(content(seed, word)) };
        }
    }

    fn give_back(&mut self, page: usize) {
        self.seeds[page] = 0;
        // SAFETY: the page is ours, and zeros from now on.
        assert_eq!(unsafe { libc::madvise(self.page(page).cast(), PAGE, libc::MADV_DONTNEED) }, 0);
    }

    fn relocate(&mut self, chunk: usize) {
        let length = CHUNK * PAGE;
        let (from, to) = (self.chunks[chunk], map(length, libc::MAP_PRIVATE));
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: both are ours and as long, and nothing is at the second one.
        let moved = unsafe { libc::mremap(from.cast(), length, length, flags, to) };
        assert_eq!(moved, to.cast());
        self.chunks[chunk] = to;
    }

    fn renew(&mut self, chunk: usize) {
        // SAFETY: it is ours, and not used any more.
        assert_eq!(unsafe { libc::munmap(self.chunks[chunk].cast(), CHUNK * PAGE) }, 0);
        self.chunks[chunk] = map(CHUNK * PAGE, libc::MAP_PRIVATE);
        self.seeds[chunk * CHUNK..][..CHUNK].fill(0);
    }

    /// A child has all of it as it is now.
    fn fork(&mut self) {
        // SAFETY: this process has one thread.
        let child = unsafe { libc::fork() };
        assert_ne!(child, -1);
        if child == 0 {
            let own = self.below(OWN) * PAGE;
            // SAFETY: the pages are mapped.
            assert_eq!(unsafe { self.own.add(own).read_volatile() }, 0, "a fork has copied it");
            for _ in 0..50 {
                let page = self.below(self.seeds.len());
                self.check(page);
                self.write(page);
            }
            // SAFETY: nothing of the parent's is to be undone here.
            unsafe { libc::_exit(0) };
        }
        let mut status = 1;
        // SAFETY: `status` is live and writable.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "a child has found something wrong");
    }
}

fn content(seed: u64, word: usize) -> u64 {
    seed.wrapping_mul(word as u64 + 1)
}

fn map(length: usize, kind: libc::c_int) -> *mut u8 {
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a fresh mapping where the kernel likes.
    let at = unsafe { libc::mmap(ptr::null_mut(), length, rights, kind | libc::MAP_ANONYMOUS, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    at.cast()
}
