//! The responder: executes a peer's requests in order, each exactly once.
//!
//! ```text
//! first segment ──▶ begin ── refused ──▶ NAK; what follows is dropped until the message comes again
//!                     │ accepted
//! payload ──────────▶ to its destination, by the stream or a copy
//! last segment ─────▶ end: expected + 1, completion, acknowledgement due
//! ```
//!
//! READs and atomics put an answer into `answers`, transmitted in order. They are kept in `queries` as long as their requester
//! may retry: a retry over a new link gets the value that the atomic found at first, or the bytes that a READ finds now.

pub(crate) mod place;

use fabric::ProcessId;
use verbs::{HandleKind, LookupList};

use crate::attr::{Access, QpKind, QpState};
use crate::core::{Core, received};
use crate::event::AsyncEvent;
use crate::handle::{Pd, Qp, Srq};
use crate::link::outbox::Outbox;
use crate::link::tx::{ANSWER, Tx};
use crate::memory;
use crate::qp::QueuePair;
use crate::requester::addressed;
use crate::wire::{Header, MAX_SEGMENT, Malformed, Opcode, Syndrome, flag};
use crate::work::{WcOpcode, WcStatus};
use place::{Answer, Begun, Dropping, Query, Responder, Selected, Treatment};

/// The destination of a request's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The place that `request_destination` returns.
    Place(Qp),
    /// It is discarded.
    Discard,
}

/// Why a message is not executed.
enum Refusal {
    /// The peer is at fault, or may try again.
    Nak(Syndrome),
    /// The receive is at fault: it completes with this status.
    Receive(WcStatus, Syndrome),
}

impl From<Syndrome> for Refusal {
    fn from(syndrome: Syndrome) -> Self {
        Self::Nak(syndrome)
    }
}

impl Core {
    /// A segment of a request of `peer` arrives.
    pub fn begin_request(
        &mut self,
        peer: ProcessId,
        out: &mut Outbox,
        header: &Header,
    ) -> Result<Verdict, Malformed> {
        let handle = match self.responder_of(peer, out, header) {
            Ok(handle) => handle,
            Err(syndrome) => {
                self.note_past(header);
                // Once for a message, and again at its end: the queue pair may have gone in between.
                if header.offset == 0 || header.is_last() {
                    out.refuse_unknown(header, syndrome);
                }
                return Ok(Verdict::Discard);
            }
        };
        let Some(qp) = self.qps.get_mut(handle.0) else { return Ok(Verdict::Discard) };
        if qp.awaits_barrier {
            if header.offset == 0 {
                // A peer that addresses this incarnation sends it again at once.
                self.refuse(handle, out, header, Syndrome::StaleHandle.into());
            }
            return Ok(Verdict::Discard);
        }
        let is_unreliable = !qp.init.kind.is_reliable();
        let responder = &mut qp.responder;
        if header.offset == 0 {
            match responder.treatment_of(header, is_unreliable) {
                Treatment::GoOn => {}
                Treatment::Drop => return Ok(Verdict::Discard),
                Treatment::Refuse(syndrome) => {
                    out.refuse_unknown(header, syndrome);
                    return Ok(Verdict::Discard);
                }
            }
        }
        if responder.has_executed(header) {
            self.ask_again(handle, out, header);
            return Ok(Verdict::Discard);
        }
        if header.msn != responder.expected {
            return Ok(Verdict::Discard);
        }
        if header.offset == 0 {
            return Ok(self.begin_message(handle, out, header));
        }
        continue_message(responder, header)
            .map(|wanted| if wanted { Verdict::Place(handle) } else { Verdict::Discard })
    }

    /// A message arrives for a queue pair that is not ready: more of them may be in flight.
    fn note_past(&mut self, header: &Header) {
        let qp = self.qp_names.by_real(header.dst_qpn).and_then(|index| self.qps.get_mut(index));
        if let Some(qp) = qp.filter(|qp| !qp.executes()) {
            qp.has_past = true;
        }
    }

    /// The queue pair that executes `header`, which came from `peer`.
    fn responder_of(&self, peer: ProcessId, out: &Outbox, header: &Header) -> Result<Qp, Syndrome> {
        if out.may_be_stale(HandleKind::QueuePair, header.dst_qpn) {
            return Err(Syndrome::StaleHandle);
        }
        let index = self.qp_names.by_real(header.dst_qpn).ok_or(Syndrome::NotReady)?;
        let qp = self.qps.get(index).ok_or(Syndrome::NotReady)?;
        let connected = qp.peer == Some(peer) && qp.attr.remote_qpn == header.src_qpn;
        if connected && qp.executes() { Ok(Qp(index)) } else { Err(Syndrome::NotReady) }
    }

    fn begin_message(&mut self, handle: Qp, out: &mut Outbox, header: &Header) -> Verdict {
        if let Err(refusal) = self.admit(handle, out, header) {
            self.refuse(handle, out, header, refusal);
            return Verdict::Discard;
        }
        self.note_established(handle);
        let Some(qp) = self.qps.get_mut(handle.0) else { return Verdict::Discard };
        qp.responder.dropping = None;
        qp.responder.peer_has_restarted = false;
        let Header { msn, opcode, total, .. } = *header;
        qp.responder.begun = Some(Begun { msn, opcode, total, arrived: 0 });
        Verdict::Place(handle)
    }

    fn note_established(&mut self, handle: Qp) {
        let Some(qp) = self.qps.get_mut(handle.0) else { return };
        if qp.state() == QpState::Rtr && !std::mem::replace(&mut qp.established, true) {
            self.raise(AsyncEvent::CommunicationEstablished(handle));
        }
    }

    /// Checks all that can be checked before the payload is there.
    fn admit(&mut self, handle: Qp, out: &Outbox, header: &Header) -> Result<(), Refusal> {
        use Opcode::{CompareSwap, FetchAdd, Read, Send, SendImm, SendInvalidate, Write, WriteImm};
        if header.total > self.limits.max_message {
            return Err(Syndrome::InvalidRequest.into());
        }
        self.admit_kind(handle)?;
        match header.opcode {
            Send | SendImm => self.admit_send(handle, header.total),
            SendInvalidate => {
                self.admit_send(handle, header.total)?;
                self.admit_invalidation(handle, out, header.rkey)
            }
            Write => self.admit_access(handle, out, header, Access::REMOTE_WRITE),
            WriteImm => {
                self.admit_access(handle, out, header, Access::REMOTE_WRITE)?;
                self.admit_receive(handle)
            }
            Read => {
                self.admit_query(handle)?;
                self.admit_access(handle, out, header, Access::REMOTE_READ)
            }
            CompareSwap | FetchAdd => {
                self.admit_query(handle)?;
                let word = Header { total: 8, ..*header };
                if !header.va.is_multiple_of(8) {
                    return Err(Syndrome::InvalidRequest.into());
                }
                self.admit_access(handle, out, &word, Access::REMOTE_ATOMIC)
            }
            _ => Err(Syndrome::InvalidRequest.into()),
        }
    }

    /// The target of an extended reliable connection must know for which queue a message is; an initiator takes none.
    fn admit_kind(&self, handle: Qp) -> Result<(), Refusal> {
        let Some(qp) = self.qps.get(handle.0) else { return Err(Syndrome::NotReady.into()) };
        match qp.init.kind {
            QpKind::XrcRecv if !qp.responder.has_name => Err(Syndrome::StaleHandle.into()),
            QpKind::XrcRecv if qp.responder.selected.is_none() => Err(Syndrome::InvalidRequest.into()),
            QpKind::XrcSend => Err(Syndrome::InvalidRequest.into()),
            _ => Ok(()),
        }
    }

    /// The messages that follow are for the shared receive queue that `header` names.
    pub fn select_srq(&mut self, peer: ProcessId, out: &Outbox, header: &Header) {
        let Ok(handle) = self.responder_of(peer, out, header) else { return };
        if self.qps.get(handle.0).is_none_or(|qp| qp.awaits_barrier) {
            return;
        }
        let named = self.srq_names.by_real(header.imm).map(Srq);
        let queue = named.and_then(|srq| self.srqs.get(srq.0));
        let Some(qp) = self.qps.get_mut(handle.0).filter(|qp| qp.init.kind == QpKind::XrcRecv) else {
            return;
        };
        let selected = named.zip(queue).and_then(|(srq, queue)| {
            let xrc = queue.xrc.filter(|xrc| Some(xrc.xrcd) == qp.init.xrcd)?;
            Some(Selected { srq, pd: queue.pd, cq: xrc.cq })
        });
        // A receive that is held is for a message that comes again, to the same queue.
        if !qp.responder.holds_receive {
            qp.responder.selected = selected;
        }
        qp.responder.named = selected;
        qp.responder.has_name = !out.may_be_stale(HandleKind::SharedReceiveQueue, header.imm);
    }

    fn admit_send(&mut self, handle: Qp, total: u32) -> Result<(), Refusal> {
        self.admit_receive(handle)?;
        let Some(qp) = self.qps.get(handle.0) else { return Err(Syndrome::NotReady.into()) };
        let receive = &qp.responder.receive;
        if u64::from(total) > receive.room() {
            return Err(Refusal::Receive(WcStatus::LocalLength, Syndrome::InvalidRequest));
        }
        let mut used = crate::scatter::pieces(&receive.sges, 0, total);
        let pd = self.receive_domain(qp);
        if !used.all(|sge| self.regions.has_local(pd, &sge, Access::LOCAL_WRITE)) {
            return Err(Refusal::Receive(WcStatus::LocalProtection, Syndrome::RemoteOperation));
        }
        Ok(())
    }

    /// Finds a receive for the message, if it has none from before a lost link.
    fn admit_receive(&mut self, handle: Qp) -> Result<(), Refusal> {
        if self.hold_receive(handle) { Ok(()) } else { Err(Syndrome::ReceiverNotReady.into()) }
    }

    /// The domain in which receives name memory: the shared queue's, where there is one.
    pub fn receive_domain(&self, qp: &QueuePair) -> Pd {
        let shared = qp.init.srq.and_then(|srq| self.srqs.get(srq.0));
        shared.map_or(qp.receive_pd(), |queue| queue.pd)
    }

    fn admit_access(&self, handle: Qp, out: &Outbox, header: &Header, needs: Access) -> Result<(), Refusal> {
        if header.total != 0 && out.may_be_stale(HandleKind::MemoryKey, header.rkey) {
            return Err(Syndrome::StaleHandle.into());
        }
        let Some(qp) = self.qps.get(handle.0) else { return Err(Syndrome::NotReady.into()) };
        if !qp.attr.access.contains(needs) {
            return Err(Syndrome::InvalidRequest.into());
        }
        let region = self.regions.remote(qp.bearer(), header.rkey, header.va, header.total, needs);
        region.map(drop).ok_or_else(|| Syndrome::RemoteAccess.into())
    }

    /// A window that the peer may not invalidate fails its message, and the receive with it.
    fn admit_invalidation(&self, handle: Qp, out: &Outbox, rkey: u32) -> Result<(), Refusal> {
        if out.may_be_stale(HandleKind::MemoryKey, rkey) {
            return Err(Syndrome::StaleHandle.into());
        }
        let Some(qp) = self.qps.get(handle.0) else { return Err(Syndrome::NotReady.into()) };
        match self.regions.yielding(rkey, qp.bearer()) {
            Some(_) => Ok(()),
            None => Err(Refusal::Receive(WcStatus::RemoteInvalidRequest, Syndrome::RemoteAccess)),
        }
    }

    fn admit_query(&self, handle: Qp) -> Result<(), Refusal> {
        let Some(qp) = self.qps.get(handle.0) else { return Err(Syndrome::NotReady.into()) };
        let full = qp.responder.answers.len() >= usize::from(qp.attr.max_dest_rd_atomic);
        if full { Err(Syndrome::InvalidRequest.into()) } else { Ok(()) }
    }

    /// Tells the peer that `header` was not executed, and fails the queue pair if that is final.
    fn refuse(&mut self, handle: Qp, out: &mut Outbox, header: &Header, refusal: Refusal) {
        let Some(qp) = self.qps.get_mut(handle.0) else { return };
        let syndrome = match refusal {
            Refusal::Nak(syndrome) | Refusal::Receive(_, syndrome) => syndrome,
        };
        qp.responder.begun = None;
        if !qp.init.kind.is_reliable() && syndrome != Syndrome::StaleHandle {
            return self.drop_message(handle, out, header, &refusal);
        }
        qp.responder.dropping = Some(Dropping { astray: None, last: header.msn });
        match syndrome {
            Syndrome::ReceiverNotReady | Syndrome::StaleHandle | Syndrome::NotReady => {
                let imm = u32::from(qp.attr.min_rnr_timer);
                let nak = addressed(qp, &out.lookup, Opcode::Nak);
                out.control(Header { msn: header.msn, syndrome: Some(syndrome), imm, ..nak });
            }
            _ => {
                match refusal {
                    Refusal::Receive(status, _) if self.fail_receive(handle, status) => {}
                    _ => self.raise_event_of(handle, syndrome),
                }
                self.refuse_for_good(handle, out, header.msn, syndrome);
            }
        }
    }

    /// An unreliable connection goes on with the next message, unless its own receive is broken.
    fn drop_message(&mut self, handle: Qp, out: &mut Outbox, header: &Header, refusal: &Refusal) {
        let Some(qp) = self.qps.get_mut(handle.0) else { return };
        qp.responder.expected = header.msn + 1;
        out.acknowledge(qp, handle, header.total);
        if let Refusal::Receive(status, _) = *refusal {
            self.fail_receive(handle, status);
            self.fail(handle);
        }
    }

    /// The receive of the begun message completes with an error. False if there is none: an XRC target's shared queue may have been
    /// destroyed meanwhile.
    fn fail_receive(&mut self, handle: Qp, status: WcStatus) -> bool {
        let Some(qp) = self.qps.get_mut(handle.0) else { return false };
        let Some(wr_id) = qp.responder.give_receive() else { return false };
        let completion = received(qp, wr_id, status);
        let cq = qp.recv_cq();
        self.complete(cq, completion);
        true
    }

    fn refuse_for_good(&mut self, handle: Qp, out: &mut Outbox, msn: u64, syndrome: Syndrome) {
        let Some(qp) = self.qps.get_mut(handle.0) else { return };
        // No acknowledgement covers it.
        qp.responder.expected = msn;
        qp.responder.fatal = Some((msn, syndrome));
        qp.responder.answers.push_back(Answer::Nak { msn, syndrome });
        out.schedule(qp, handle);
        self.fail(handle);
    }

    /// Lets the program know why its queue pair fails, which no receive tells it.
    fn raise_event_of(&mut self, handle: Qp, syndrome: Syndrome) {
        match syndrome {
            Syndrome::RemoteAccess => self.raise(AsyncEvent::QpAccessError(handle)),
            Syndrome::InvalidRequest => self.raise(AsyncEvent::QpRequestError(handle)),
            Syndrome::RemoteOperation => self.raise(AsyncEvent::QpFatal(handle)),
            _ => {}
        }
    }

    /// Where bytes `from..from + length` of the segment `header` belong; false if nowhere any more.
    pub fn request_destination(
        &self,
        handle: Qp,
        header: &Header,
        from: u32,
        length: u32,
        add: &mut dyn FnMut(u64, u32),
    ) -> bool {
        let Some(qp) = self.qps.get(handle.0) else { return false };
        if !qp.executes() || !qp.responder.is_in(header) {
            return false;
        }
        if matches!(header.opcode, Opcode::Write | Opcode::WriteImm) {
            let Some(va) = header.va.checked_add(u64::from(header.offset + from)) else { return false };
            let address = self.regions.remote(qp.bearer(), header.rkey, va, length, Access::REMOTE_WRITE);
            return address.map(|address| add(address, length)).is_some();
        }
        if !qp.responder.holds_receive {
            return false;
        }
        let receive = &qp.responder.receive;
        let pd = self.receive_domain(qp);
        crate::scatter::pieces(&receive.sges, header.offset + from, length).all(|sge| {
            let address = self.regions.local(pd, &sge, Access::LOCAL_WRITE);
            address.map(|address| add(address, sge.length)).is_some()
        })
    }

    /// The memory of a begun message went away under it, or its queue pair did.
    pub fn lose_destination(&mut self, handle: Qp, incarnation: u64, out: &mut Outbox, header: &Header) {
        if !self.executes(handle, incarnation) {
            out.refuse_unknown(header, Syndrome::NotReady);
            return;
        }
        let refusal = match header.opcode {
            Opcode::WriteImm if self.is_reliable(handle) => {
                Refusal::Receive(WcStatus::LocalAccess, Syndrome::RemoteAccess)
            }
            Opcode::Write | Opcode::WriteImm => Refusal::Nak(Syndrome::RemoteAccess),
            _ => Refusal::Receive(WcStatus::LocalProtection, Syndrome::RemoteOperation),
        };
        self.refuse(handle, out, header, refusal);
    }

    fn is_reliable(&self, handle: Qp) -> bool {
        self.qps.get(handle.0).is_some_and(|qp| qp.init.kind.is_reliable())
    }

    /// True if `handle` is still in this incarnation, and executes requests.
    pub fn executes(&self, handle: Qp, incarnation: u64) -> bool {
        self.qps.get(handle.0).is_some_and(|qp| qp.incarnation == incarnation && qp.executes())
    }

    /// The payload of the segment `header` is in place. `operands` is the payload of an atomic.
    pub fn end_request(&mut self, handle: Qp, out: &mut Outbox, header: &Header, operands: [u64; 2]) {
        let Some(qp) = self.qps.get_mut(handle.0) else { return };
        let responder = &mut qp.responder;
        let Some(begun) = responder.begun.as_mut().filter(|begun| begun.msn == header.msn) else { return };
        begun.arrived = header.offset + header.length;
        let is_read = header.opcode == Opcode::Read;
        if !is_read && !header.is_last() {
            return;
        }
        responder.begun = None;
        responder.expected += 1;
        match header.opcode {
            Opcode::Read => {
                self.keep_query(handle, header.msn, 0);
                self.answer_read(handle, out, header);
            }
            Opcode::CompareSwap | Opcode::FetchAdd => self.execute_atomic(handle, out, header, operands),
            Opcode::Write => {}
            Opcode::SendInvalidate => self.end_invalidation(handle, out, header),
            _ => self.complete_receive(handle, header, None),
        }
        if let Some(qp) = self.qps.get_mut(handle.0) {
            out.acknowledge(qp, handle, header.total);
        }
    }

    /// All of a SEND is there: the window that it names is invalidated, and the receive completes.
    fn end_invalidation(&mut self, handle: Qp, out: &mut Outbox, header: &Header) {
        let Some(bearer) = self.qps.get(handle.0).map(QueuePair::bearer) else { return };
        let Self { regions, source, handle_changes, .. } = self;
        let key = regions.yielding(header.rkey, bearer);
        let ended = key.and_then(|key| regions.invalidate(&mut **source, key, bearer, handle_changes));
        if ended.is_some() {
            return self.complete_receive(handle, header, key);
        }
        if !self.fail_receive(handle, WcStatus::RemoteInvalidRequest) {
            self.raise_event_of(handle, Syndrome::RemoteAccess);
        }
        self.refuse_for_good(handle, out, header.msn, Syndrome::RemoteAccess);
    }

    fn complete_receive(&mut self, handle: Qp, header: &Header, invalidated: Option<u32>) {
        let Some(qp) = self.qps.get_mut(handle.0) else { return };
        let Some(wr_id) = qp.responder.give_receive() else { return };
        let mut completion = received(qp, wr_id, WcStatus::Success);
        completion.byte_len = header.total;
        completion.invalidated = invalidated;
        completion.solicited = header.flags & flag::SOLICITED != 0;
        if header.opcode == Opcode::WriteImm {
            completion.opcode = WcOpcode::ReceiveRdmaWithImm;
        }
        if matches!(header.opcode, Opcode::SendImm | Opcode::WriteImm) {
            completion.imm = Some(header.imm);
        }
        let cq = qp.recv_cq();
        self.complete(cq, completion);
    }

    fn answer_read(&mut self, handle: Qp, out: &mut Outbox, header: &Header) {
        let Some(qp) = self.qps.get_mut(handle.0) else { return };
        let Header { msn, rkey, va, total, .. } = *header;
        let bearer = qp.bearer();
        qp.responder.answers.push_back(Answer::Read { msn, rkey, va, total, sent: 0, bearer });
        out.schedule(qp, handle);
    }

    fn execute_atomic(&mut self, handle: Qp, out: &mut Outbox, header: &Header, operands: [u64; 2]) {
        let Some(qp) = self.qps.get(handle.0) else { return };
        let address = self.regions.remote(qp.bearer(), header.rkey, header.va, 8, Access::REMOTE_ATOMIC);
        let Some(address) = address.filter(|address| address.is_multiple_of(8)) else {
            self.raise_event_of(handle, Syndrome::RemoteAccess);
            return self.refuse_for_good(handle, out, header.msn, Syndrome::RemoteAccess);
        };
        // SAFETY: the region was just found to hold these 8 bytes; registration for atomics demands
        // local write access, and alignment was just checked.
        let found = unsafe {
            match header.opcode {
                Opcode::CompareSwap => memory::compare_swap(address, operands[0], operands[1]),
                _ => memory::fetch_add(address, operands[0]),
            }
        };
        self.keep_query(handle, header.msn, found);
        self.answer_atomic(handle, out, header.msn, found);
    }

    fn keep_query(&mut self, handle: Qp, msn: u64, found: u64) {
        let Some(qp) = self.qps.get_mut(handle.0) else { return };
        qp.responder.keep(msn, found, self.limits.max_rd_atomic);
    }

    /// A message that was executed comes again: of READs and atomics the answer may have been lost with a link.
    fn ask_again(&mut self, handle: Qp, out: &mut Outbox, header: &Header) {
        let Some(qp) = self.qps.get_mut(handle.0) else { return };
        let kept = qp.responder.kept(header.msn).copied();
        let is_answered = kept.is_some_and(|query| query.is_answered);
        let is_query = matches!(header.opcode, Opcode::Read | Opcode::CompareSwap | Opcode::FetchAdd);
        if !is_query || is_answered {
            return;
        }
        match self.admit_again(handle, out, header, kept) {
            Ok(()) if header.opcode == Opcode::Read => self.answer_read(handle, out, header),
            Ok(()) => self.answer_atomic(handle, out, header.msn, kept.map_or(0, |query| query.found)),
            Err(refusal) => return self.refuse(handle, out, header, refusal),
        }
        let qp = self.qps.get_mut(handle.0);
        if let Some(query) = qp.and_then(|qp| qp.responder.kept(header.msn)) {
            query.is_answered = true;
        }
    }

    fn admit_again(
        &self,
        handle: Qp,
        out: &Outbox,
        header: &Header,
        kept: Option<Query>,
    ) -> Result<(), Refusal> {
        self.admit_kind(handle)?;
        self.admit_query(handle)?;
        match header.opcode {
            Opcode::Read => self.admit_access(handle, out, header, Access::REMOTE_READ),
            // It never was one: the peer counts from another number.
            _ if kept.is_none() => Err(Syndrome::InvalidRequest.into()),
            _ => Ok(()),
        }
    }

    fn answer_atomic(&mut self, handle: Qp, out: &mut Outbox, msn: u64, found: u64) {
        let Some(qp) = self.qps.get_mut(handle.0) else { return };
        qp.responder.answers.push_back(Answer::Atomic { msn, found });
        out.schedule(qp, handle);
    }

    /// Stages the next frame of answers of `handle`. False if it owes none.
    pub fn answer_frame(&mut self, handle: Qp, lookup: &LookupList, tx: &mut Tx) -> bool {
        let Some(qp) = self.qps.get_mut(handle.0) else { return false };
        let Some(answer) = qp.responder.answers.front().copied() else { return false };
        match answer {
            Answer::Read { .. } => return self.read_frame(handle, lookup, tx),
            Answer::Atomic { msn, found } => {
                tx.frame(&Header { msn, va: found, ..addressed(qp, lookup, Opcode::AtomicResponse) });
            }
            Answer::Nak { msn, syndrome } => {
                let nak = addressed(qp, lookup, Opcode::Nak);
                tx.frame(&Header { msn, syndrome: Some(syndrome), ..nak });
            }
        }
        qp.responder.answers.pop_front();
        true
    }

    fn read_frame(&mut self, handle: Qp, lookup: &LookupList, tx: &mut Tx) -> bool {
        let Some(qp) = self.qps.get_mut(handle.0) else { return false };
        let Some(Answer::Read { msn, rkey, va, total, sent, bearer }) = qp.responder.answers.front_mut()
        else {
            return false;
        };
        let (msn, total, offset) = (*msn, *total, *sent);
        let length = (total - offset).min(MAX_SEGMENT);
        let from = va.wrapping_add(u64::from(offset));
        let Some(address) = self.regions.remote(*bearer, *rkey, from, length, Access::REMOTE_READ) else {
            // Deregistered since it was asked for.
            qp.responder.fatal = Some((msn, Syndrome::RemoteAccess));
            qp.responder.answers.clear();
            qp.responder.answers.push_back(Answer::Nak { msn, syndrome: Syndrome::RemoteAccess });
            self.raise(AsyncEvent::QpAccessError(handle));
            self.fail(handle);
            return self.answer_frame(handle, lookup, tx);
        };
        *sent += length;
        if offset + length == total {
            qp.responder.answers.pop_front();
        }
        let response = addressed(qp, lookup, Opcode::ReadResponse);
        tx.frame(&Header { msn, offset, length, total, ..response });
        tx.application(address, length, handle, ANSWER);
        true
    }

    /// The source memory of message `msn` of `handle`, or of an answer, is not mapped.
    pub fn lose_source(&mut self, handle: Qp, msn: u64) {
        if msn != ANSWER {
            return self.lose_request_memory(handle, msn);
        }
        let Some(qp) = self.qps.get_mut(handle.0) else { return };
        qp.responder.fatal = Some((qp.responder.expected, Syndrome::RemoteOperation));
        self.raise(AsyncEvent::QpFatal(handle));
        self.fail(handle);
    }

    /// The peer asks, after a lost link, which message is expected. An incarnation that has executed nothing for the peer
    /// expects the first message: executed ones belong to another incarnation.
    pub fn on_resync(&mut self, peer: ProcessId, out: &mut Outbox, header: &Header) {
        let Some(qp) = self.connected(peer, header) else {
            return out.refuse_unknown(header, Syndrome::NotReady);
        };
        if let Some((msn, syndrome)) = qp.responder.fatal {
            let nak = addressed(qp, &out.lookup, Opcode::Nak);
            return out.control(Header { msn, syndrome: Some(syndrome), ..nak });
        }
        if !qp.executes() || !qp.responder.may_be_answered(header) {
            return out.refuse_unknown(header, Syndrome::NotReady);
        }
        qp.responder.dropping = None;
        qp.responder.begun = None;
        let answer = addressed(qp, &out.lookup, Opcode::ResyncAck);
        out.control(Header { msn: qp.responder.expected, ..answer });
    }

    /// The peer's queue pair has a new incarnation: its messages from now on follow no earlier one, and no answers are owed to it.
    pub fn on_barrier(&mut self, peer: ProcessId, out: &mut Outbox, header: &Header) {
        let index = self.qp_names.by_real(header.dst_qpn);
        if let (Some(qp), Some(index)) = (self.connected(peer, header), index) {
            qp.responder.interrupt();
            qp.responder.peer_has_restarted = true;
            out.carried_ack(Qp(index));
        }
        out.pass_barrier(header);
    }

    /// The queue pair that is connected to the sender of `header`.
    fn connected(&mut self, peer: ProcessId, header: &Header) -> Option<&mut QueuePair> {
        let qp = self.qp_names.by_real(header.dst_qpn).and_then(|index| self.qps.get_mut(index));
        qp.filter(|qp| qp.peer == Some(peer) && qp.attr.remote_qpn == header.src_qpn)
    }

    /// The acknowledgement that `handle` owes, if it still does.
    #[inline]
    pub fn acknowledgement(&mut self, handle: Qp, lookup: &LookupList) -> Option<Header> {
        let qp = self.qps.get_mut(handle.0)?;
        let is_due = std::mem::take(&mut qp.responder.ack_due);
        is_due.then(|| Header { msn: qp.responder.expected, ..addressed(qp, lookup, Opcode::Ack) })
    }
}

/// Whether a later segment belongs to the message that has begun.
fn continue_message(responder: &Responder, header: &Header) -> Result<bool, Malformed> {
    let Some(begun) = responder.begun else {
        // The queue pair may have become ready amid its first message.
        return if responder.dropping.is_some() || responder.is_fresh() {
            Ok(false)
        } else {
            Err(Malformed("a message without its first segment"))
        };
    };
    let fits = begun.arrived == header.offset && begun.total == header.total && begun.opcode == header.opcode;
    if fits { Ok(true) } else { Err(Malformed("segments out of order")) }
}
