//! Zeroed memory in a mapping of its own.

use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr;
use std::slice;

use crate::errno::Result;

/// Bytes in pages that are allocated at the first write, and all freed at the end. An allocator would have to
/// zero reused memory, and so touch all of it for a user that needs little.
#[derive(Debug)]
pub(crate) struct Pages {
    at: *mut u8,
    length: usize,
}

// SAFETY: the mapping is the value's alone, and good in every thread.
unsafe impl Send for Pages {}
// SAFETY: a shared reference only reads.
unsafe impl Sync for Pages {}

impl Pages {
    /// So many zeroes.
    ///
    /// # Errors
    /// The errors of `mmap`: `ENOMEM`.
    pub(crate) fn new(length: usize) -> Result<Self> {
        let (rights, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a fresh mapping where the kernel likes.
        let at = unsafe { libc::mmap(ptr::null_mut(), length, rights, kind, -1, 0) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error().into());
        }
        Ok(Self { at: at.cast(), length })
    }
}

impl Deref for Pages {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: so many bytes are mapped, for as long as the value lives.
        unsafe { slice::from_raw_parts(self.at, self.length) }
    }
}

impl DerefMut for Pages {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { slice::from_raw_parts_mut(self.at, self.length) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: no other code has the mapping.
        unsafe { libc::munmap(self.at.cast(), self.length) };
    }
}
