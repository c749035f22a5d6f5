//! Outgoing frames.
//!
//! Headers and short payloads are copied together, so that several messages leave in one write; long
//! payloads are sent from where they are. A caller that deregisters the memory of a partly written frame
//! calls [`Tx::copy_out`] first.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;

use arrayvec::ArrayVec;
use fabric::traffic::Traffic;
use libc::iovec;

use crate::core::Core;
use crate::handle::Qp;
use crate::memory;
use crate::stream::Stream;
use crate::wire::Header;

/// Payloads up to this many bytes are copied.
pub(crate) const COPIED: u32 = 1024;

/// The `msn` of answers.
pub(crate) const ANSWER: u64 = u64::MAX;

/// Vectors in one write.
const MAX_VECTORS: usize = 64;

/// Frames that are staged, and where they were cut.
#[derive(Default)]
pub(crate) struct Tx {
    bytes: Vec<u8>,
    parts: VecDeque<Part>,
    /// Bytes in `parts`.
    left: usize,
    /// Payload for the peer since it was last taken. Repeated messages count again: they use the network again.
    pub traffic: Traffic,
}

enum Part {
    /// In `bytes`.
    Staged(Range<usize>),
    /// In application memory, for message `msn` of `qp`, or for an answer if `msn` is [`ANSWER`].
    Application { address: u64, length: usize, qp: Qp, msn: u64 },
}

impl Tx {
    pub fn is_empty(&self) -> bool {
        self.left == 0
    }

    /// Bytes that are staged.
    pub fn left(&self) -> usize {
        self.left
    }

    #[inline]
    pub fn frame(&mut self, header: &Header) {
        if header.is_segment() {
            self.traffic.sent.count_part(header.length, header.is_last());
        }
        self.copy(&header.encode());
    }

    /// Stages a copy of `bytes`.
    #[inline]
    pub fn copy(&mut self, bytes: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        self.staged_from(start);
    }

    /// Stages `length` bytes at `address`, which the caller has found in a registered region.
    #[inline]
    pub fn application(&mut self, address: u64, length: u32, qp: Qp, msn: u64) {
        if length > COPIED {
            self.left += length as usize;
            self.parts.push_back(Part::Application { address, length: length as usize, qp, msn });
            return;
        }
        let start = self.bytes.len();
        // SAFETY: registered regions are mapped and readable.
        unsafe { memory::load(address, length as usize, &mut self.bytes) };
        self.staged_from(start);
    }

    fn staged_from(&mut self, start: usize) {
        let end = self.bytes.len();
        self.left += end - start;
        match self.parts.back_mut() {
            Some(Part::Staged(range)) if range.end == start => range.end = end,
            _ if end > start => self.parts.push_back(Part::Staged(start..end)),
            _ => {}
        }
    }

    /// Writes as much as `stream` takes. True if that was all.
    pub fn flush(&mut self, stream: &mut dyn Stream) -> io::Result<bool> {
        while self.left > 0 {
            // Filled where it stands: collected elsewhere, all of its room would be copied.
            let mut vectors = ArrayVec::<iovec, MAX_VECTORS>::new();
            vectors.extend(self.parts.iter().take(MAX_VECTORS).map(|part| self.vector(part)));
            // SAFETY: staged parts lie in `bytes`, the others in registered regions: a caller that ends a
            // registration or a request has called `copy_out`.
            let mut written = unsafe { stream.write(&vectors) };
            if written.as_ref().is_err_and(memory::is_fault) {
                // So that the first part is the one to fail_front_request.
                // SAFETY: as above.
                written = unsafe { stream.write(&vectors[..1]) };
            }
            match written {
                Ok(written) => self.advance(written),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// The memory of the next part is not mapped: the request that it belongs to fails. The link has to be lost, since the
    /// frame that was begun cannot be completed.
    pub fn fail_front_request(&self, core: &mut Core) {
        if let Some(Part::Application { qp, msn, .. }) = self.parts.front() {
            core.lose_source(*qp, *msn);
        }
    }

    fn vector(&self, part: &Part) -> iovec {
        match part {
            Part::Staged(range) => {
                let bytes = &self.bytes[range.clone()];
                iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }
            }
            Part::Application { address, length, .. } => memory::vector(*address, *length),
        }
    }

    fn advance(&mut self, written: usize) {
        let mut written = written.min(self.left);
        self.left -= written;
        while written > 0 {
            let Some(part) = self.parts.front_mut() else { break };
            let taken = match part {
                Part::Staged(range) => {
                    let taken = written.min(range.len());
                    range.start += taken;
                    taken
                }
                Part::Application { address, length, .. } => {
                    let taken = written.min(*length);
                    *address += taken as u64;
                    *length -= taken;
                    taken
                }
            };
            written -= taken;
            let done = match part {
                Part::Staged(range) => range.start >= range.end,
                Part::Application { length, .. } => *length == 0,
            };
            if done {
                self.parts.pop_front();
            }
        }
        if self.left == 0 {
            self.parts.clear();
            self.bytes.clear();
        }
    }

    /// Copies the application memory that is still to be sent for messages of `qp` before `msn`.
    pub fn copy_out(&mut self, qp: Qp, before: u64) {
        self.copy_where(|_, _, of, msn| of == qp && msn < before);
    }

    /// Copies the unsent ones of `length` bytes at `address`.
    pub fn copy_out_range(&mut self, address: u64, length: u64) {
        let end = address.saturating_add(length);
        self.copy_where(|start, size, _, _| start < end && address < start + size as u64);
    }

    fn copy_where(&mut self, wanted: impl Fn(u64, usize, Qp, u64) -> bool) {
        for part in &mut self.parts {
            let Part::Application { address, length, qp, msn } = *part else { continue };
            if wanted(address, length, qp, msn) {
                let start = self.bytes.len();
                // SAFETY: the memory is still registered and the request not yet over: the caller is
                // about to end one of the two.
                unsafe { memory::load(address, length, &mut self.bytes) };
                *part = Part::Staged(start..self.bytes.len());
            }
        }
    }

    /// Drops everything but the counts.
    pub fn reset(&mut self) {
        *self = Self { traffic: self.traffic, ..Self::default() };
    }
}
