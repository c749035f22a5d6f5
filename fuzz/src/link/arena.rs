//! Memory of an application between guards, so that a stray access ends the program.

use std::cell::RefCell;
use std::ptr;

use libc::iovec;

const PAGE: usize = 4096;

/// Usable bytes: one page is added on both sides that is not.
const SIZE: usize = 32 * PAGE;

/// The content of memory that was never written.
pub const UNTOUCHED: u8 = 0xa7;

thread_local! {
    /// Made once for each thread, and taken by one owner after the other.
    static SPARE: RefCell<Vec<Guarded>> = const { RefCell::new(Vec::new()) };
}

/// Memory with [`UNTOUCHED`] in each byte when it is taken.
pub struct Guarded {
    at: *mut u8,
}

impl Guarded {
    /// This thread's memory.
    #[must_use]
    pub fn take() -> Lent {
        Lent(Some(SPARE.with_borrow_mut(Vec::pop).unwrap_or_else(Self::new)))
    }

    fn new() -> Self {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a fresh mapping at an address of the kernel's choice. Its middle is then made usable.
        let at = unsafe {
            let around = libc::mmap(ptr::null_mut(), SIZE + 2 * PAGE, libc::PROT_NONE, flags, -1, 0);
            assert_ne!(around, libc::MAP_FAILED);
            let at = around.cast::<u8>().add(PAGE);
            assert_eq!(libc::mprotect(at.cast(), SIZE, libc::PROT_READ | libc::PROT_WRITE), 0);
            at
        };
        let memory = Self { at };
        memory.fill(0, SIZE);
        memory
    }

    fn fill(&self, offset: usize, length: usize) {
        assert!(offset + length <= SIZE);
        // SAFETY: just checked.
        unsafe { self.at.add(offset).write_bytes(UNTOUCHED, length) };
    }
}

/// [`Guarded`] memory that a holder uses.
pub struct Lent(Option<Guarded>);

impl Lent {
    fn start(&self) -> *mut u8 {
        self.0.as_ref().map_or(ptr::null_mut(), |memory| memory.at)
    }

    /// Its address.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.start().expose_provenance() as u64
    }

    /// `length` bytes from `offset` on, as streams name them.
    #[must_use]
    pub fn vector(&self, offset: usize, length: usize) -> iovec {
        assert!(offset + length <= SIZE);
        iovec { iov_base: self.start().wrapping_add(offset).cast(), iov_len: length }
    }

    /// A copy of `length` bytes from `offset` on.
    #[must_use]
    pub fn load(&self, offset: usize, length: usize) -> Vec<u8> {
        assert!(offset + length <= SIZE);
        // SAFETY: just checked, and no thread writes while this runs.
        unsafe { std::slice::from_raw_parts(self.start().add(offset), length) }.to_vec()
    }

    /// The first `length` bytes.
    #[must_use]
    pub fn bytes(&self, length: usize) -> Vec<u8> {
        self.load(0, length)
    }

    /// Stores `bytes`.
    pub fn store(&mut self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= SIZE);
        // SAFETY: just checked, and no other thread uses it while this runs.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.start().add(offset), bytes.len()) };
    }

    /// True if nothing was written from `offset` on.
    #[must_use]
    pub fn is_clean_from(&self, offset: usize) -> bool {
        self.load(offset, SIZE - offset).iter().all(|byte| *byte == UNTOUCHED)
    }

    /// Resets the first `length` bytes to unwritten.
    pub fn clean(&mut self, length: usize) {
        if let Some(memory) = &self.0 {
            memory.fill(0, length);
        }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(memory) = self.0.take() {
            memory.fill(0, SIZE);
            SPARE.with_borrow_mut(|spare| spare.push(memory));
        }
    }
}
