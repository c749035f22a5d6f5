//! The fast path for short messages on one host: they are built in the ring, and read from it in place.
//!
//! Most of the cost of a short SEND is in the stages between the program's memory and the ring: a frame is staged, arriving
//! bytes are buffered, and a receive is dequeued before the message is copied into it. A SEND with an empty queue before it and
//! a receive of one element ready at the other end skips all of these stages:
//!
//! ```text
//!  post_send ─▶ send queue (until acknowledged) ─▶ ring ─▶ posted receive, completion queue
//!          └─── header and bytes, stored once ───▶    └──── header copied out and checked, bytes stored once
//! ```
//!
//! All other messages are declined before any state has changed, and take the general path from the same place in the ring.

use std::array;

use fabric::ProcessId;

use crate::attr::{Access, QpKind, QpState};
use crate::core::{Core, received};
use crate::handle::Qp;
use crate::link::outbox::Outbox;
use crate::link::tx::{COPIED, Tx};
use crate::link::{Link, LinkLoss, State};
use crate::memory;
use crate::qp::QueuePair;
use crate::region::Regions;
use crate::requester::addressed;
use crate::stream::{Carrier, Front};
use crate::wire::{BRIEF, Brief, HEADER, Header, MAX_BRIEF, Opcode, flag};
use crate::work::{Payload, PlainSend, Sge, WcStatus};

const _: () = assert!(COPIED <= MAX_BRIEF, "short messages may have a brief header");

impl Link {
    /// Sends `send` of queue pair `handle` if it is short and nothing is before it. False if it has to be queued.
    ///
    /// # Safety
    /// Inline pieces are readable.
    #[inline]
    pub unsafe fn send_express(&mut self, core: &mut Core, handle: Qp, send: &PlainSend<'_>) -> bool {
        let is_free = self.state == State::Up && !self.blocked && self.tx.is_empty() && self.out.lets_pass();
        let ring = self.stream.as_mut().filter(|_| is_free).and_then(Carrier::rings);
        let Some(ring) = ring else { return false };
        let Some(qp) = core.qps.get_mut(handle.0) else { return false };
        let Some(Source { length, only }) = source(qp, send, &core.regions) else { return false };
        let msn = qp.sends.end();
        let is_brief = send.imm.is_none() && Header::fits_brief(msn, qp.responder.expected);
        let head = if is_brief { BRIEF } else { HEADER };
        let Ok(Some(to)) = ring.reserve(head + length as usize) else { return false };
        let signaled = send.signaled || qp.init.sq_sig_all;
        // SAFETY: the caller's promise is passed on.
        if unsafe { qp.sends.push_send(send, signaled, length) }.is_err() {
            return false;
        }
        let opcode = if send.imm.is_some() { Opcode::SendImm } else { Opcode::Send };
        let mut header = Header { msn, length, total: length, ..addressed(qp, &self.out.lookup, opcode) };
        header.imm = send.imm.unwrap_or_default();
        if send.solicited {
            header.flags |= flag::SOLICITED;
        }
        if qp.requester.asks_for_ack(signaled) {
            header.flags |= flag::ASKS_FOR_ACK;
        }
        if std::mem::take(&mut qp.responder.ack_due) {
            header.flags |= flag::ACKNOWLEDGES;
            header.va = qp.responder.expected;
            self.out.carried_ack(handle);
            core.acks_sent += 1;
        }
        qp.requester.finish_message();
        // SAFETY: so many bytes have just been reserved, and the ring is not an application's memory; `source` has
        // found the pieces.
        let tag = unsafe {
            match only {
                Some(from) => memory::fetch(to.add(head), from, length as usize),
                None => gather(qp, send.payload, &core.regions, to.add(head)),
            }
            if is_brief { store_brief(to, &header) } else { store_header(to, &header) }
        };
        ring.commit(head + length as usize, tag);
        self.tx.traffic.sent.count(length);
        true
    }

    /// Sends a due acknowledgement, if no other frame is pending and the ring has room.
    #[inline]
    pub fn acknowledge_express(&mut self, core: &mut Core, budget: &mut usize) {
        let Self { stream, out, tx, datagrams, state, blocked, .. } = self;
        let is_alone = *state == State::Up
            && !*blocked
            && tx.is_empty()
            && out.only_acknowledges()
            && !datagrams.has_next();
        let ring = stream.as_mut().filter(|_| is_alone).and_then(Carrier::rings);
        let Some(ring) = ring else { return };
        let before = *budget;
        while let Ok(Some(to)) = ring.reserve(BRIEF)
            && let Some(handle) = out.next_ack()
        {
            let Some(ack) = core.acknowledgement(handle, &out.lookup) else { continue };
            if !Header::fits_brief(ack.msn, 0) {
                out.control(ack);
                continue;
            }
            // SAFETY: so many bytes have just been reserved.
            let tag = unsafe { store_brief(to, &ack) };
            ring.commit(BRIEF, tag);
            *budget = budget.saturating_sub(BRIEF);
        }
        core.acks_sent += u64::from(*budget < before);
    }

    /// Takes in messages that can be taken straight from the ring.
    #[inline]
    pub fn receive_express(
        &mut self,
        core: &mut Core,
        budget: &mut usize,
        received: &mut bool,
    ) -> Result<Express, LinkLoss> {
        let Self { stream, rx, out, tx, peer, state, .. } = self;
        let stream = stream.as_mut().filter(|_| *state == State::Up && rx.is_empty());
        let Some(ring) = stream.and_then(Carrier::rings) else { return Ok(Express::LongWay) };
        let (mut taken, mut is_buffered) = (0, false);
        let outcome = loop {
            if taken >= *budget || out.is_overfull() {
                break Express::Done;
            }
            let Some(front) = ring.front()? else {
                break if taken > 0 || !ring.has_ended()? { Express::Done } else { Express::LongWay };
            };
            // SAFETY: it comes from the ring.
            let Taken { size, asks } = unsafe {
                if front.tag == 0 {
                    let Some(plain) = take_plain(core, out, tx, *peer, &front)? else {
                        break Express::LongWay;
                    };
                    plain
                } else {
                    let header = brief_header(&front)?;
                    let payload = front.bytes.add(BRIEF);
                    if !take_express(core, out, tx, *peer, &header, payload)? {
                        rx.adopt(&header, payload);
                        is_buffered = true;
                    }
                    Taken { size: front.length, asks: header.flags & flag::ASKS_FOR_ACK != 0 }
                }
            };
            ring.consume(size);
            taken += size;
            if is_buffered {
                break Express::Buffered;
            }
            if asks {
                // A thread that waits for it should not have to wait for frames that have arrived behind it.
                break Express::Done;
            }
        };
        if taken > 0 {
            ring.release();
            *received = true;
            *budget = budget.saturating_sub(taken);
        }
        Ok(outcome)
    }
}

/// The result of reading a ring in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Express {
    /// All frames that can be read in place have been taken.
    Done,
    /// The frame in front needs the general path, or the stream has ended.
    LongWay,
    /// A message was put into the buffer, to go the long way from there.
    Buffered,
}

/// A message that was taken in.
struct Taken {
    /// Its bytes in the ring.
    size: usize,
    /// It asks for an immediate acknowledgement.
    asks: bool,
}

/// The header of a chunk with a tag.
///
/// # Safety
/// The bytes of `front` can be read.
#[inline(always)]
unsafe fn brief_header(front: &Front) -> Result<Header, LinkLoss> {
    let length = front.length.checked_sub(BRIEF).ok_or(LinkLoss::Violation("a chunk without a header"))?;
    // SAFETY: so many bytes are there. They are copied once, and the copy is what counts.
    let words = array::from_fn(|at| unsafe { front.bytes.cast::<u64>().add(at).read_unaligned() });
    Ok(Header::of_brief(Brief { tag: front.tag, words }, length)?)
}

/// Takes in the message in front of a stream of bytes. `None` if it has to go the long way.
///
/// # Safety
/// The bytes of `front` can be read.
#[inline(never)]
unsafe fn take_plain(
    core: &mut Core,
    out: &mut Outbox,
    tx: &mut Tx,
    peer: ProcessId,
    front: &Front,
) -> Result<Option<Taken>, LinkLoss> {
    if front.length < HEADER {
        return Ok(None);
    }
    // SAFETY: so many bytes are there. They are copied once, and the copy is what counts.
    let words = array::from_fn(|at| unsafe { front.bytes.cast::<u64>().add(at).read_unaligned() });
    let Some(header) = Header::plain(words) else { return Ok(None) };
    let size = HEADER + header.length as usize;
    if size > front.length {
        return Ok(None);
    }
    // SAFETY: the header and as many bytes behind it as it says are there.
    let is_taken = unsafe { take_express(core, out, tx, peer, &header, front.bytes.add(HEADER))? };
    Ok(is_taken.then_some(Taken { size, asks: header.flags & flag::ASKS_FOR_ACK != 0 }))
}

/// Takes in a plain message or acknowledgement. False if it has to go the long way.
///
/// # Safety
/// `header.length` bytes at `payload` can be read.
#[inline(always)]
unsafe fn take_express(
    core: &mut Core,
    out: &mut Outbox,
    tx: &mut Tx,
    peer: ProcessId,
    header: &Header,
    payload: *const u8,
) -> Result<bool, LinkLoss> {
    let Some(handle) = core.qp_names.by_real(header.dst_qpn).map(Qp) else { return Ok(false) };
    if core.qps.get(handle.0).is_none_or(|qp| qp.peer != Some(peer)) {
        return Ok(false);
    }
    let acknowledged = match header.opcode {
        Opcode::Ack => Some(header.msn),
        _ => (header.flags & flag::ACKNOWLEDGES != 0).then_some(header.va),
    };
    if let Some(msn) = acknowledged {
        if !tx.is_empty() {
            tx.copy_out(handle, msn);
        }
        if !core.retire_plainly(handle, header, msn) {
            core.on_ack(handle, &Header { opcode: Opcode::Ack, msn, ..*header })?;
            if core.has_more_requests(handle)
                && let Some(qp) = core.qps.get_mut(handle.0)
            {
                out.schedule(qp, handle);
            }
        }
    }
    // SAFETY: the caller's promise.
    Ok(header.opcode == Opcode::Ack || unsafe { core.take_short(handle, out, header, payload) })
}

/// Stores `header` at `to`, word by word: collected first, it would be loaded in wider pieces than it was stored in.
///
/// Returns the tag of its chunk.
///
/// # Safety
/// `HEADER` bytes have been reserved there.
#[inline(always)]
unsafe fn store_header(to: *mut u8, header: &Header) -> u64 {
    for (at, word) in header.words().into_iter().enumerate() {
        // SAFETY: the caller's promise; a chunk's bytes are aligned for words.
        unsafe { to.cast::<u64>().add(at).write(word) };
    }
    0
}

/// The same in its brief form.
///
/// # Safety
/// `BRIEF` bytes have been reserved there.
#[inline(always)]
unsafe fn store_brief(to: *mut u8, header: &Header) -> u64 {
    let Brief { tag, words: [first, second] } = header.brief();
    // SAFETY: the caller's promise; a chunk's bytes are aligned for words.
    unsafe {
        to.cast::<u64>().write(first);
        to.cast::<u64>().add(1).write(second);
    }
    tag
}

/// True for queue pairs whose SENDs need only a receive.
#[inline]
fn is_plain(qp: &QueuePair) -> bool {
    matches!(qp.init.kind, QpKind::Rc | QpKind::Uc) && !qp.awaits_barrier
}

/// Where a SEND's bytes are.
struct Source {
    length: u32,
    /// Their place, if it is one.
    only: Option<u64>,
}

/// The source of `send`, if it may be sent now, is short, and its memory is mapped.
#[inline]
fn source(qp: &QueuePair, send: &PlainSend<'_>, regions: &Regions) -> Option<Source> {
    let is_its_turn = is_plain(qp) && qp.state() == QpState::Rts && qp.requester.is_idle(qp.sends.end());
    if !is_its_turn || (send.fence && qp.requester.is_fenced()) {
        return None;
    }
    if let Payload::Sges([piece]) = send.payload {
        let is_short = piece.length <= COPIED;
        let only = regions.local(qp.init.pd, piece, Access::empty()).filter(|_| is_short)?;
        return Some(Source { length: piece.length, only: Some(only) });
    }
    let length = send.payload.length(&qp.init.caps).filter(|length| *length <= COPIED.into())? as u32;
    let is_there = |piece: &Sge| regions.local(qp.init.pd, piece, Access::empty()).is_some();
    match send.payload {
        Payload::Sges(pieces) => pieces.iter().all(is_there).then_some(Source { length, only: None }),
        Payload::Inline([piece]) => Some(Source { length, only: Some(piece.addr) }),
        Payload::Inline(_) => Some(Source { length, only: None }),
    }
}

/// Copies several pieces to `to`.
///
/// # Safety
/// [`source`] has found them, inline ones are readable, and `to` has room in memory that is not an
/// application's.
unsafe fn gather(qp: &QueuePair, payload: Payload<'_>, regions: &Regions, mut to: *mut u8) {
    let is_inline = matches!(payload, Payload::Inline(_));
    let (Payload::Sges(pieces) | Payload::Inline(pieces)) = payload;
    for piece in pieces {
        let registered = || regions.local(qp.init.pd, piece, Access::empty());
        let Some(from) = (if is_inline { Some(piece.addr) } else { registered() }) else { continue };
        // SAFETY: the caller's promise.
        unsafe {
            memory::fetch(to, from, piece.length as usize);
            to = to.add(piece.length as usize);
        }
    }
}

impl Core {
    /// Executes a SEND with its bytes at `payload`, if a receive of one element waits for it. False if it has to be
    /// executed the long way; nothing has changed then.
    ///
    /// # Safety
    /// `header.length` bytes at `payload` can be read.
    #[inline(always)]
    unsafe fn take_short(
        &mut self,
        handle: Qp,
        out: &mut Outbox,
        header: &Header,
        payload: *const u8,
    ) -> bool {
        let Some(qp) = self.qps.get_mut(handle.0) else { return false };
        let is_expected = qp.attr.remote_qpn == header.src_qpn && qp.responder.awaits(header.msn);
        // In RTR the first message is an event.
        let raises = qp.state() == QpState::Rtr && !qp.established;
        let executes = qp.executes() && !raises && !out.has_news();
        let is_whole = is_plain(qp) && header.length == header.total;
        if !(is_expected && executes && is_whole && qp.init.srq.is_none()) {
            return false;
        }
        let Some((wr_id, sge)) = qp.receives.front().filter(|(_, sge)| sge.length >= header.length) else {
            return false;
        };
        let piece = Sge { length: header.length, ..sge };
        let Some(to) = self.regions.local(qp.init.pd, &piece, Access::LOCAL_WRITE) else { return false };
        // SAFETY: the region was just found to hold so many bytes, writable; the caller vouches for the source.
        unsafe { memory::copy(to, payload.expose_provenance() as u64, header.length as usize) };
        qp.receives.drop_front();
        qp.responder.expected += 1;
        out.acknowledge(qp, handle, header.total);
        if header.flags & flag::ASKS_FOR_ACK != 0 {
            out.hasten_acks();
        }
        let mut completion = received(qp, wr_id, WcStatus::Success);
        completion.byte_len = header.total;
        completion.solicited = header.flags & flag::SOLICITED != 0;
        completion.imm = (header.opcode == Opcode::SendImm).then_some(header.imm);
        let cq = qp.init.recv_cq;
        self.complete(cq, completion);
        true
    }
}
