//! A ring of bytes in shared memory: one writer, one reader, neither trusting the other.
//!
//! ```text
//!  control: │ written, closed │ read │ reader_sleeps │ writer_waits │      a cache line each, or two
//!  data:    │ ........xxxxxxxxxxxx...... │ mapped twice, so that no access wraps
//!                     ▲ read      ▲ written       both count bytes for ever
//! ```
//!
//! Each side keeps its own index privately and publishes it; the other side's is copied once and
//! checked before use. Two pairs of accesses order everything:
//!
//! * `written` is released after the data is stored and acquired before it is loaded; `read` is
//!   released after the data is loaded and acquired before it is overwritten.
//! * a side that goes to sleep stores its flag, then looks at the index; the other side publishes its index,
//!   then looks at the flag; a fence stands between in both, so one of the two sees the other. The sleeper's is
//!   one for all processes ([`crate::asymmetric`]), so that who moves bytes needs none.

use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use libc::iovec;

use crate::asymmetric::{Among, light_fence};

/// Bytes that a ring holds.
pub(super) const CAPACITY: usize = 512 * 1024;

/// Bytes of shared memory for a ring's control.
pub(super) const CONTROL: usize = 1024;

/// What both sides see of a ring. The memory may hold anything at any time.
#[repr(C, align(128))]
struct Written {
    bytes: AtomicU64,
    closed: AtomicU32,
}

#[repr(C, align(128))]
struct Read {
    bytes: AtomicU64,
}

#[repr(C, align(128))]
struct Flag(AtomicU32);

#[repr(C)]
pub(super) struct Control {
    written: Written,
    read: Read,
    reader_sleeps: Flag,
    writer_waits: Flag,
}

const _: () = assert!(size_of::<Control>() <= CONTROL);

/// Where a ring is mapped.
#[derive(Clone, Copy)]
pub(super) struct Place {
    control: *const Control,
    /// `2 * CAPACITY` bytes, the second half a mirror of the first.
    data: *mut u8,
}

impl Place {
    /// # Safety
    /// `control` points to `CONTROL` and `data` to `2 * CAPACITY` mapped, writable bytes, which stay
    /// mapped as long as the place or a side made of it is used.
    pub unsafe fn new(control: *mut u8, data: *mut u8) -> Self {
        Self { control: control.cast(), data }
    }

    fn control(&self) -> &Control {
        // SAFETY: it is mapped, as `new` demands, and holds nothing but atomics, for which every value is valid.
        unsafe { &*self.control }
    }
}

fn cheated() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the peer's ring index is impossible")
}

/// The fence between publishing an index and looking at a flag.
fn fence_fast_side(registered: bool) {
    if registered {
        light_fence();
    } else {
        fence(Ordering::SeqCst);
    }
}

/// The writing side.
pub(super) struct Writer {
    place: Place,
    registered: bool,
    written: u64,
    /// What the reader had read when we last looked.
    read: u64,
}

impl Writer {
    /// `registered`: this process is reached by [`Among::Processes`].
    pub fn new(place: Place, registered: bool) -> Self {
        Self { place, registered, written: 0, read: 0 }
    }

    fn free(&self) -> usize {
        CAPACITY - (self.written - self.read) as usize
    }

    fn look(&mut self) -> io::Result<()> {
        let read = self.place.control().read.bytes.load(Ordering::Acquire);
        if read < self.read || read > self.written {
            return Err(cheated());
        }
        self.read = read;
        Ok(())
    }

    /// Copies a prefix of `from` into the ring. Returns the bytes, and whether the reader sleeps.
    ///
    /// # Safety
    /// The vectors name readable memory.
    pub unsafe fn write(&mut self, from: &[iovec]) -> io::Result<(usize, bool)> {
        let wanted: usize = from.iter().map(|vector| vector.iov_len).sum();
        if self.free() < wanted {
            self.look()?;
        }
        let count = wanted.min(self.free());
        if count == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let mut at = (self.written % CAPACITY as u64) as usize;
        let mut left = count;
        for vector in from {
            let size = vector.iov_len.min(left);
            // SAFETY: `at + left` stays below twice the capacity, since `left` is at most the capacity; the
            // caller vouches for the source.
            unsafe { self.place.data.add(at).copy_from_nonoverlapping(vector.iov_base.cast(), size) };
            at += size;
            left -= size;
        }
        self.written += count as u64;
        self.place.control().written.bytes.store(self.written, Ordering::Release);
        fence_fast_side(self.registered);
        let sleeps = &self.place.control().reader_sleeps.0;
        let wake = sleeps.load(Ordering::Relaxed) != 0 && sleeps.swap(0, Ordering::Relaxed) != 0;
        Ok((count, wake))
    }

    /// Announces that the writer waits for room. False if there is some.
    pub fn wait(&mut self) -> bool {
        self.place.control().writer_waits.0.store(1, Ordering::Relaxed);
        Among::Processes.fence();
        self.look().is_ok() && self.free() == 0
    }

    /// Takes it back. False if the reader has done so before, and has sent a wake-up.
    pub fn stop_waiting(&self) -> bool {
        self.place.control().writer_waits.0.swap(0, Ordering::Relaxed) != 0
    }

    /// Nothing more will be written.
    pub fn close(&self) {
        self.place.control().written.closed.store(1, Ordering::Release);
    }
}

/// The reading side.
pub(super) struct Reader {
    place: Place,
    registered: bool,
    read: u64,
}

impl Reader {
    /// `registered`: as for the writer.
    pub fn new(place: Place, registered: bool) -> Self {
        Self { place, registered, read: 0 }
    }

    #[inline]
    pub fn is_quiet(&self) -> bool {
        let written = &self.place.control().written;
        written.bytes.load(Ordering::Relaxed) == self.read && written.closed.load(Ordering::Relaxed) == 0
    }

    /// Copies what is there into `into`. Returns the bytes, and whether the writer waits for room.
    ///
    /// # Safety
    /// The vectors name writable memory.
    pub unsafe fn read(&mut self, into: &[iovec]) -> io::Result<(usize, bool)> {
        let closed = self.place.control().written.closed.load(Ordering::Acquire) != 0;
        let written = self.place.control().written.bytes.load(Ordering::Acquire);
        let there = written.wrapping_sub(self.read);
        if there > CAPACITY as u64 {
            return Err(cheated());
        }
        if there == 0 {
            return if closed { Ok((0, false)) } else { Err(io::ErrorKind::WouldBlock.into()) };
        }
        let mut at = (self.read % CAPACITY as u64) as usize;
        let mut left = there as usize;
        for vector in into {
            let size = vector.iov_len.min(left);
            // SAFETY: `at + left` stays below twice the capacity, since `left` is at most the capacity; the
            // caller vouches for the destination.
            unsafe { self.place.data.add(at).copy_to_nonoverlapping(vector.iov_base.cast(), size) };
            at += size;
            left -= size;
        }
        let count = there as usize - left;
        self.read += count as u64;
        self.place.control().read.bytes.store(self.read, Ordering::Release);
        fence_fast_side(self.registered);
        let waits = &self.place.control().writer_waits.0;
        let wake = waits.load(Ordering::Relaxed) != 0 && waits.swap(0, Ordering::Relaxed) != 0;
        Ok((count, wake))
    }

    /// Announces that the reader sleeps. False if there is something to read.
    pub fn sleep(&self) -> bool {
        self.place.control().reader_sleeps.0.store(1, Ordering::Relaxed);
        Among::Processes.fence();
        self.is_quiet()
    }

    /// Takes it back. False if the writer has done so before, and has sent a wake-up.
    pub fn stop_sleeping(&self) -> bool {
        self.place.control().reader_sleeps.0.swap(0, Ordering::Relaxed) != 0
    }
}

// SAFETY: the pointers lead to memory shared between threads and processes by design; all access to the
// control part is atomic, and a side is used by one thread at a time.
unsafe impl Send for Writer {}
// SAFETY: as for the writer.
unsafe impl Send for Reader {}

#[cfg(test)]
mod tests {
    use super::*;

    /// A ring in private memory; without a mirror, so at most `CAPACITY` bytes may pass.
    fn ring() -> (Place, Box<[u64]>) {
        let mut memory = vec![0u64; (CONTROL + 2 * CAPACITY) / 8 + 16].into_boxed_slice();
        let base = memory.as_mut_ptr().cast::<u8>();
        let aligned = base.align_offset(128);
        // SAFETY: the memory is as large as a place needs, and outlives it in each test.
        let place = unsafe { Place::new(base.add(aligned), base.add(aligned + CONTROL)) };
        (place, memory)
    }

    fn vector(bytes: &mut [u8]) -> iovec {
        iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }
    }

    #[test]
    fn bytes_pass_in_order_until_the_ring_is_full() {
        let (place, _memory) = ring();
        let (mut writer, mut reader) = (Writer::new(place, false), Reader::new(place, false));
        let mut sent = vec![7u8; CAPACITY + 1];
        sent[3] = 9;
        // SAFETY: the vectors name live vectors.
        unsafe {
            assert_eq!(writer.write(&[vector(&mut sent)]).unwrap(), (CAPACITY, false));
            assert_eq!(writer.write(&[vector(&mut sent)]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
            let mut got = [0u8; 5];
            assert_eq!(reader.read(&[vector(&mut got)]).unwrap(), (5, false));
            assert_eq!(got, [7, 7, 7, 9, 7]);
        }
    }

    #[test]
    fn a_sleeping_side_is_woken_once() {
        let (place, _memory) = ring();
        let (mut writer, mut reader) = (Writer::new(place, false), Reader::new(place, false));
        assert!(reader.sleep());
        // SAFETY: the vectors name live arrays.
        unsafe {
            assert_eq!(writer.write(&[vector(&mut [1])]).unwrap(), (1, true));
            assert_eq!(writer.write(&[vector(&mut [1])]).unwrap(), (1, false));
            assert!(!reader.stop_sleeping() && !reader.sleep());
            writer.write(&[vector(&mut vec![0; CAPACITY - 2])]).unwrap();
            assert!(writer.wait());
            assert_eq!(reader.read(&[vector(&mut [0; 9])]).unwrap(), (9, true));
        }
    }

    #[test]
    fn impossible_indices_are_refused() {
        let (place, _memory) = ring();
        let (mut writer, mut reader) = (Writer::new(place, false), Reader::new(place, false));
        place.control().written.bytes.store(CAPACITY as u64 + 1, Ordering::Relaxed);
        place.control().read.bytes.store(u64::MAX, Ordering::Relaxed);
        // SAFETY: the vectors name live memory.
        unsafe {
            let refused = reader.read(&[vector(&mut [0; 8])]).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::InvalidData);
            writer.write(&[vector(&mut vec![0; CAPACITY])]).unwrap();
            let refused = writer.write(&[vector(&mut [0; 8])]).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::InvalidData);
        }
    }
}
