//! Incoming frames.
//!
//! ```text
//! stream ──▶ buffer ──▶ header ──▶ payload: what the buffer holds of it is copied to its place,
//!                                  the rest is read from the stream straight into its place
//! ```
//!
//! Programs poll words of their memory. So a short payload, and the last word of a long one, is never written by a read from the stream,
//! which may end in the middle of the word or store it byte by byte.
//!
//! Every piece looks its destination up again, so that a queue pair or a region may be destroyed in the middle
//! of a frame.

use std::io;

use arrayvec::ArrayVec;
use libc::iovec;

use crate::core::Core;
use crate::handle::Qp;
use crate::link::outbox::Outbox;
use crate::memory;
use crate::scatter;
use crate::stream::Stream;
use crate::wire::{HEADER, Header, MAX_CONTROL, Opcode};

/// Holds the largest control frame.
const BUFFER: usize = 16 * 1024;
const _: () = assert!(BUFFER >= HEADER + MAX_CONTROL as usize);

/// Bytes behind a payload that are read into the buffer by the same call.
const READ_BEHIND: usize = 4 * 1024;

/// If less than this remains of a payload, it is read into the buffer: from there whole words are copied to the destination.
const DIRECT: u32 = 256;

/// Vectors in one read.
const MAX_VECTORS: usize = 64;

/// Where a payload goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// Into the memory that a request names.
    Request(Qp, u64),
    /// Into the memory that a READ of ours names.
    ReadData(Qp, u64),
    /// Nowhere.
    Discard,
}

/// A frame with a payload that is still arriving.
#[derive(Clone, Copy)]
pub(crate) struct Incoming {
    pub header: Header,
    pub target: Target,
    pub placed: u32,
}

impl Incoming {
    pub fn left(&self) -> u32 {
        self.header.length - self.placed
    }

    /// How much of the next `count` bytes are whole words.
    fn whole_words(&self, count: u32) -> u32 {
        let end = (self.placed + count) / memory::WORD as u32 * memory::WORD as u32;
        end.saturating_sub(self.placed)
    }
}

/// Bytes that have arrived.
#[derive(Default)]
pub(crate) struct Rx {
    /// Empty without a stream.
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    pub incoming: Option<Incoming>,
}

impl Rx {
    /// There is a stream to be read.
    pub fn begin(&mut self) {
        self.buffer = vec![0; BUFFER].into_boxed_slice();
    }

    /// Bytes that have arrived and are not consumed.
    #[inline]
    pub fn buffered(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// True if there is no frame, nor a part of one.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.start == self.end && self.incoming.is_none()
    }

    pub fn consume(&mut self, count: usize) {
        self.start += count;
        if self.start == self.end {
            self.start = 0;
            self.end = 0;
        }
    }

    /// Puts a frame into the buffer that was not read from the stream. Nothing else may be there.
    ///
    /// # Safety
    /// `header.length` bytes at `payload` can be read; at most `MAX_BRIEF`.
    pub unsafe fn adopt(&mut self, header: &Header, payload: *const u8) {
        let length = header.length as usize;
        self.buffer[..HEADER].copy_from_slice(&header.encode());
        let to = &mut self.buffer[HEADER..HEADER + length];
        // SAFETY: the caller's promise; the buffer is our own.
        unsafe { to.as_mut_ptr().copy_from_nonoverlapping(payload, length) };
        (self.start, self.end) = (0, HEADER + length);
    }

    /// Copies buffered payload of the incoming frame to its place.
    pub fn place_buffered(&mut self, core: &mut Core, out: &mut Outbox, incoming: &mut Incoming) {
        let left = incoming.left();
        let count = match u32::try_from(self.buffered().len()) {
            Ok(buffered) if buffered < left => incoming.whole_words(buffered),
            _ => left,
        };
        if count == 0 {
            return;
        }
        let mut bytes = &self.buffer[self.start..self.start + count as usize];
        let found = destination(core, incoming, count, &mut |address, length| {
            let (piece, rest) = bytes.split_at(length as usize);
            bytes = rest;
            // SAFETY: `destination` names memory in registered, writable regions.
            unsafe { memory::store(address, piece) };
        });
        if !found {
            give_up(core, out, incoming);
        }
        incoming.placed += count;
        self.consume(count as usize);
    }

    /// Reads from `stream`: long payload into its place, the rest into the buffer. Returns the bytes, and
    /// whether there may be more at once.
    pub fn read(
        &mut self,
        core: &mut Core,
        out: &mut Outbox,
        stream: &mut dyn Stream,
    ) -> io::Result<(usize, bool)> {
        match self.incoming {
            Some(incoming)
                if self.start == self.end
                    && incoming.target != Target::Discard
                    && incoming.left() >= DIRECT =>
            {
                self.read_payload(core, out, stream, incoming)
            }
            _ => self.read_frames(stream),
        }
    }

    fn read_frames(&mut self, stream: &mut dyn Stream) -> io::Result<(usize, bool)> {
        let room = self.room();
        let vector = vector_over(&mut self.buffer[self.end..]);
        // SAFETY: the vector names our own buffer.
        let read = unsafe { stream.read(&[vector])? }.min(room);
        self.end += read;
        Ok((read, read == room))
    }

    fn read_payload(
        &mut self,
        core: &mut Core,
        out: &mut Outbox,
        stream: &mut dyn Stream,
        mut incoming: Incoming,
    ) -> io::Result<(usize, bool)> {
        let mut vectors = ArrayVec::<iovec, MAX_VECTORS>::new();
        let mut expected = 0;
        let direct = incoming.whole_words(incoming.left() - memory::WORD as u32);
        let found = destination(core, &incoming, direct, &mut |address, length| {
            // A list that is too long for one call is continued by the next.
            if vectors.len() < MAX_VECTORS - 1 {
                vectors.push(memory::vector(address, length as usize));
                expected += length as usize;
            }
        });
        if !found {
            give_up(core, out, &mut incoming);
            self.incoming = Some(incoming);
            return self.read_frames(stream);
        }
        let behind = if expected == direct as usize { READ_BEHIND } else { 0 };
        vectors.push(vector_over(&mut self.buffer[..behind]));
        // SAFETY: the vectors name registered, writable memory and our own buffer.
        let read = match unsafe { stream.read(&vectors) } {
            Err(error) if memory::is_fault(&error) => {
                give_up(core, out, &mut incoming);
                self.incoming = Some(incoming);
                return self.read_frames(stream);
            }
            read => read?.min(expected + behind),
        };
        let placed = read.min(expected);
        incoming.placed += placed as u32;
        self.incoming = Some(incoming);
        (self.start, self.end) = (0, read - placed);
        Ok((read, read == expected + behind))
    }

    /// Makes room behind the buffered bytes, and returns how much there is.
    fn room(&mut self) -> usize {
        if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        self.buffer.len() - self.end
    }

    /// There is none any more.
    pub fn reset(&mut self) {
        *self = Self::default();
    }
}

fn vector_over(bytes: &mut [u8]) -> iovec {
    iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }
}

/// Names the places of the next `length` bytes of `incoming`. False if they have none (any more).
fn destination(core: &Core, incoming: &Incoming, length: u32, add: &mut dyn FnMut(u64, u32)) -> bool {
    match incoming.target {
        Target::Discard => true,
        Target::Request(qp, incarnation) => {
            core.is_incarnation(qp, incarnation)
                && core.request_destination(qp, &incoming.header, incoming.placed, length, add)
        }
        Target::ReadData(qp, incarnation) => {
            core.is_incarnation(qp, incarnation)
                && core.read_destination(qp, &incoming.header, incoming.placed, length, add)
        }
    }
}

/// The place of `incoming` is gone: drops the rest of it.
fn give_up(core: &mut Core, out: &mut Outbox, incoming: &mut Incoming) {
    match std::mem::replace(&mut incoming.target, Target::Discard) {
        Target::Request(qp, incarnation) => core.lose_destination(qp, incarnation, out, &incoming.header),
        Target::ReadData(qp, incarnation) if core.is_incarnation(qp, incarnation) => {
            core.lose_read_destination(qp, &incoming.header);
        }
        _ => {}
    }
}

/// True if the payload of such frames is handled as a whole.
pub(crate) fn is_handled_whole(opcode: Opcode) -> bool {
    use Opcode::{CompareSwap, Datagram, DatagramImm, Export, FetchAdd, Hello, Translate};
    matches!(opcode, Hello | Translate | Export | CompareSwap | FetchAdd | Datagram | DatagramImm)
}

impl Core {
    fn is_incarnation(&self, qp: Qp, incarnation: u64) -> bool {
        self.qps.get(qp.0).is_some_and(|qp| qp.incarnation == incarnation)
    }

    /// Where bytes of READ data belong; false if nowhere any more.
    fn read_destination(
        &self,
        handle: Qp,
        header: &Header,
        from: u32,
        length: u32,
        add: &mut dyn FnMut(u64, u32),
    ) -> bool {
        let Some(qp) = self.qps.get(handle.0).filter(|qp| qp.requests()) else { return false };
        let Some(request) = qp.sends.get(header.msn).filter(|request| request.asked) else { return false };
        scatter::pieces(&request.sges, header.offset + from, length).all(|sge| {
            let address = self.regions.local(qp.init.pd, &sge, crate::attr::Access::LOCAL_WRITE);
            address.map(|address| add(address, sge.length)).is_some()
        })
    }
}
