//! Application memory: addresses, never references.
//!
//! The application reads and writes its registered memory at any time, from any thread, while
//! work requests on it run; these accesses may race. Hence no `&[u8]` is ever made over it: this module
//! accesses it by raw copies and atomic operations, and a stream by the vectors
//! made here. Callers have checked that an address range lies in a registered region, which the
//! caller of `reg_mr` has promised to keep mapped.

use std::io;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering, compiler_fence};

use libc::iovec;

use crate::work::Sge;

/// Bytes that one access moves.
pub(crate) const WORD: usize = size_of::<u64>();

/// A vector over `length` bytes at `addr`.
pub(crate) fn vector(addr: u64, length: usize) -> iovec {
    iovec { iov_base: ptr::with_exposed_provenance_mut(addr as usize), iov_len: length }
}

/// True if a system call found no memory, or not the right to it, where an application has registered some.
pub(crate) fn is_fault(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EFAULT)
}

/// The piece that `bytes`, memory of our own, are. It has no key.
pub(crate) fn piece(bytes: &[u8]) -> Sge {
    Sge { addr: bytes.as_ptr().expose_provenance() as u64, length: bytes.len() as u32, lkey: 0 }
}

/// Stores `bytes` at `addr`, as [`copy`] does.
///
/// # Safety
/// The range is mapped and writable.
#[inline]
pub(crate) unsafe fn store(addr: u64, bytes: &[u8]) {
    let to = ptr::with_exposed_provenance_mut::<u8>(addr as usize);
    // SAFETY: the caller vouches for the whole range, and `bytes` is not application memory.
    unsafe { copy_words(to, bytes.as_ptr(), bytes.len()) };
}

/// Appends the `length` bytes at `addr` to `bytes`.
///
/// # Safety
/// The range is mapped and readable.
#[inline]
pub(crate) unsafe fn load(addr: u64, length: usize, bytes: &mut Vec<u8>) {
    bytes.reserve(length);
    // SAFETY: the caller vouches for the source; the room was just reserved and is filled before
    // the vector is made longer.
    unsafe {
        fetch(bytes.as_mut_ptr().add(bytes.len()), addr, length);
        bytes.set_len(bytes.len() + length);
    }
}

/// Copies the `length` bytes at `from` to memory of our own.
///
/// # Safety
/// Both ranges are mapped, `to` writable, and they do not overlap.
#[inline]
pub(crate) unsafe fn fetch(to: *mut u8, from: u64, length: usize) {
    let from = ptr::with_exposed_provenance::<u8>(from as usize);
    // SAFETY: the caller vouches for both ranges.
    unsafe { copy_words(to, from, length) };
}

/// Stores `swap` if the word at `addr` is `compare`; returns the former word.
///
/// # Safety
/// The word is mapped, writable and aligned.
pub(crate) unsafe fn compare_swap(addr: u64, compare: u64, swap: u64) -> u64 {
    // SAFETY: as the caller vouches; concurrent accesses of the application race with it on any device.
    let word = unsafe { AtomicU64::from_ptr(ptr::with_exposed_provenance_mut(addr as usize)) };
    word.compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst).unwrap_or_else(|found| found)
}

/// Adds to the word at `addr`; returns the former word.
///
/// # Safety
/// The word is mapped, writable and aligned.
pub(crate) unsafe fn fetch_add(addr: u64, add: u64) -> u64 {
    // SAFETY: as the caller vouches; concurrent accesses of the application race with it on any device.
    let word = unsafe { AtomicU64::from_ptr(ptr::with_exposed_provenance_mut(addr as usize)) };
    word.fetch_add(add, Ordering::SeqCst)
}

/// Copies `length` bytes. Words of 8 bytes that begin with a multiple of 8 are copied as one, and so is the last word of 2, 4 or 8: a
/// program may have a counter there that another thread changes, or poll the last word to see a message arrive, so that one is stored last.
///
/// # Safety
/// Both ranges are mapped, `to` writable. They may overlap.
#[inline]
pub(crate) unsafe fn copy(to: u64, from: u64, length: usize) {
    let overlaps = to.abs_diff(from) < length as u64;
    let to = ptr::with_exposed_provenance_mut::<u8>(to as usize);
    let from = ptr::with_exposed_provenance::<u8>(from as usize);
    // SAFETY: the caller vouches for both ranges.
    unsafe {
        if overlaps {
            ptr::copy(from, to, length);
        } else {
            copy_words(to, from, length);
        }
    }
}

/// See [`copy`].
///
/// # Safety
/// Both ranges are mapped, `to` writable, and they do not overlap.
#[inline(always)]
unsafe fn copy_words(to: *mut u8, from: *const u8, length: usize) {
    // SAFETY: no word reaches beyond `length`.
    unsafe {
        match length {
            8 => copy_word::<u64>(to, from, 0),
            0..8 => copy_few(to, from, length),
            _ => {
                // All but the last word, or a part of it.
                let body = (length - 1) / WORD * WORD;
                if body == WORD {
                    copy_word::<u64>(to, from, 0);
                } else {
                    ptr::copy_nonoverlapping(from, to, body);
                }
                compiler_fence(Ordering::AcqRel);
                copy_word::<u64>(to, from, length - WORD);
            }
        }
    }
}

/// [`copy_words`] of less than one of 8 bytes.
///
/// # Safety
/// As there.
#[inline]
unsafe fn copy_few(to: *mut u8, from: *const u8, length: usize) {
    // SAFETY: no word reaches beyond `length`.
    unsafe {
        match length {
            0 => {}
            1 => copy_word::<u8>(to, from, 0),
            2..4 => {
                copy_word::<u16>(to, from, 0);
                compiler_fence(Ordering::AcqRel);
                copy_word::<u16>(to, from, length - 2);
            }
            _ => {
                copy_word::<u32>(to, from, 0);
                compiler_fence(Ordering::AcqRel);
                copy_word::<u32>(to, from, length - 4);
            }
        }
    }
}

/// Copies a word at `offset` by one access, on x86 wherever it is in a cache line.
///
/// # Safety
/// It lies in both ranges.
#[inline(always)]
unsafe fn copy_word<T>(to: *mut u8, from: *const u8, offset: usize) {
    // SAFETY: the caller's promise.
    unsafe { to.add(offset).cast::<T>().write_unaligned(from.add(offset).cast::<T>().read_unaligned()) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_lengths_are_copied_and_nothing_behind() {
        let from: Vec<u8> = (1..=100).collect();
        for length in 0..from.len() {
            let mut to = [0; 101];
            // SAFETY: both are long enough.
            unsafe {
                copy(
                    to.as_mut_ptr().expose_provenance() as u64,
                    from.as_ptr().expose_provenance() as u64,
                    length,
                )
            };
            assert_eq!(to[..length], from[..length]);
            assert!(to[length..].iter().all(|byte| *byte == 0));
        }
    }

    #[test]
    fn ranges_may_overlap() {
        let mut bytes: Vec<u8> = (0..100).collect();
        let at = bytes.as_mut_ptr().expose_provenance() as u64;
        // SAFETY: all of it lies in the vector.
        unsafe { copy(at + 3, at, 50) };
        assert!((0..50).eq(bytes[3..53].iter().copied()));
    }

    /// Copies `length` bytes of ones and of zeros in turn, and has another thread look at the word of `size` bytes at `offset`.
    fn is_torn(length: usize, offset: usize, size: usize) -> bool {
        use std::sync::atomic::AtomicBool;
        let memory: Vec<AtomicU64> = (0..16).map(|_| AtomicU64::new(0)).collect();
        let (start, stop) = (memory.as_ptr().expose_provenance() as u64, AtomicBool::new(false));
        let whole = u64::MAX >> (64 - 8 * size);
        std::thread::scope(|scope| {
            let looker = scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let word = memory[offset / 8].load(Ordering::Relaxed) >> (offset % 8 * 8) & whole;
                    if word != 0 && word != whole {
                        return true;
                    }
                }
                false
            });
            for round in 0..200_000 {
                let bytes = [if round % 2 == 0 { 0xff } else { 0u8 }; 128];
                // SAFETY: the memory is long enough, and both sides use atomics or raw accesses.
                unsafe { store(start, &bytes[..length]) };
            }
            stop.store(true, Ordering::Relaxed);
            looker.join().unwrap()
        })
    }

    #[test]
    fn words_are_copied_atomically() {
        let words = [
            (2, 0, 2),
            (4, 0, 4),
            (7, 0, 4),
            (8, 0, 8),
            (12, 0, 8),
            (12, 8, 4),
            (20, 8, 8),
            (20, 16, 4),
            (64, 56, 8),
            (68, 64, 4),
        ];
        for (length, offset, size) in words {
            assert!(!is_torn(length, offset, size), "{size} bytes at {offset} of {length}");
        }
    }
}
