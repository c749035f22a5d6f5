//! Control frames that a link has to send next, and the translations of the peer's handles.

use std::collections::VecDeque;

use verbs::{HandleKind, LookupList, Translation};

use crate::handle::Qp;
use crate::qp::QueuePair;
use crate::wire::{Header, Opcode, Syndrome};

/// Control frames that may wait; a link with more is not read from until they have left, so that
/// a peer that only talks cannot fill our memory. More than a full ring of requests gets as answers: two
/// sides that each refuse all requests of the other must not wait for each other.
const MAX_CONTROLS: usize = 16 * 1024;

/// Acknowledgements wait for company until this many messages or bytes are unacknowledged.
const MANY_MESSAGES: usize = 16;
const MANY_BYTES: u64 = 64 * 1024;

/// Frames to be made.
#[derive(Default)]
pub(crate) struct Outbox {
    /// The peer's handles.
    pub lookup: LookupList,
    controls: VecDeque<Header>,
    /// Queue pairs that owe an acknowledgement.
    acks: Vec<Qp>,
    /// So does the link, for datagrams.
    datagram_ack: bool,
    unacknowledged_messages: usize,
    unacknowledged_bytes: u64,
    /// Queue pairs that may have something to transmit, in turn.
    ready: VecDeque<Qp>,
    /// Handles that the peer may still have wrong.
    unconfirmed: VecDeque<Unconfirmed>,
    generation: u64,
}

/// Handles sent to the peer and not yet acknowledged.
struct Unconfirmed {
    generation: u64,
    kind: HandleKind,
    handles: [u32; 2],
}

impl Outbox {
    pub fn control(&mut self, header: Header) {
        self.controls.push_back(header);
    }

    pub fn next_control(&mut self) -> Option<Header> {
        self.controls.pop_front()
    }

    pub fn is_overfull(&self) -> bool {
        self.controls.len() >= MAX_CONTROLS
    }

    /// Answers a request to a missing queue pair.
    pub fn refuse_unknown(&mut self, request: &Header, syndrome: Syndrome) {
        let dst_qpn = self.lookup.real(HandleKind::QueuePair, request.src_qpn);
        let nak = Header::new(Opcode::Nak);
        self.control(Header { dst_qpn, msn: request.msn, syndrome: Some(syndrome), ..nak });
    }

    /// Answers a BARRIER.
    pub fn pass_barrier(&mut self, barrier: &Header) {
        let dst_qpn = self.lookup.real(HandleKind::QueuePair, barrier.src_qpn);
        self.control(Header { dst_qpn, imm: barrier.imm, ..Header::new(Opcode::BarrierAck) });
    }

    /// `qp`, called `handle`, has something to transmit.
    #[inline]
    pub fn schedule(&mut self, qp: &mut QueuePair, handle: Qp) {
        if !std::mem::replace(&mut qp.scheduled, true) {
            self.ready.push_back(handle);
        }
    }

    /// `handle` is no longer connected to the peer.
    pub fn unschedule(&mut self, handle: Qp) {
        self.ready.retain(|ready| *ready != handle);
    }

    pub fn next_ready(&mut self) -> Option<Qp> {
        self.ready.pop_front()
    }

    /// `handle` has had its turn, and may have more.
    pub fn again(&mut self, handle: Qp) {
        self.ready.push_back(handle);
    }

    /// `qp` has executed a message of `bytes`.
    #[inline]
    pub fn acknowledge(&mut self, qp: &mut QueuePair, handle: Qp, bytes: u32) {
        self.unacknowledged_messages += 1;
        self.unacknowledged_bytes += u64::from(bytes);
        if !std::mem::replace(&mut qp.responder.ack_due, true) {
            self.acks.push(handle);
        }
    }

    /// Sends due acknowledgements without delay.
    #[inline]
    pub fn hasten_acks(&mut self) {
        self.unacknowledged_messages = self.unacknowledged_messages.max(MANY_MESSAGES);
    }

    /// A datagram of `bytes` was taken.
    pub fn acknowledge_datagram(&mut self, bytes: u32) {
        self.unacknowledged_messages += 1;
        self.unacknowledged_bytes += u64::from(bytes);
        self.datagram_ack = true;
    }

    /// A frame with a datagram acknowledgement leaves. Returns whether one was due.
    pub fn take_datagram_ack(&mut self) -> bool {
        std::mem::take(&mut self.datagram_ack)
    }

    /// Something of `handle` has carried the acknowledgement that it owed.
    #[inline]
    pub fn carried_ack(&mut self, handle: Qp) {
        if let Some(at) = self.acks.iter().rposition(|owing| *owing == handle) {
            self.acks.swap_remove(at);
        }
        if self.acks.is_empty() && !self.datagram_ack {
            self.unacknowledged_messages = 0;
            self.unacknowledged_bytes = 0;
        }
    }

    /// True if nothing but acknowledgements waits.
    #[inline]
    pub fn lets_pass(&self) -> bool {
        self.ready.is_empty() && self.controls.is_empty()
    }

    /// True if the peer may mean something else by some handle than we do.
    #[inline]
    pub fn has_news(&self) -> bool {
        !self.unconfirmed.is_empty()
    }

    /// True if there is something that should not wait for company.
    #[inline]
    pub fn is_urgent(&self) -> bool {
        !self.ready.is_empty()
            || !self.controls.is_empty()
            || self.unacknowledged_messages >= MANY_MESSAGES
            || self.unacknowledged_bytes >= MANY_BYTES
    }

    /// True if no frame is pending.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.ready.is_empty() && self.controls.is_empty() && self.acks.is_empty() && !self.datagram_ack
    }

    /// True if only acknowledgements of requests are pending.
    #[inline]
    pub fn only_acknowledges(&self) -> bool {
        self.lets_pass() && !self.datagram_ack
    }

    /// A queue pair that owes an acknowledgement, and is about to give it.
    #[inline]
    pub fn next_ack(&mut self) -> Option<Qp> {
        let next = self.acks.pop();
        if self.acks.is_empty() {
            self.unacknowledged_messages = 0;
            self.unacknowledged_bytes = 0;
        }
        next
    }

    /// Empties the list of acknowledgements due into `acks`.
    pub fn take_acks(&mut self, acks: &mut Vec<Qp>) {
        acks.append(&mut self.acks);
        self.unacknowledged_messages = 0;
        self.unacknowledged_bytes = 0;
    }

    /// Sends `line`, which changes the meaning of `previous`, to the peer. Returns the number of this update.
    pub fn announce(&mut self, line: Translation, previous: u32) -> u64 {
        self.generation += 1;
        let handles = [line.virtual_handle, previous];
        self.unconfirmed.push_back(Unconfirmed { generation: self.generation, kind: line.kind, handles });
        self.generation
    }

    /// The peer has acknowledged the updates up to `generation`.
    pub fn confirm(&mut self, generation: u64) {
        while self.unconfirmed.front().is_some_and(|news| news.generation <= generation) {
            self.unconfirmed.pop_front();
        }
    }

    /// True if the peer may mean something else by `handle` than we do.
    #[inline]
    pub fn may_be_stale(&self, kind: HandleKind, handle: u32) -> bool {
        self.unconfirmed.iter().any(|news| news.kind == kind && news.handles.contains(&handle))
    }

    /// The link is lost, and with it all pending frames. Returns the scheduled queue pairs.
    pub fn reset(&mut self) -> impl Iterator<Item = Qp> {
        let Self { ready, .. } = std::mem::take(self);
        ready.into_iter()
    }
}
