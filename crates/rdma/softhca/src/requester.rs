//! The requester: turns posted sends into frames, and answers into completions.
//!
//! A request is done when an acknowledgement covers it, and a READ or atomic when its answer has
//! arrived; completions are reported in order, so each waits at the head of the queue. A
//! negative acknowledgement makes the requester go back to the message that it names: it retransmits at once or after
//! a pause, or completes the request with an error if a retry is of no use.
//!
//! After a link was lost, the requester sends nothing until the peer has reported the next message of this queue pair
//! that it expects: earlier messages are done, that one and later ones are sent again from their start.

use verbs::{HandleKind, LookupList};

use crate::attr::{Access, QpKind, QpState};
use crate::completion_queue::Pushed;
use crate::core::{Core, sent};
use crate::event::{AsyncEvent, Event};
use crate::handle::Qp;
use crate::link::tx::Tx;
use crate::memory_window::Bearer;
use crate::qp::{QueuePair, rnr_pause};
use crate::region::Regions;
use crate::send_queue::SendRequest;
use crate::share::direct_mapping::Queued;
use crate::timer::Pause;
use crate::wire::{Header, MAX_SEGMENT, Malformed, Opcode, Syndrome, flag};
use crate::work::{SendOp, WcStatus};

/// A requester's place in its send queue.
#[derive(Debug, Default)]
pub(crate) struct Requester {
    /// The message to transmit next, and the bytes of it that were.
    pub next: u64,
    pub offset: u32,
    /// All messages before it were transmitted at least once; the last of them perhaps in part.
    pub sent: u64,
    /// All messages before it were executed.
    accepted: u64,
    /// Messages since one that asked to be acknowledged at once.
    unasked: u32,
    /// READs and atomics before the next message, with answers that have not arrived.
    outstanding: u8,
    /// For a peer that is not ready; the last try waits for its time-out, too.
    pauses_left: u8,
    rnr_retries_left: u8,
    /// Nothing is transmitted meanwhile.
    pub pause: Pause,
    /// A link was lost with messages in flight.
    interrupted: bool,
    resync_sent: bool,
    /// The last SELECT_SRQ that the peer got: the virtual and the real number of its shared receive queue.
    selected: Option<(u32, u32)>,
}

impl Requester {
    /// Forgets everything; the next message is `msn`.
    pub fn stop(&mut self, msn: u64) {
        *self = Self { next: msn, sent: msn, accepted: msn, ..Self::default() };
    }

    /// The same, with the pauses and retries that a queue pair grants.
    pub fn start(&mut self, msn: u64, pauses: u8, rnr_retries: u8) {
        self.stop(msn);
        self.pauses_left = pauses;
        self.rnr_retries_left = rnr_retries;
    }

    /// True if the peer is still to be asked, after a lost link, which message it expects.
    pub fn owes_resync(&self) -> bool {
        self.interrupted && !self.resync_sent
    }

    /// True if the peer has executed something since message `first`.
    pub fn is_heard(&self, first: u64) -> bool {
        self.accepted > first
    }

    /// True if nothing of the queue, which ends before message `end`, waits for its turn, so that the next one has it.
    #[inline]
    pub fn is_idle(&self, end: u64) -> bool {
        self.next == end && self.offset == 0 && !self.interrupted && self.pause.is_over()
    }

    /// True if a fenced request may not start yet.
    #[inline]
    pub fn is_fenced(&self) -> bool {
        self.outstanding > 0
    }

    /// Whether the next message asks to be acknowledged at once: the application will learn of it alone, and perhaps post no
    /// more before. Where each is signaled, the peer acknowledges them in company by itself.
    #[inline]
    pub fn asks_for_ack(&mut self, signaled: bool) -> bool {
        /// Messages in a company.
        const COMPANY: u32 = 16;
        // A request is not needed.
        self.unasked = self.unasked.saturating_add(1);
        let asks = signaled && self.unasked >= COMPANY;
        if asks {
            self.unasked = 0;
        }
        asks
    }

    #[inline]
    pub fn finish_message(&mut self) {
        self.next += 1;
        self.offset = 0;
        self.sent = self.sent.max(self.next);
    }
}

/// Why a request ends before it is sent.
pub(crate) fn check_locally(
    qp: &QueuePair,
    request: &SendRequest,
    regions: &Regions,
    max_message: u32,
) -> WcStatus {
    if request.length > max_message {
        return WcStatus::LocalLength;
    }
    if request.is_query() && qp.attr.max_rd_atomic == 0 {
        return WcStatus::LocalQpOperation;
    }
    if has_memory(qp, request, regions) { WcStatus::Success } else { WcStatus::LocalProtection }
}

/// True if the local memory that `request` names exists, with the rights that it needs.
fn has_memory(qp: &QueuePair, request: &SendRequest, regions: &Regions) -> bool {
    let needs = if request.is_query() { Access::LOCAL_WRITE } else { Access::empty() };
    let is_there = |sge| regions.has_local(qp.init.pd, sge, needs);
    request.inline.is_some() || request.sges.iter().all(is_there)
}

impl Core {
    /// True if `handle` has something to ask of its peer, now or after a pause.
    pub fn has_requests(&self, handle: Qp) -> bool {
        let qp = self.qps.get(handle.0).filter(|qp| qp.requests());
        qp.is_some_and(|qp| !qp.sends.is_empty())
    }

    /// True if `handle` has something to ask of its peer that has not been transmitted.
    #[inline]
    pub fn has_more_requests(&self, handle: Qp) -> bool {
        let is_behind = |qp: &QueuePair| qp.requester.next < qp.sends.end() || qp.requester.owes_resync();
        self.qps.get(handle.0).is_some_and(|qp| qp.requests() && is_behind(qp))
    }

    /// Stages the next frame of requests of `handle`. False if there is none for now.
    pub fn request_frame(&mut self, handle: Qp, lookup: &LookupList, tx: &mut Tx) -> bool {
        let Some(qp) = self.qps.get_mut(handle.0) else { return false };
        if !qp.requests() || !qp.requester.pause.is_over() || qp.awaits_barrier {
            return false;
        }
        if qp.requester.interrupted {
            return resync_frame(qp, lookup, tx);
        }
        let Some(msn) = next_message(qp) else { return false };
        let Some(request) = qp.sends.get(msn) else { return false };
        if request.op.is_local() {
            return self.run_local(handle);
        }
        if qp.requester.offset == 0 {
            match check_locally(qp, request, &self.regions, self.limits.max_message) {
                WcStatus::Success => {}
                status => return self.end_locally(handle, msn, status),
            }
            match self.direct_queued(handle, msn) {
                Queued::Done(copied) => {
                    copied.count_in(&mut tx.traffic);
                    return true;
                }
                Queued::Waits => return false,
                Queued::Declined => {}
            }
        } else if !has_memory(qp, request, &self.regions) {
            return self.end_locally(handle, msn, WcStatus::LocalProtection);
        }
        let Some(qp) = self.qps.get_mut(handle.0) else { return false };
        stage(qp, handle, msn, &self.regions, lookup, tx);
        true
    }

    /// Does the local work at the head of the queue, for which nothing has to be sent. False if there is none.
    pub fn run_local(&mut self, handle: Qp) -> bool {
        let mut ran = false;
        while let Some(qp) = self.qps.get(handle.0) {
            let head = qp.sends.head();
            let Some(request) = qp.sends.get(head).filter(|request| request.op.is_local()) else { break };
            let may_start = qp.state() == QpState::Rts && !qp.requester.interrupted && qp.is_next(head);
            if !may_start {
                break;
            }
            let reported = request.signaled.then(|| sent(qp.qpn, request, WcStatus::Success));
            let (op, bearer, cq) = (request.op, qp.bearer(), qp.init.send_cq);
            if self.change_window(&op, bearer).is_none() {
                self.end_request_with(handle, head, WcStatus::WindowBind);
                break;
            }
            ran = true;
            if let Some(qp) = self.qps.get_mut(handle.0) {
                qp.sends.skip();
            }
            if let Some(completion) = reported {
                self.complete(cq, completion);
            }
        }
        ran
    }

    fn change_window(&mut self, op: &SendOp, bearer: Bearer) -> Option<()> {
        let Self { regions, source, handle_changes, .. } = self;
        match op {
            SendOp::Bind(binding) => regions.bind(&mut **source, binding, bearer, handle_changes),
            SendOp::LocalInvalidate(key) => regions.invalidate(&mut **source, *key, bearer, handle_changes),
            _ => None,
        }
    }

    /// Request `msn` fails without having been sent. Always false.
    fn end_locally(&mut self, handle: Qp, msn: u64, status: WcStatus) -> bool {
        self.end_request_with(handle, msn, status);
        false
    }

    /// Request `msn` is over; completions that this makes due are given.
    pub fn end_request_with(&mut self, handle: Qp, msn: u64, status: WcStatus) {
        let Some(qp) = self.qps.get_mut(handle.0) else { return };
        if let Some(request) = qp.sends.get_mut(msn) {
            request.outcome = Some(status);
        }
        self.complete_sends(handle);
    }

    /// Completes the requests at the head of the queue that are done, in order.
    pub fn complete_sends(&mut self, handle: Qp) {
        while let Some(qp) = self.qps.get_mut(handle.0) {
            let Some(request) = qp.sends.get(qp.sends.head()) else { break };
            let Some(status) = request.outcome else { break };
            let reported = request.signaled || status != WcStatus::Success;
            let completion = sent(qp.qpn, request, status);
            let cq = qp.init.send_cq;
            qp.sends.retire();
            if reported {
                self.complete(cq, completion);
            }
            if status != WcStatus::Success {
                self.fail_sends(handle);
                return;
            }
        }
        self.note_drained(handle);
    }

    /// Tells that a queue pair in SQD has come to rest.
    pub fn note_drained(&mut self, handle: Qp) {
        let Some(qp) = self.qps.get_mut(handle.0) else { return };
        if qp.state() != QpState::Sqd || !qp.attr.sq_draining || !qp.is_drained() {
            return;
        }
        qp.attr.sq_draining = false;
        if std::mem::take(&mut qp.attr.en_sqd_async_notify) {
            self.raise(AsyncEvent::SendQueueDrained(handle));
        }
    }

    /// The peer has executed all messages before `header.msn`.
    pub fn on_ack(&mut self, handle: Qp, header: &Header) -> Result<(), Malformed> {
        let Some(qp) = self.answered(handle, header) else { return Ok(()) };
        accept(qp, header.msn)?;
        self.complete_sends(handle);
        Ok(())
    }

    /// The same, where nothing else waits: neither is a request to be sent, nor another answer to come. False if
    /// there is more to do, which is for [`Self::on_ack`].
    #[inline]
    pub fn retire_plainly(&mut self, handle: Qp, header: &Header, msn: u64) -> bool {
        let Some(qp) = self.qps.get_mut(handle.0) else { return false };
        let QueuePair { attr, init, sends, requester, qpn, .. } = qp;
        let is_answered = attr.remote_qpn == header.src_qpn && attr.state == QpState::Rts;
        let is_plain = requester.is_idle(sends.end()) && requester.outstanding == 0;
        let is_in_order = requester.accepted == sends.head() && msn <= requester.sent;
        if !(is_answered && is_plain && is_in_order) || msn <= requester.accepted {
            return false;
        }
        let Some(cq) = self.cqs.get_mut(init.send_cq.0) else { return false };
        while sends.head() < msn {
            let Some(request) = sends.get(sends.head()) else { break };
            if request.outcome.is_some() || request.signaled && !cq.has_room() {
                break;
            }
            if request.signaled && cq.push(sent(*qpn, request, WcStatus::Success)) == Pushed::WakeUp {
                self.events.push(Event::Completion(init.send_cq));
            }
            sends.retire();
            requester.accepted += 1;
        }
        requester.pauses_left = attr.pauses();
        requester.rnr_retries_left = attr.rnr_retry;
        requester.accepted >= msn
    }

    /// The queue pair that `header` answers, if it still waits for answers.
    fn answered(&mut self, handle: Qp, header: &Header) -> Option<&mut QueuePair> {
        let qp = self.qps.get_mut(handle.0)?;
        let connected = qp.attr.remote_qpn == header.src_qpn;
        let listens = qp.requests() && !qp.requester.interrupted && !qp.awaits_barrier;
        (connected && listens).then_some(qp)
    }

    /// The peer has not executed message `header.msn`.
    pub fn on_nak(&mut self, handle: Qp, header: &Header) -> Result<(), Malformed> {
        let Some(qp) = self.qps.get_mut(handle.0) else { return Ok(()) };
        let Some(syndrome) = header.syndrome else { return Ok(()) };
        let (head, sent) = (qp.sends.head(), qp.requester.sent);
        // A peer that has executed all may have failed in answering.
        let is_final =
            matches!(syndrome, Syndrome::InvalidRequest | Syndrome::RemoteAccess | Syndrome::RemoteOperation);
        let is_reliable = qp.init.kind.is_reliable();
        let is_of_next = is_reliable && is_final && header.msn == sent && qp.requester.interrupted;
        if !qp.requests() || qp.awaits_barrier {
            return Ok(());
        }
        if !(head..sent).contains(&header.msn) && !is_of_next {
            if qp.requester.interrupted {
                // The queue pair over there is another one by now.
                self.on_not_ready(handle, head);
            }
            return Ok(());
        }
        if !is_reliable && syndrome != Syndrome::StaleHandle {
            self.drop_requests(handle, header.msn + 1);
            return Ok(());
        }
        match syndrome {
            Syndrome::NotReady => self.on_not_ready(handle, header.msn),
            Syndrome::StaleHandle => go_back(qp, header.msn),
            Syndrome::ReceiverNotReady => {
                accept(qp, header.msn)?;
                self.complete_sends(handle);
                self.on_receiver_not_ready(handle, header.msn, header.imm);
            }
            Syndrome::InvalidRequest => {
                self.on_refusal(handle, header.msn, WcStatus::RemoteInvalidRequest)?
            }
            Syndrome::RemoteAccess => self.on_refusal(handle, header.msn, WcStatus::RemoteAccess)?,
            Syndrome::RemoteOperation => self.on_refusal(handle, header.msn, WcStatus::RemoteOperation)?,
        }
        Ok(())
    }

    fn on_refusal(&mut self, handle: Qp, msn: u64, status: WcStatus) -> Result<(), Malformed> {
        let Some(qp) = self.qps.get_mut(handle.0) else { return Ok(()) };
        if msn > qp.requester.accepted {
            accept(qp, msn)?;
        }
        go_back(qp, msn);
        let head = qp.sends.head();
        let lost_answer = qp.requester.interrupted
            && (head..msn)
                .any(|before| qp.sends.get(before).is_some_and(|request| request.outcome.is_none()));
        if lost_answer {
            // It will never come: the responder has failed and answers nothing any more.
            self.end_request_with(handle, head, WcStatus::RetryExceeded);
        } else {
            self.end_request_with(handle, msn, status);
        }
        let Some(qp) = self.qps.get_mut(handle.0) else { return Ok(()) };
        // A peer that has executed all, and failed then, learns of that with the next message.
        qp.requester.interrupted &= !qp.sends.is_empty();
        Ok(())
    }

    fn on_receiver_not_ready(&mut self, handle: Qp, msn: u64, timer: u32) {
        /// This many retries never end.
        const FOR_EVER: u8 = 7;
        let Some(qp) = self.qps.get_mut(handle.0) else { return };
        if !qp.requests() {
            return;
        }
        go_back(qp, msn);
        if !qp.requester.pause.is_over() {
            return;
        }
        if qp.attr.rnr_retry != FOR_EVER {
            let Some(left) = qp.requester.rnr_retries_left.checked_sub(1) else {
                return self.end_request_with(handle, msn, WcStatus::RnrRetryExceeded);
            };
            qp.requester.rnr_retries_left = left;
        }
        qp.requester.pause = Pause::Noted(rnr_pause(timer));
        self.waiting.push(handle);
    }

    /// The peer could not execute message `msn`: one retry is used up.
    pub fn on_not_ready(&mut self, handle: Qp, msn: u64) {
        let Some(qp) = self.qps.get_mut(handle.0) else { return };
        if !qp.requests() || msn >= qp.sends.end() {
            return;
        }
        if !qp.init.kind.is_reliable() {
            return self.drop_requests(handle, msn + 1);
        }
        go_back(qp, msn);
        qp.direct_mappings.ask_again();
        if !qp.requester.pause.is_over() {
            return;
        }
        if qp.attr.timeout != 0 {
            let Some(left) = qp.requester.pauses_left.checked_sub(1) else {
                // Regardless of its earlier reports, the peer answers no more.
                let head = qp.sends.head();
                return self.end_request_with(handle, head, WcStatus::RetryExceeded);
            };
            qp.requester.pauses_left = left;
        }
        qp.requester.resync_sent = false;
        qp.requester.pause = Pause::Noted(qp.retry_pause());
        self.waiting.push(handle);
    }

    /// Requests before `msn`, and requests on their way, are lost. An unreliable connection accepts that.
    fn drop_requests(&mut self, handle: Qp, msn: u64) {
        let Some(qp) = self.qps.get_mut(handle.0) else { return };
        if std::mem::take(&mut qp.requester.interrupted) {
            // Of this one the peer has no begin.
            qp.requester.offset = 0;
        }
        let lost = qp.requester.next.max(msn);
        qp.requester.sent = qp.requester.sent.max(lost);
        // By now it is at most the number of sent messages.
        let _ = accept(qp, lost);
        // The unsent rest of them proceeds without their memory.
        self.failed.push(handle);
        self.complete_sends(handle);
    }

    /// The peer has ended, or could not be reached for too long.
    pub fn give_up(&mut self, handle: Qp) {
        let Some(qp) = self.qps.get_mut(handle.0) else { return };
        if qp.requests() && !qp.init.kind.is_reliable() {
            let end = qp.sends.first_local();
            if end > qp.sends.head() {
                self.drop_requests(handle, end);
            }
            // Later ones are dropped next time.
            self.run_local(handle);
            return;
        }
        if qp.requests() && !qp.sends.is_empty() {
            let head = qp.sends.head();
            self.end_request_with(handle, head, WcStatus::RetryExceeded);
        }
    }

    /// After a lost link: the peer expects message `header.msn`.
    pub fn on_resync_ack(&mut self, handle: Qp, header: &Header) {
        let Some(qp) = self.qps.get_mut(handle.0) else { return };
        if !qp.requests() || !qp.requester.interrupted || qp.attr.remote_qpn != header.src_qpn {
            return;
        }
        if header.msn < qp.requester.accepted || accept(qp, header.msn).is_err() {
            // The queue pair over there is another one by now.
            let head = qp.sends.head();
            return self.on_not_ready(handle, head);
        }
        qp.requester.interrupted = false;
        go_back(qp, qp.sends.head());
        self.complete_sends(handle);
    }

    /// The link is gone; messages in flight may have been executed or not.
    pub fn interrupt_requests(&mut self, handle: Qp) {
        let Some(qp) = self.qps.get_mut(handle.0) else { return };
        let requester = &mut qp.requester;
        requester.resync_sent = false;
        requester.selected = None;
        let in_flight = qp.sends.head()..requester.sent;
        requester.interrupted |= !in_flight.is_empty();
        for msn in in_flight {
            if let Some(request) = qp.sends.get_mut(msn) {
                request.asked = false;
            }
        }
    }

    /// Whether a segment of READ data is wanted, and where it belongs.
    pub fn begin_read_response(&mut self, handle: Qp, header: &Header) -> Result<bool, Malformed> {
        let Some(qp) = self.answered(handle, header) else { return Ok(false) };
        let Some(request) = qp.sends.get(header.msn) else { return Ok(false) };
        if request.outcome.is_some() || !request.asked {
            return Ok(false);
        }
        let is_read = matches!(request.op, SendOp::Read { .. });
        if !is_read || header.total != request.length {
            return Err(Malformed("an answer without a request"));
        }
        match (header.offset, request.received) {
            // Perhaps a restart after a part of it: the peer has a new incarnation meanwhile.
            (0, _) => Ok(true),
            (offset, received) if offset == received => Ok(true),
            // The rest of an answer to another incarnation of this queue pair.
            (_, 0) => Ok(false),
            _ => Err(Malformed("an answer out of order")),
        }
    }

    /// The memory of request `msn` went away while it was sent.
    pub fn lose_request_memory(&mut self, handle: Qp, msn: u64) {
        self.end_request_with(handle, msn, WcStatus::LocalProtection);
    }

    /// The memory of a READ went away under it.
    pub fn lose_read_destination(&mut self, handle: Qp, header: &Header) {
        if self.answered(handle, header).is_some() {
            self.end_query_with(handle, header.msn, WcStatus::LocalProtection);
        }
    }

    /// A segment of READ data is in place.
    pub fn end_read_response(&mut self, handle: Qp, header: &Header) -> Result<(), Malformed> {
        let Some(qp) = self.answered(handle, header) else { return Ok(()) };
        let request = qp.sends.get_mut(header.msn).filter(|request| request.outcome.is_none());
        let Some(request) = request else { return Ok(()) };
        request.received = header.offset + header.length;
        if header.is_last() { self.finish_query(handle, header.msn) } else { Ok(()) }
    }

    /// The value that an atomic found in the peer's memory.
    pub fn on_atomic_response(&mut self, handle: Qp, header: &Header) -> Result<(), Malformed> {
        let Some(qp) = self.answered(handle, header) else { return Ok(()) };
        let Some(request) = qp.sends.get(header.msn) else { return Ok(()) };
        if request.outcome.is_some() || !request.asked {
            return Ok(());
        }
        if !request.is_query() || matches!(request.op, SendOp::Read { .. }) {
            return Err(Malformed("an answer without a request"));
        }
        let place = request.sges.iter().find(|sge| sge.length != 0).copied();
        let pd = qp.init.pd;
        let address = place.and_then(|sge| self.regions.local(pd, &sge, Access::LOCAL_WRITE));
        let Some(address) = address else {
            self.end_query_with(handle, header.msn, WcStatus::LocalProtection);
            return Ok(());
        };
        // SAFETY: the region was just found to hold these 8 bytes, writable (`post_send` made sure of
        // the length).
        unsafe { crate::memory::store(address, &header.va.to_ne_bytes()) };
        self.finish_query(handle, header.msn)
    }

    /// READ or atomic `msn` has its answer; all before it must have been executed.
    fn finish_query(&mut self, handle: Qp, msn: u64) -> Result<(), Malformed> {
        let Some(qp) = self.qps.get_mut(handle.0) else { return Ok(()) };
        if msn >= qp.requester.accepted {
            accept(qp, msn + 1)?;
        }
        self.end_query_with(handle, msn, WcStatus::Success);
        Ok(())
    }

    /// READ or atomic `msn` is done, and no longer outstanding, unless it is being retransmitted.
    fn end_query_with(&mut self, handle: Qp, msn: u64, status: WcStatus) {
        let Some(qp) = self.qps.get_mut(handle.0) else { return };
        if msn < qp.requester.next {
            qp.requester.outstanding = qp.requester.outstanding.saturating_sub(1);
        }
        self.end_request_with(handle, msn, status);
    }
}

/// The message to go on with, if it may be transmitted now.
fn next_message(qp: &mut QueuePair) -> Option<u64> {
    if qp.requester.next < qp.sends.head() {
        // Answers came for messages that were to be sent again.
        qp.requester.next = qp.sends.head();
        qp.requester.offset = 0;
    }
    loop {
        let requester = &qp.requester;
        let request = qp.sends.get(requester.next)?;
        match request.outcome {
            Some(WcStatus::Success) => qp.requester.finish_message(),
            Some(_) => return None,
            None if requester.offset > 0 => return Some(requester.next),
            None => {
                let asks_too_much = request.is_query()
                    && requester.outstanding >= qp.attr.max_rd_atomic
                    && qp.attr.max_rd_atomic > 0;
                let fenced = request.fence && requester.outstanding > 0;
                let stopped = qp.state() == QpState::Sqd && requester.next >= requester.sent;
                return (!asks_too_much && !fenced && !stopped).then_some(requester.next);
            }
        }
    }
}

fn resync_frame(qp: &mut QueuePair, lookup: &LookupList, tx: &mut Tx) -> bool {
    if std::mem::replace(&mut qp.requester.resync_sent, true) {
        return false;
    }
    tx.frame(&Header { msn: qp.sends.head(), ..addressed(qp, lookup, Opcode::Resync) });
    true
}

/// A header from `qp` to its peer.
#[inline]
pub(crate) fn addressed(qp: &QueuePair, lookup: &LookupList, opcode: Opcode) -> Header {
    let dst_qpn = lookup.real(HandleKind::QueuePair, qp.attr.remote_qpn);
    Header { dst_qpn, src_qpn: qp.qpn, ..Header::new(opcode) }
}

/// Tells the peer for which shared receive queue message `msn` is, unless it is the same as before.
fn select_srq(qp: &mut QueuePair, msn: u64, lookup: &LookupList, tx: &mut Tx) {
    let number = qp.sends.get(msn).map_or(0, |request| request.srq_number);
    let real = lookup.real(HandleKind::SharedReceiveQueue, number);
    if qp.requester.selected.replace((number, real)) != Some((number, real)) {
        tx.frame(&Header { imm: real, ..addressed(qp, lookup, Opcode::SelectSrq) });
    }
}

/// Stages the next segment of message `msn`. Its memory has been checked.
fn stage(qp: &mut QueuePair, handle: Qp, msn: u64, regions: &Regions, lookup: &LookupList, tx: &mut Tx) {
    let offset = qp.requester.offset;
    if qp.init.kind == QpKind::XrcSend && offset == 0 {
        select_srq(qp, msn, lookup, tx);
    }
    let Some(request) = qp.sends.get(msn) else { return };
    let mut header = describe(qp, request, lookup);
    header.msn = msn;
    header.offset = offset;
    match request.op {
        SendOp::Read { .. } => tx.frame(&header),
        SendOp::CompareSwap { compare, swap, .. } => stage_operands(tx, &mut header, compare, swap),
        SendOp::FetchAdd { add, .. } => stage_operands(tx, &mut header, add, 0),
        _ => {
            header.length = (request.length - offset).min(MAX_SEGMENT);
            acknowledge_by_the_way(qp, &mut header);
            tx.frame(&header);
            stage_payload(qp, handle, request, &header, regions, tx);
        }
    }
    advance(qp, &header);
}

/// The header of `request`, but for its segment.
#[inline]
fn describe(qp: &QueuePair, request: &SendRequest, lookup: &LookupList) -> Header {
    let (opcode, va, rkey, imm) = match request.op {
        SendOp::Send => (Opcode::Send, 0, 0, 0),
        SendOp::SendImm(imm) => (Opcode::SendImm, 0, 0, imm),
        SendOp::SendInvalidate(rkey) => (Opcode::SendInvalidate, 0, rkey, 0),
        SendOp::Write { va, rkey } => (Opcode::Write, va, rkey, 0),
        SendOp::WriteImm { va, rkey, imm } => (Opcode::WriteImm, va, rkey, imm),
        SendOp::Read { va, rkey } => (Opcode::Read, va, rkey, 0),
        SendOp::CompareSwap { va, rkey, .. } => (Opcode::CompareSwap, va, rkey, 0),
        SendOp::FetchAdd { va, rkey, .. } => (Opcode::FetchAdd, va, rkey, 0),
        // Never sent.
        SendOp::Bind(_) | SendOp::LocalInvalidate(_) => (Opcode::Send, 0, 0, 0),
        // Never that of a connection.
        SendOp::Datagram { .. } => (Opcode::Datagram, 0, 0, 0),
    };
    let solicited = if request.solicited { flag::SOLICITED } else { 0 };
    let again = if qp.requester.next < qp.requester.sent { flag::RETRANSMITTED } else { 0 };
    Header {
        flags: solicited | again,
        va,
        rkey: lookup.real(HandleKind::MemoryKey, rkey),
        imm,
        total: request.length,
        ..addressed(qp, lookup, opcode)
    }
}

/// Lets a SEND carry the acknowledgement that is due: a short message is one line of the ring then.
#[inline]
fn acknowledge_by_the_way(qp: &QueuePair, header: &mut Header) {
    if qp.responder.ack_due && header.is_send() {
        header.flags |= flag::ACKNOWLEDGES;
        header.va = qp.responder.expected;
    }
}

fn stage_operands(tx: &mut Tx, header: &mut Header, first: u64, second: u64) {
    header.length = 16;
    header.total = 16;
    tx.frame(header);
    tx.copy(&first.to_le_bytes());
    tx.copy(&second.to_le_bytes());
}

fn stage_payload(
    qp: &QueuePair,
    handle: Qp,
    request: &SendRequest,
    header: &Header,
    regions: &Regions,
    tx: &mut Tx,
) {
    if let Some(bytes) = &request.inline {
        let start = header.offset as usize;
        tx.copy(&bytes[start..start + header.length as usize]);
        return;
    }
    for piece in crate::scatter::pieces(&request.sges, header.offset, header.length) {
        if let Some(address) = regions.local(qp.init.pd, &piece, Access::empty()) {
            tx.application(address, piece.length, handle, header.msn);
        }
    }
}

fn advance(qp: &mut QueuePair, header: &Header) {
    if header.flags & flag::ACKNOWLEDGES != 0 {
        qp.responder.ack_due = false;
    }
    let requester = &mut qp.requester;
    let is_query = qp.sends.get_mut(header.msn).is_some_and(|request| {
        let is_query = request.is_query();
        if is_query && !std::mem::replace(&mut request.asked, true) {
            request.received = 0;
        }
        is_query
    });
    if is_query {
        requester.outstanding += 1;
    }
    requester.offset = header.offset + header.length;
    requester.sent = requester.sent.max(requester.next + 1);
    if is_query || header.is_last() {
        requester.finish_message();
    }
}

/// All messages before `msn` are executed; READs and atomics among them still lack their answers.
fn accept(qp: &mut QueuePair, msn: u64) -> Result<(), Malformed> {
    if msn > qp.requester.sent {
        return Err(Malformed("acknowledgement of a message that was not sent"));
    }
    if msn <= qp.requester.accepted {
        return Ok(());
    }
    for executed in qp.requester.accepted..msn {
        if let Some(request) = qp.sends.get_mut(executed)
            && !request.is_query()
        {
            request.outcome = Some(WcStatus::Success);
        }
    }
    let requester = &mut qp.requester;
    requester.accepted = msn;
    requester.pauses_left = qp.attr.pauses();
    requester.rnr_retries_left = qp.attr.rnr_retry;
    if msn > requester.next {
        // Messages to be retransmitted are done meanwhile, except queries: their answers were not awaited any more.
        let is_open = |at: &u64| qp.sends.get(*at).is_some_and(|request| request.outcome.is_none());
        requester.next = (requester.next..msn).find(is_open).unwrap_or(msn);
        requester.offset = 0;
    }
    Ok(())
}

/// Message `msn` and those behind it must be retransmitted.
fn go_back(qp: &mut QueuePair, msn: u64) {
    if msn > qp.requester.next {
        return;
    }
    let is_awaited =
        |at: &u64| qp.sends.get(*at).is_some_and(|request| request.is_query() && request.outcome.is_none());
    let unanswered = (msn..qp.requester.next).filter(is_awaited).count();
    qp.requester.outstanding = qp.requester.outstanding.saturating_sub(unanswered as u8);
    qp.requester.next = msn;
    qp.requester.offset = 0;
    qp.requester.selected = None;
}
