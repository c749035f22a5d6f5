//! Application memory: addresses, never references.
//!
//! The application reads and writes its registered memory at any time, from any thread, while
//! work requests on it run; it may do so wrongly. Hence no `&[u8]` is ever made over it: all that
//! happens to it happens here by raw copies and atomic operations, or in a stream by the vectors
//! made here. Callers have checked that an address range lies in a registered region, which the
//! caller of `reg_mr` has promised to keep mapped.

use std::io;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering, compiler_fence};

use libc::iovec;

use crate::work::Sge;

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

/// Stores `bytes` at `addr`, the last byte last: a program may spin on it to see the message arrive.
///
/// # Safety
/// The range is mapped and writable.
#[inline]
pub(crate) unsafe fn store(addr: u64, bytes: &[u8]) {
    let Some((last, body)) = bytes.split_last() else { return };
    let to = ptr::with_exposed_provenance_mut::<u8>(addr as usize);
    // SAFETY: the caller vouches for the whole range, and `bytes` is not application memory.
    unsafe {
        if let &[a, b, c, d, e, f, g] = body {
            let word = u64::from_ne_bytes([a, b, c, d, e, f, g, *last]);
            to.cast::<u64>().write_unaligned(word);
        } else {
            ptr::copy_nonoverlapping(body.as_ptr(), to, body.len());
            compiler_fence(Ordering::Release);
            to.add(body.len()).write_volatile(*last);
        }
    }
}

/// Appends the `length` bytes at `addr` to `bytes`.
///
/// # Safety
/// The range is mapped and readable.
#[inline]
pub(crate) unsafe fn load(addr: u64, length: usize, bytes: &mut Vec<u8>) {
    bytes.reserve(length);
    let from = ptr::with_exposed_provenance::<u8>(addr as usize);
    // SAFETY: the caller vouches for the source; the room was just reserved and is filled before
    // the vector is made longer.
    unsafe {
        ptr::copy_nonoverlapping(from, bytes.as_mut_ptr().add(bytes.len()), length);
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
    unsafe {
        if length == 8 {
            to.cast::<u64>().write_unaligned(from.cast::<u64>().read_unaligned());
        } else {
            ptr::copy_nonoverlapping(from, to, length);
        }
    }
}

/// Stores `swap` if the word at `addr` is `compare`; returns what was there.
///
/// # Safety
/// The word is mapped, writable and aligned.
pub(crate) unsafe fn compare_swap(addr: u64, compare: u64, swap: u64) -> u64 {
    // SAFETY: as the caller vouches; concurrent accesses of the application race with it on any device.
    let word = unsafe { AtomicU64::from_ptr(ptr::with_exposed_provenance_mut(addr as usize)) };
    word.compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst).unwrap_or_else(|found| found)
}

/// Adds to the word at `addr`; returns what was there.
///
/// # Safety
/// The word is mapped, writable and aligned.
pub(crate) unsafe fn fetch_add(addr: u64, add: u64) -> u64 {
    // SAFETY: as the caller vouches; concurrent accesses of the application race with it on any device.
    let word = unsafe { AtomicU64::from_ptr(ptr::with_exposed_provenance_mut(addr as usize)) };
    word.fetch_add(add, Ordering::SeqCst)
}

/// Copies `length` bytes, the last byte last, as [`store`] does.
///
/// # Safety
/// Both ranges are mapped, `to` writable. They may overlap.
#[inline]
pub(crate) unsafe fn copy(to: u64, from: u64, length: usize) {
    let to = ptr::with_exposed_provenance_mut::<u8>(to as usize);
    let from = ptr::with_exposed_provenance::<u8>(from as usize);
    let Some(body) = length.checked_sub(1) else { return };
    // SAFETY: the caller vouches for both ranges.
    unsafe {
        if length == 8 {
            to.cast::<u64>().write_unaligned(from.cast::<u64>().read_unaligned());
        } else {
            let last = from.add(body).read_volatile();
            ptr::copy(from, to, body);
            compiler_fence(Ordering::Release);
            to.add(body).write_volatile(last);
        }
    }
}
