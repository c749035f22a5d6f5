//! A queue pair's send queue.
//!
//! ```text
//!      head            next                end
//!  ──────┼───────────────┼──────────────────┼────▶ message sequence numbers
//!        │ in flight     │ to be transmitted │ to be posted
//! ```
//!
//! `next` belongs to the requester. A work request leaves at `head` once it and all before it are done.

use crate::errno::Errno;
use crate::work::{Payload, PlainSend, SendOp, SendWr, Sge, WcStatus};

/// A posted send work request.
#[derive(Debug)]
pub(crate) struct SendRequest {
    pub wr_id: u64,
    pub op: SendOp,
    pub signaled: bool,
    pub fence: bool,
    pub solicited: bool,
    /// The peer's shared receive queue, of an XRC initiator.
    pub srq_number: u32,
    /// Its bytes, where they are not inline.
    pub sges: Vec<Sge>,
    /// Its bytes, where they are.
    pub inline: Option<Vec<u8>>,
    /// Bytes of the message.
    pub length: u32,
    /// How it ended, once it has.
    pub outcome: Option<WcStatus>,
    /// A READ or atomic that was asked over the link that there is: its answer is taken when it comes.
    pub asked: bool,
    /// Bytes of a READ that have arrived.
    pub received: u32,
}

impl SendRequest {
    /// True for READs and atomics, which are done when their answer is there.
    pub fn is_query(&self) -> bool {
        matches!(self.op, SendOp::Read { .. } | SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. })
    }

    /// As it was posted; `inline`: the piece that is its inline bytes.
    pub fn work<'a>(&'a self, inline: Option<&'a [Sge; 1]>) -> SendWr<'a> {
        SendWr {
            wr_id: self.wr_id,
            op: self.op,
            signaled: self.signaled,
            fence: self.fence,
            solicited: self.solicited,
            srq_number: self.srq_number,
            payload: inline.map_or(Payload::Sges(&self.sges), |piece| Payload::Inline(piece)),
        }
    }
}

/// The send queue.
#[derive(Debug)]
pub(crate) struct SendQueue {
    /// The request numbered `msn` is at `(msn + skipped) & mask`; slots are made when first used.
    slots: Vec<SendRequest>,
    mask: u64,
    depth: u32,
    head: u64,
    end: u64,
    /// Requests that were done without a number.
    skipped: u64,
}

impl SendQueue {
    pub fn new(depth: u32) -> Self {
        let depth = depth.max(1);
        let mask = u64::from(depth).next_power_of_two() - 1;
        Self { slots: Vec::new(), mask, depth, head: 0, end: 0, skipped: 0 }
    }

    pub fn head(&self) -> u64 {
        self.head
    }

    pub fn end(&self) -> u64 {
        self.end
    }

    pub fn is_empty(&self) -> bool {
        self.head == self.end
    }

    /// True if the request at `head` is done without the peer.
    #[inline]
    pub fn is_local_next(&self) -> bool {
        self.get(self.head).is_some_and(|request| request.op.is_local())
    }

    /// The first request that is done without the peer, or the end of the queue.
    pub fn first_local(&self) -> u64 {
        let is_local = |msn: &u64| self.get(*msn).is_some_and(|request| request.op.is_local());
        (self.head..self.end).find(is_local).unwrap_or(self.end)
    }

    /// How many more requests it takes.
    pub fn room(&self) -> usize {
        self.depth as usize - (self.end - self.head) as usize
    }

    /// Drops everything; numbers go on from `msn`.
    pub fn restart(&mut self, msn: u64) {
        self.slots.clear();
        self.head = msn;
        self.end = msn;
    }

    #[inline]
    pub fn get(&self, msn: u64) -> Option<&SendRequest> {
        if msn < self.head || msn >= self.end {
            return None;
        }
        self.slots.get(self.slot(msn))
    }

    #[inline]
    pub fn get_mut(&mut self, msn: u64) -> Option<&mut SendRequest> {
        if msn < self.head || msn >= self.end {
            return None;
        }
        let slot = self.slot(msn);
        self.slots.get_mut(slot)
    }

    /// Appends `wr`. Its payload has `length` bytes.
    ///
    /// # Safety
    /// Inline pieces are readable.
    pub unsafe fn push(&mut self, wr: &SendWr<'_>, signaled: bool, length: u32) -> Result<(), Errno> {
        let request = self.claim()?;
        request.begin(wr.wr_id, signaled, length);
        (request.op, request.srq_number) = (wr.op, wr.srq_number);
        (request.fence, request.solicited) = (wr.fence, wr.solicited);
        // SAFETY: the caller's promise is passed on.
        unsafe { request.fill(wr.payload) };
        self.end += 1;
        Ok(())
    }

    /// The same for a SEND.
    ///
    /// # Safety
    /// Inline pieces are readable.
    #[inline]
    pub unsafe fn push_send(
        &mut self,
        send: &PlainSend<'_>,
        signaled: bool,
        length: u32,
    ) -> Result<(), Errno> {
        let request = self.claim()?;
        request.begin(send.wr_id, signaled, length);
        (request.op, request.srq_number) = (send.imm.map_or(SendOp::Send, SendOp::SendImm), 0);
        (request.fence, request.solicited) = (send.fence, send.solicited);
        // SAFETY: the caller's promise is passed on.
        unsafe { request.fill(send.payload) };
        self.end += 1;
        Ok(())
    }

    /// The slot for the next request.
    #[inline]
    fn claim(&mut self) -> Result<&mut SendRequest, Errno> {
        if self.end - self.head >= u64::from(self.depth) {
            return Err(Errno::NO_MEMORY);
        }
        // Numbers start anywhere, so the first slots used need not be the first ones of the vector.
        let slot = self.slot(self.end);
        while self.slots.len() <= slot {
            self.slots.push(SendRequest::empty());
        }
        Ok(&mut self.slots[slot])
    }

    /// The request at `head` leaves.
    pub fn retire(&mut self) {
        debug_assert!(self.head < self.end);
        self.head += 1;
    }

    /// The request at `head` is done, and the peer has not seen it: the next one takes its number.
    pub fn skip(&mut self) {
        debug_assert!(self.head < self.end);
        self.end -= 1;
        self.skipped += 1;
    }

    #[inline]
    fn slot(&self, msn: u64) -> usize {
        (msn.wrapping_add(self.skipped) & self.mask) as usize
    }
}

impl SendRequest {
    fn empty() -> Self {
        Self {
            wr_id: 0,
            op: SendOp::Send,
            signaled: false,
            fence: false,
            solicited: false,
            srq_number: 0,
            sges: Vec::new(),
            inline: None,
            length: 0,
            outcome: None,
            asked: false,
            received: 0,
        }
    }

    #[inline]
    fn begin(&mut self, wr_id: u64, signaled: bool, length: u32) {
        self.wr_id = wr_id;
        self.signaled = signaled;
        self.length = length;
        self.outcome = None;
        self.asked = false;
        self.received = 0;
    }

    /// # Safety
    /// Inline pieces are readable.
    #[inline]
    unsafe fn fill(&mut self, payload: Payload<'_>) {
        self.sges.clear();
        match payload {
            Payload::Sges([piece]) => {
                self.inline = None;
                self.sges.push(*piece);
            }
            Payload::Sges(pieces) => {
                self.inline = None;
                self.sges.extend_from_slice(pieces);
            }
            Payload::Inline(pieces) => {
                let bytes = self.inline.get_or_insert_default();
                bytes.clear();
                for piece in pieces {
                    // SAFETY: the caller vouches for inline pieces.
                    unsafe { crate::memory::load(piece.addr, piece.length as usize, bytes) };
                }
            }
        }
    }
}
