//! The objects of a device, apart from its links.

use fabric::{FabricId, ProcessId};
use verbs::{HandleKind, HandleSource, LookupList, Names};

use crate::address::AddressHandle;
use crate::attr::{QpKind, QpState};
use crate::completion_queue::{CompletionQueue, Pushed};
use crate::event::{AsyncEvent, Event};
use crate::groups::Groups;
use crate::handle::{Cq, Qp, Srq};
use crate::limits::Limits;
use crate::link::tx::Tx;
use crate::memory_window::HandleChange;
use crate::qp::QueuePair;
use crate::region::Regions;
use crate::responder::place::Selected;
use crate::shared_receive_queue::SharedReceiveQueue;
use crate::slab::Slab;
use crate::work::{Rdma, Wc, WcOpcode, WcStatus};

/// A protection domain, or one of extended reliable connections.
#[derive(Debug, Default)]
pub(crate) struct Domain {
    /// Objects in it.
    pub users: u32,
}

/// Everything that a request is executed on.
pub(crate) struct Core {
    pub process: ProcessId,
    pub fabric: FabricId,
    pub limits: Limits,
    pub source: Box<dyn HandleSource>,
    pub domains: Slab<Domain>,
    pub regions: Regions,
    pub cqs: Slab<CompletionQueue>,
    pub srqs: Slab<SharedReceiveQueue>,
    pub qps: Slab<QueuePair>,
    pub addresses: Slab<AddressHandle>,
    pub groups: Groups,
    pub qp_names: Names,
    /// The queues from which XRC targets take receives.
    pub srq_names: Names,
    pub xrcds: Slab<Domain>,
    /// Events that the user has not taken yet.
    pub events: Vec<Event>,
    /// Queue pairs with a clock running.
    pub waiting: Vec<Qp>,
    /// Queue pairs that failed: bytes of theirs that links still hold must be copied before the
    /// application can learn of it.
    pub failed: Vec<Qp>,
    /// Queue pairs that found the gate of their neighbour closed.
    pub stale: Vec<Qp>,
    /// Changed handles that peers must learn before more of their frames are read.
    pub handle_changes: Vec<HandleChange>,
    /// Queue pairs that may send datagrams again.
    pub unblocked: Vec<Qp>,
    /// Some link has datagrams for which there was no receive.
    pub datagrams_wait: bool,
    /// Datagrams that were dropped because their sender did not know the receiver's key.
    pub wrong_keys: u32,
    /// How often acknowledgements have left.
    pub acks_sent: u64,
    incarnations: u64,
}

impl Core {
    pub fn new(process: ProcessId, fabric: FabricId, limits: Limits, source: Box<dyn HandleSource>) -> Self {
        Self {
            process,
            fabric,
            limits,
            source,
            domains: Slab::new(),
            regions: Regions::new(),
            cqs: Slab::new(),
            srqs: Slab::new(),
            qps: Slab::new(),
            addresses: Slab::new(),
            groups: Groups::default(),
            qp_names: Names::new(HandleKind::QueuePair),
            srq_names: Names::new(HandleKind::SharedReceiveQueue),
            xrcds: Slab::new(),
            events: Vec::new(),
            waiting: Vec::new(),
            failed: Vec::new(),
            stale: Vec::new(),
            handle_changes: Vec::new(),
            unblocked: Vec::new(),
            datagrams_wait: false,
            wrong_keys: 0,
            acks_sent: 0,
            incarnations: 0,
        }
    }

    /// A number for a new incarnation of a queue pair.
    pub fn next_incarnation(&mut self) -> u64 {
        self.incarnations += 1;
        self.incarnations
    }

    pub fn raise(&mut self, event: AsyncEvent) {
        self.events.push(Event::Async(event));
    }

    /// Adds `completion` to `cq`. A queue that overruns fails, and its queue pairs with it.
    #[inline(always)]
    pub fn complete(&mut self, cq: Cq, completion: Wc) {
        let Some(queue) = self.cqs.get_mut(cq.0) else { return };
        let was_broken = queue.is_broken();
        match queue.push(completion) {
            Pushed::Quietly => {}
            Pushed::WakeUp => self.events.push(Event::Completion(cq)),
            Pushed::Overrun if was_broken => {}
            Pushed::Overrun => self.overrun(cq),
        }
    }

    fn overrun(&mut self, cq: Cq) {
        self.raise(AsyncEvent::CqError(cq));
        let users: Vec<u32> = self.qps.indices().collect();
        for index in users {
            let Some(qp) = self.qps.get(index) else { continue };
            let uses = qp.init.send_cq == cq || qp.recv_cq() == cq;
            if uses && !matches!(qp.state(), QpState::Reset | QpState::Error) {
                self.raise(AsyncEvent::QpFatal(Qp(index)));
                self.fail(Qp(index));
            }
        }
    }

    /// Brings `handle` to the error state: flushes its queued requests, in order, sends first.
    pub fn fail(&mut self, handle: Qp) {
        let Some(qp) = self.qps.get_mut(handle.0) else { return };
        if qp.attr.state == QpState::Error {
            return;
        }
        qp.attr.state = QpState::Error;
        qp.attr.sq_draining = false;
        self.failed.push(handle);
        self.flush_sends(handle);
        self.flush_receives(handle);
        let srq = self.qps.get(handle.0).and_then(|qp| qp.init.srq);
        if srq.is_some() {
            self.raise(AsyncEvent::LastWqeReached(handle));
        }
    }

    /// A request of `handle` has failed: fails the queue pair, or only its send queue if it is not reliable.
    pub fn fail_sends(&mut self, handle: Qp) {
        let Some(qp) = self.qps.get_mut(handle.0) else { return };
        match qp.init.kind {
            QpKind::Rc | QpKind::XrcSend | QpKind::XrcRecv => self.fail(handle),
            QpKind::Uc | QpKind::Ud => {
                qp.attr.state = QpState::Sqe;
                qp.attr.sq_draining = false;
                self.failed.push(handle);
                self.flush_sends(handle);
            }
        }
    }

    /// Completes all sends in the queue as flushed.
    pub fn flush_sends(&mut self, handle: Qp) {
        while let Some(qp) = self.qps.get_mut(handle.0) {
            let Some(request) = qp.sends.get(qp.sends.head()) else {
                qp.requester.stop(qp.sends.head());
                return;
            };
            // Also requests that the peer has executed, and that only waited for their turn.
            let completion = sent(qp.qpn, request, WcStatus::Flushed);
            let cq = qp.init.send_cq;
            qp.sends.retire();
            self.complete(cq, completion);
        }
    }

    /// Completes all receives of the queue pair as flushed; those of a shared queue stay.
    pub fn flush_receives(&mut self, handle: Qp) {
        while let Some(qp) = self.qps.get_mut(handle.0) {
            if !qp.responder.holds_receive && !qp.receives.take(&mut qp.responder.receive) {
                return;
            }
            qp.responder.holds_receive = false;
            let completion = received(qp, qp.responder.receive.wr_id, WcStatus::Flushed);
            let cq = qp.recv_cq();
            self.complete(cq, completion);
        }
    }

    /// Gives the responder of `handle` the oldest receive that is posted for it, unless it holds one. False if there
    /// is none.
    pub fn hold_receive(&mut self, handle: Qp) -> bool {
        let Some(qp) = self.qps.get_mut(handle.0) else { return false };
        let responder = &mut qp.responder;
        if responder.holds_receive {
            return true;
        }
        let Some(srq) = qp.init.srq.or(responder.selected.map(|selected| selected.srq)) else {
            responder.holds_receive = qp.receives.take(&mut responder.receive);
            return responder.holds_receive;
        };
        let Some(queue) = self.srqs.get_mut(srq.0) else { return false };
        responder.holds_receive = queue.receives.take(&mut responder.receive);
        if responder.holds_receive && queue.fell_below_limit() {
            self.raise(AsyncEvent::SrqLimitReached(srq));
            return true;
        }
        responder.holds_receive
    }

    /// Stages one frame of `handle`, answers and requests in turn. False if there is none for now.
    pub fn next_frame(&mut self, handle: Qp, lookup: &LookupList, tx: &mut Tx) -> bool {
        let Some(qp) = self.qps.get_mut(handle.0) else { return false };
        if !qp.responder.owes_answers() {
            return self.request_frame(handle, lookup, tx);
        }
        qp.answers_first = !qp.answers_first;
        if qp.answers_first && self.answer_frame(handle, lookup, tx) {
            return true;
        }
        self.request_frame(handle, lookup, tx) || self.answer_frame(handle, lookup, tx)
    }

    /// The incarnation number of the queue pair `handle`; 0 if there is none.
    pub fn incarnation(&self, handle: Qp) -> u64 {
        self.qps.get(handle.0).map_or(0, |qp| qp.incarnation)
    }

    /// No XRC target takes receives from `srq` any more, which is about to end.
    pub fn deselect(&mut self, srq: Srq) {
        let all: Vec<u32> = self.qps.indices().collect();
        for index in all {
            let Some(qp) = self.qps.get_mut(index) else { continue };
            let is_it = |selected: &Selected| selected.srq == srq;
            let responder = &mut qp.responder;
            responder.named = responder.named.filter(|named| !is_it(named));
            if responder.selected.as_ref().is_some_and(is_it) {
                responder.selected = responder.named;
                responder.give_receive();
            }
        }
    }

    /// Number of queue pairs that use `srq`.
    pub fn users_of(&self, srq: Srq) -> usize {
        let users = self.qps.indices().filter_map(|index| self.qps.get(index));
        users.filter(|qp| qp.init.srq == Some(srq)).count()
    }
}

/// The completion of a send request of queue pair `qpn`.
#[inline]
pub(crate) fn sent(qpn: u32, request: &crate::send_queue::SendRequest, status: WcStatus) -> Wc {
    Wc {
        wr_id: request.wr_id,
        status,
        opcode: request.op.completes_as(),
        byte_len: request.length,
        qpn,
        solicited: status != WcStatus::Success,
        ..Wc::default()
    }
}

/// The completion of `rdma`, of `length` bytes, which never left.
#[inline]
pub(crate) fn sent_directly(qp: &QueuePair, rdma: &Rdma<'_>, length: u32) -> Wc {
    let opcode = if rdma.reads { WcOpcode::RdmaRead } else { WcOpcode::RdmaWrite };
    Wc { wr_id: rdma.wr_id, opcode, byte_len: length, qpn: qp.qpn, ..Wc::default() }
}

/// The completion of a receive; a successful one is filled in by the caller.
#[inline]
pub(crate) fn received(qp: &QueuePair, wr_id: u64, status: WcStatus) -> Wc {
    Wc {
        wr_id,
        status,
        opcode: WcOpcode::Receive,
        qpn: qp.qpn,
        src_qp: qp.attr.remote_qpn,
        slid: qp.peer.map_or(0, |peer| peer.vid.lid()),
        solicited: status != WcStatus::Success,
        ..Wc::default()
    }
}
