//! Registered memory.

use std::io;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, Result};
use verbs_abi as abi;
use verbs_abi::constants::access::{
    IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_ATOMIC, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE,
};

use super::{Device, not_null};
use crate::completion::Memory;

/// Pages of this process' own, registered for every kind of access. The device reads and writes
/// them at any time: they are accessed by copying, never by reference.
pub struct Region {
    start: NonNull<u8>,
    length: usize,
    registration: NonNull<abi::ibv_mr>,
    device: Device,
}

impl Region {
    /// `length` bytes of zeroes, registered.
    ///
    /// # Errors
    /// If there is no memory, or the device refuses.
    pub fn new(device: &Device, length: usize) -> Result<Self> {
        let start = map(length).with_context(|| format!("cannot allocate {length} bytes"))?;
        let access = IBV_ACCESS_LOCAL_WRITE
            | IBV_ACCESS_REMOTE_WRITE
            | IBV_ACCESS_REMOTE_READ
            | IBV_ACCESS_REMOTE_ATOMIC;
        let register = device.functions().ibv_reg_mr;
        // SAFETY: the pages are mapped until after the registration ends.
        let registration =
            unsafe { register(device.domain(), start.as_ptr().cast(), length, access.cast_signed()) };
        let registration = not_null(registration, "ibv_reg_mr")?;
        Ok(Self { start, length, registration, device: device.clone() })
    }

    /// The address at `offset`.
    #[must_use]
    pub fn address(&self, offset: usize) -> u64 {
        (self.start.as_ptr() as usize + offset) as u64
    }

    /// The key for local access.
    #[must_use]
    pub fn lkey(&self) -> u32 {
        // SAFETY: the registration lives as long as `self`.
        unsafe { (*self.registration.as_ptr()).lkey }
    }

    /// The key for the peer's access.
    #[must_use]
    pub fn rkey(&self) -> u32 {
        // SAFETY: as above.
        unsafe { (*self.registration.as_ptr()).rkey }
    }

    /// Copies `bytes` to `offset`.
    pub fn copy_in(&self, offset: usize, bytes: &[u8]) {
        let to = self.at(offset, bytes.len());
        // SAFETY: the range lies in the mapping, and no reference to it exists.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }

    /// Puts `value` at `offset`, a multiple of 8, in one store.
    pub fn put_word(&self, offset: usize, value: u64) {
        self.atomic(offset).store(value, Ordering::Release);
    }

    fn atomic(&self, offset: usize) -> &AtomicU64 {
        let word = self.at(offset, 8).cast::<u64>();
        assert!(word.is_aligned(), "a word at the odd offset {offset}");
        // SAFETY: the word lies in the mapping, aligned, and is accessed atomically.
        unsafe { AtomicU64::from_ptr(word) }
    }

    fn at(&self, offset: usize, length: usize) -> *mut u8 {
        let end = offset.checked_add(length);
        assert!(end.is_some_and(|end| end <= self.length), "{length} bytes at {offset} of {}", self.length);
        // SAFETY: the offset lies in the mapping.
        unsafe { self.start.as_ptr().add(offset) }
    }
}

impl Memory for Region {
    fn copy_out(&self, offset: usize, into: &mut [u8]) {
        let from = self.at(offset, into.len());
        // SAFETY: the range lies in the mapping, and no reference to it exists.
        unsafe { ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) };
    }

    fn word(&self, offset: usize) -> u64 {
        self.atomic(offset).load(Ordering::Acquire)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the registration ends before its pages go; neither is used afterwards.
        unsafe {
            (self.device.functions().ibv_dereg_mr)(self.registration.as_ptr());
            libc::munmap(self.start.as_ptr().cast(), self.length);
        }
    }
}

fn map(length: usize) -> io::Result<NonNull<u8>> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let start = unsafe { libc::mmap(ptr::null_mut(), length, protection, flags, -1, 0) };
    match NonNull::new(start.cast::<u8>()) {
        Some(pages) if start != libc::MAP_FAILED => Ok(pages),
        _ => Err(io::Error::last_os_error()),
    }
}
