//! A ring of bytes in shared memory: one writer and one reader. Neither trusts the other.
//!
//! ```text
//!  data:  │ 0 ...... │ 72 xxxxxxxxxxxxxxxxxxxxx │ 5 xxxxx ... │ 0 ......... │   mapped twice, so that no access wraps
//!                    ▲ read                                   ▲ written       both count bytes for ever
//!  control: │ closed │ read │ reader_sleeps │ writer_waits │                  cache lines of their own
//! ```
//!
//! A write adds a *chunk*: a word with its length, then its bytes. A long write adds several, so that the reader copies out
//! while the writer still copies in. Chunks start at half cache lines, so that a short message
//! is one half, which the reader polls: no other line travels between the two processors. A word of zero stands behind the last
//! chunk, so that a reader never takes stale bytes for a chunk. The reader does not write it: it clears each length word that it has taken.
//! The writer clears words in the middle of an old chunk before it stores a chunk that ends there.
//! A writer that cleared all of them would have to fetch the polled line twice for each message.
//!
//! The rest of the length word is a *tag*. A chunk with a tag is not part of the byte stream: it is read in
//! place, or not at all.
//!
//! Each side keeps its own position privately; it loads each value from the shared memory once, and checks it. Two pairs of
//! accesses order everything:
//!
//! * a length is released after the bytes are stored and acquired before they are loaded; `read` is
//!   released after bytes are loaded and acquired before they are overwritten.
//! * a side that goes to sleep stores its flag, then looks for work; the other side publishes,
//!   then checks the flag; both have a fence in between, so at least one sees the other. The sleeper's fence is
//!   `membarrier` ([`crate::asymmetric`]), so that the side that moves bytes needs only a compiler fence.

use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use libc::iovec;

use crate::asymmetric::{Among, light_fence};

/// Bytes that a ring holds.
pub(super) const CAPACITY: usize = 512 * 1024;

/// Chunks start at multiples of this many bytes.
const STEP: usize = 32;

/// A cache line: lines are given back to the writer as a whole.
const LINE: usize = 2 * STEP;

/// Steps of a ring.
const STEPS: usize = CAPACITY / STEP;

/// Bytes of a chunk's word.
const WORD: usize = size_of::<AtomicU64>();

/// Bits of a word that are the length. The others are the tag.
const LENGTH_BITS: u32 = 20;
const LENGTH: u64 = (1 << LENGTH_BITS) - 1;

/// Bytes of a chunk that nothing else is in the ring with: the next chunk's word must have its place.
const LONGEST: usize = CAPACITY - STEP - WORD;
const _: () = assert!(LONGEST as u64 <= LENGTH);

/// The longest chunk of a write: as long as the reader needs to notice the one before.
const PIECE: usize = 16 * 1024;

/// A writer that has found no room waits for so much, lest it is woken for every scrap.
const LEAST: usize = CAPACITY / 8;
const _: () = assert!(PIECE <= LEAST);

/// Bytes of shared memory for a ring's control.
pub(super) const CONTROL: usize = 1024;

#[repr(C, align(128))]
struct Read {
    bytes: AtomicU64,
}

#[repr(C, align(128))]
struct Flag(AtomicU32);

/// The part of a ring that both sides map. The memory may hold anything at any time.
#[repr(C)]
pub(super) struct Control {
    closed: Flag,
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

    /// Where byte `position` is; so many bytes may follow as the ring holds.
    fn at(&self, position: u64) -> *mut u8 {
        // SAFETY: the offset is below the capacity, and `new` demands twice as much.
        unsafe { self.data.add((position % CAPACITY as u64) as usize) }
    }

    /// The word of a chunk at `position`, a multiple of [`STEP`].
    fn word(&self, position: u64) -> &AtomicU64 {
        // SAFETY: a step is mapped there, aligned for it, and every value is valid.
        unsafe { &*self.at(position).cast() }
    }
}

/// The first place for a chunk from `position` on.
fn next_step(position: u64) -> u64 {
    position.next_multiple_of(STEP as u64)
}

/// Which step of the ring is at `position`.
fn step(position: u64) -> usize {
    (position % CAPACITY as u64) as usize / STEP
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

/// The rest of a list of vectors.
struct Source<'a> {
    vectors: &'a [iovec],
    /// Bytes of the first one that are gone.
    taken: usize,
}

impl Source<'_> {
    /// Copies the next `count` bytes, which are there, to `to`.
    ///
    /// # Safety
    /// `to` has room for them, and the vectors name readable memory.
    #[inline]
    unsafe fn copy_to(&mut self, mut to: *mut u8, mut count: usize) {
        while let [first, rest @ ..] = self.vectors
            && count > 0
        {
            let size = (first.iov_len - self.taken).min(count);
            // SAFETY: the caller's promise.
            unsafe {
                to.copy_from_nonoverlapping(first.iov_base.cast::<u8>().add(self.taken), size);
                to = to.add(size);
            }
            count -= size;
            self.taken += size;
            if self.taken == first.iov_len {
                (self.vectors, self.taken) = (rest, 0);
            }
        }
    }
}

/// The writing side.
pub(super) struct Writer {
    place: Place,
    registered: bool,
    written: u64,
    /// The reader's position when we last looked.
    read: u64,
    /// Steps that begin with uncleared bytes of a chunk.
    dirty: Box<[bool]>,
}

impl Writer {
    /// `registered`: this process is reached by [`Among::Processes`].
    pub fn new(place: Place, registered: bool) -> Self {
        Self { place, registered, written: 0, read: 0, dirty: vec![false; STEPS].into_boxed_slice() }
    }

    /// Bytes that a chunk can have now.
    fn room(&self) -> usize {
        let used = (self.written - self.read) as usize;
        LONGEST.saturating_sub(used)
    }

    fn look(&mut self) -> io::Result<()> {
        let read = self.place.control().read.bytes.load(Ordering::Acquire);
        if read < self.read || read > self.written || !read.is_multiple_of(LINE as u64) {
            return Err(cheated());
        }
        self.read = read;
        Ok(())
    }

    /// Copies a prefix of `from` into the ring. Returns the bytes, and whether the reader sleeps.
    ///
    /// # Safety
    /// The vectors name readable memory.
    #[inline]
    pub unsafe fn write(&mut self, from: &[iovec]) -> io::Result<(usize, bool)> {
        let wanted: usize = from.iter().map(|vector| vector.iov_len).sum();
        let (mut source, mut written, mut wakes) = (Source { vectors: from, taken: 0 }, 0, false);
        while written < wanted {
            let count = (wanted - written).min(PIECE);
            let Some(to) = self.reserve(count)? else { break };
            // SAFETY: so many bytes have room there, and are left; the caller vouches for the source.
            unsafe { source.copy_to(to, count) };
            wakes |= self.commit(count, 0);
            written += count;
        }
        if written == 0 && wanted > 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok((written, wakes))
    }

    /// Where `count` bytes of a chunk have room now, with no word behind them. [`Self::commit`] shows them.
    #[inline]
    pub fn reserve(&mut self, count: usize) -> io::Result<Option<*mut u8>> {
        if self.room() < count {
            self.look()?;
        }
        if self.room() < count {
            return Ok(None);
        }
        let after = self.after(count);
        if std::mem::take(&mut self.dirty[step(after)]) {
            self.place.word(after).store(0, Ordering::Relaxed);
        }
        Ok(Some(self.place.at(self.written + WORD as u64)))
    }

    /// Where the chunk after one of `count` bytes will be.
    fn after(&self, count: usize) -> u64 {
        next_step(self.written + (WORD + count) as u64)
    }

    /// Publishes the chunk of `count` bytes that has been stored where [`Self::reserve`] said. `tag`: 0 if it belongs to the stream of
    /// bytes. True if the reader sleeps.
    #[inline]
    pub fn commit(&mut self, count: usize, tag: u64) -> bool {
        let word = count as u64 | tag << LENGTH_BITS;
        self.place.word(self.written).store(word, Ordering::Release);
        let (first, after) = (self.written, self.after(count));
        for middle in (first + STEP as u64..after).step_by(STEP) {
            self.dirty[step(middle)] = true;
        }
        self.written = after;
        fence_fast_side(self.registered);
        self.wakes_reader()
    }

    /// True if the reader sleeps, and it is for the caller to wake it.
    #[inline]
    fn wakes_reader(&self) -> bool {
        let sleeps = &self.place.control().reader_sleeps.0;
        sleeps.load(Ordering::Relaxed) != 0 && sleeps.swap(0, Ordering::Relaxed) != 0
    }

    /// Announces that the writer waits for room. False if there is some.
    pub fn wait(&mut self) -> bool {
        self.place.control().writer_waits.0.store(1, Ordering::Relaxed);
        Among::Processes.fence();
        self.look().is_ok() && self.room() < LEAST
    }

    /// Takes it back. False if the reader has done so before, and has sent a wake-up.
    pub fn stop_waiting(&self) -> bool {
        self.place.control().writer_waits.0.swap(0, Ordering::Relaxed) != 0
    }

    /// Nothing more will be written.
    pub fn close(&self) {
        self.place.control().closed.0.store(1, Ordering::Release);
    }
}

/// The reading side.
pub(super) struct Reader {
    place: Place,
    registered: bool,
    /// The next byte, or the next chunk's word.
    read: u64,
    /// Bytes left of the chunk that has been begun.
    left: usize,
    /// That chunk's tag.
    tag: u64,
    /// The word before this half of a line is still to be cleared.
    has_left_a_word: bool,
}

/// The chunk in front of a reader.
pub(crate) struct Front {
    /// Its bytes, which may change at any time.
    pub bytes: *const u8,
    /// How many they are.
    pub length: usize,
    /// 0 if they belong to the stream of bytes.
    pub tag: u64,
}

impl Reader {
    /// `registered`: as for the writer.
    pub fn new(place: Place, registered: bool) -> Self {
        Self { place, registered, read: 0, left: 0, tag: 0, has_left_a_word: false }
    }

    #[inline]
    pub fn is_quiet(&self) -> bool {
        self.left == 0
            && self.place.word(self.read).load(Ordering::Relaxed) == 0
            && self.place.control().closed.0.load(Ordering::Relaxed) == 0
    }

    /// Copies available bytes into `into`, up to a chunk with a tag; one in front is an error. Returns the bytes, and
    /// whether the writer waits for room.
    ///
    /// # Safety
    /// The vectors name writable memory.
    #[inline]
    pub unsafe fn read(&mut self, into: &[iovec]) -> io::Result<(usize, bool)> {
        let closed = self.place.control().closed.0.load(Ordering::Acquire) != 0;
        let (mut count, mut waits) = (0, false);
        for vector in into {
            // SAFETY: the caller vouches for the destination.
            let size = unsafe { self.fill(vector, &mut waits)? };
            count += size;
            if size < vector.iov_len {
                break;
            }
        }
        if count == 0 && self.left > 0 && self.tag != 0 {
            return Err(cheated());
        }
        if count == 0 {
            return if closed { Ok((0, false)) } else { Err(io::ErrorKind::WouldBlock.into()) };
        }
        Ok((count, waits | self.release()))
    }

    /// The chunk in front, or the rest of it.
    #[inline]
    pub fn front(&mut self) -> io::Result<Option<Front>> {
        let bytes = |reader: &Self| reader.place.at(reader.read).cast_const();
        Ok(self.begin_chunk()?.then(|| Front { bytes: bytes(self), length: self.left, tag: self.tag }))
    }

    /// True if the writer has closed the ring, and nothing is left in it.
    #[inline]
    pub fn has_ended(&mut self) -> io::Result<bool> {
        let closed = self.place.control().closed.0.load(Ordering::Acquire) != 0;
        Ok(closed && !self.begin_chunk()?)
    }

    /// Done with `count` bytes of the front. [`Self::release`] gives them to the writer.
    #[inline]
    pub fn consume(&mut self, count: usize) {
        let count = count.min(self.left);
        self.read += count as u64;
        self.left -= count;
        if self.left == 0 {
            self.read = next_step(self.read);
        }
    }

    /// The writer may have all lines that are done with. True if it waits for room.
    #[inline]
    pub fn release(&self) -> bool {
        let done = self.read / LINE as u64 * LINE as u64;
        self.place.control().read.bytes.store(done, Ordering::Release);
        fence_fast_side(self.registered);
        let waits = &self.place.control().writer_waits.0;
        waits.load(Ordering::Relaxed) != 0 && waits.swap(0, Ordering::Relaxed) != 0
    }

    /// Copies available bytes into `vector`. Returns the bytes; `waits` is set if the writer waits for room.
    ///
    /// # Safety
    /// The vector names writable memory.
    unsafe fn fill(&mut self, vector: &iovec, waits: &mut bool) -> io::Result<usize> {
        let mut filled = 0;
        while filled < vector.iov_len && self.begin_chunk()? && self.tag == 0 {
            let size = self.left.min(vector.iov_len - filled);
            let to = vector.iov_base.cast::<u8>();
            // SAFETY: `left` bytes are in the ring behind `read`; the caller vouches for the destination.
            unsafe { self.place.at(self.read).copy_to_nonoverlapping(to.add(filled), size) };
            filled += size;
            self.consume(size);
            if size == PIECE {
                // The writer is not through with a long write.
                *waits |= self.release();
            }
        }
        Ok(filled)
    }

    /// True if bytes of a chunk are there.
    #[inline]
    fn begin_chunk(&mut self) -> io::Result<bool> {
        if self.left > 0 {
            return Ok(true);
        }
        let shown = self.place.word(self.read);
        let word = shown.load(Ordering::Acquire);
        if word == 0 {
            return Ok(false);
        }
        let length = word & LENGTH;
        if length == 0 || length > LONGEST as u64 {
            return Err(cheated());
        }
        self.clear(length);
        (self.left, self.tag) = (length as usize, word >> LENGTH_BITS);
        self.read += WORD as u64;
        Ok(true)
    }

    /// Clears the word of the chunk of `length` bytes in front, or leaves it to the chunk behind it in the same line: meanwhile
    /// the writer may be storing that one.
    #[inline]
    fn clear(&mut self, length: u64) {
        let is_first = self.read.is_multiple_of(LINE as u64);
        if is_first && WORD as u64 + length <= STEP as u64 {
            self.has_left_a_word = true;
            return;
        }
        self.place.word(self.read).store(0, Ordering::Relaxed);
        if std::mem::take(&mut self.has_left_a_word) {
            self.place.word(self.read - STEP as u64).store(0, Ordering::Relaxed);
        }
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
        let mut sent = vec![7u8; CAPACITY];
        sent[3] = 9;
        // SAFETY: the vectors name live vectors.
        unsafe {
            let fits = LONGEST / (PIECE + STEP) * PIECE;
            assert_eq!(writer.write(&[vector(&mut sent)]).unwrap(), (fits, false));
            assert_eq!(writer.write(&[vector(&mut sent)]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
            let mut got = [0u8; 5];
            assert_eq!(reader.read(&[vector(&mut got)]).unwrap(), (5, false));
            assert_eq!(got, [7, 7, 7, 9, 7]);
        }
    }

    #[test]
    fn chunks_of_all_sizes_pass_where_memory_was_full_of_ones() {
        let (place, _memory) = ring();
        let (mut writer, mut reader) = (Writer::new(place, false), Reader::new(place, false));
        let mut sent = [0xff; 8 * STEP];
        for round in 0..CAPACITY / (16 * STEP) {
            let size = 1 + round % sent.len();
            let (first, rest) = sent[..size].split_at_mut(size / 2);
            let mut got = [0; 8 * STEP];
            // SAFETY: the vectors name live arrays.
            unsafe {
                assert!(reader.is_quiet());
                assert_eq!(reader.read(&[vector(&mut got)]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
                assert_eq!(writer.write(&[vector(first), vector(rest)]).unwrap(), (size, false));
                let (first, rest) = got.split_at_mut(size / 3);
                assert_eq!(reader.read(&[vector(first), vector(rest)]).unwrap(), (size, false));
            }
            assert_eq!(got[..size], sent[..size]);
            assert!(writer.written < CAPACITY as u64, "this ring has no mirror");
        }
    }

    #[test]
    fn a_write_is_cut_where_a_piece_has_room_and_otherwise_waits() {
        let (place, _memory) = ring();
        let (mut writer, mut reader) = (Writer::new(place, false), Reader::new(place, false));
        let mut bytes = vec![1; CAPACITY];
        // SAFETY: the vectors name live arrays.
        unsafe {
            writer.write(&[vector(&mut bytes)]).unwrap();
            assert!(writer.write(&[vector(&mut bytes)]).is_err(), "few bytes have room");
            assert_eq!(writer.write(&[vector(&mut bytes[..9])]).unwrap().0, 9);
            assert!(writer.wait());
            assert_eq!(reader.read(&[vector(&mut bytes[..LEAST])]).unwrap(), (LEAST, true));
            assert!(!writer.wait());
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
            writer.write(&[vector(&mut vec![0; LONGEST - 2 * STEP])]).unwrap();
            assert!(writer.wait());
            assert_eq!(reader.read(&[vector(&mut [0; 9])]).unwrap(), (9, true));
        }
    }

    #[test]
    fn a_tagged_chunk_is_not_part_of_the_stream() {
        let (place, _memory) = ring();
        let (mut writer, mut reader) = (Writer::new(place, false), Reader::new(place, false));
        // SAFETY: the vectors name live arrays, and the reserved room is two bytes.
        unsafe {
            writer.write(&[vector(&mut [1, 2])]).unwrap();
            let to = writer.reserve(2).unwrap().unwrap();
            to.cast::<[u8; 2]>().write([3, 4]);
            writer.commit(2, 77);
            writer.write(&[vector(&mut [5])]).unwrap();
            let mut got = [0; 8];
            assert_eq!(reader.read(&[vector(&mut got)]).unwrap(), (2, false));
            let refused = reader.read(&[vector(&mut got)]).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::InvalidData);
            let front = reader.front().unwrap().unwrap();
            assert_eq!((front.bytes.cast::<[u8; 2]>().read(), front.length, front.tag), ([3, 4], 2, 77));
            reader.consume(2);
            assert_eq!(reader.read(&[vector(&mut got)]).unwrap(), (1, false));
            assert_eq!(got[..2], [5, 2]);
        }
    }

    #[test]
    fn impossible_ring_states_are_refused() {
        let (place, _memory) = ring();
        let (mut writer, mut reader) = (Writer::new(place, false), Reader::new(place, false));
        // SAFETY: the vectors name live memory.
        unsafe {
            for word in [LONGEST as u64 + 1, u64::MAX, 1 << LENGTH_BITS] {
                place.word(0).store(word, Ordering::Relaxed);
                let refused = reader.read(&[vector(&mut [0; 8])]).unwrap_err();
                assert_eq!(refused.kind(), io::ErrorKind::InvalidData);
            }
            for read in [1, LINE as u64, u64::MAX] {
                place.control().read.bytes.store(read, Ordering::Relaxed);
                assert_eq!(writer.look().unwrap_err().kind(), io::ErrorKind::InvalidData);
            }
        }
    }
}
