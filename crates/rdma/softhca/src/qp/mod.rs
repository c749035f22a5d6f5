//! Queue pairs.
//!
//! ```text
//!          ┌───────┐ pkey, port, access ┌──────┐ peer, PSN, …  ┌─────┐ timers, PSN ┌─────┐
//!  create ▶│ RESET ├───────────────────▶│ INIT ├──────────────▶│ RTR ├────────────▶│ RTS │◀─┐
//!          └───────┘                    └──────┘               └─────┘             └──┬──┘  │
//!              ▲                       may post                executes            may│     │
//!              │ from every state      receives                requests            send     │
//!              │                                                                   ┌──▼──┐  │
//!          ┌───┴───┐ by modify_qp from every state but RESET; by itself when a     │ SQD ├──┘
//!          │ ERROR │◀ request fails, or a CQ overruns. Everything is flushed.      └─────┘
//!          └───────┘                                                       starts no new sends
//! ```
//!
//! An unreliable connection, or a datagram queue pair, goes from RTS to SQE when a request fails: its sends are flushed,
//! and it continues to receive.
//!
//! * [`transition`]: the checked table.
//! * `requester`, `responder`: the two halves of a connection.

pub(crate) mod transition;

use std::time::Duration;

use fabric::ProcessId;
use verbs::LookupList;

use crate::attr::{QpAttr, QpAttrMask, QpInit, QpState};
use crate::errno::Errno;
use crate::handle::{Cq, Pd};
use crate::limits::Limits;
use crate::link::tx::COPIED;
use crate::memory_window::Bearer;
use crate::receive_queue::ReceiveQueue;
use crate::requester::{Requester, addressed};
use crate::responder::place::Responder;
use crate::send_queue::SendQueue;
use crate::share::direct_mapping::DirectMappings;
use crate::wire::{Header, Opcode};

/// A queue pair.
pub(crate) struct QueuePair {
    /// With the capacities that were granted.
    pub init: QpInit,
    pub attr: QpAttr,
    /// The number that applications see.
    pub qpn: u32,
    /// The number of its incarnation: each reset begins another.
    pub incarnation: u64,
    /// An earlier incarnation was connected, or a message arrived before it was ready.
    pub has_past: bool,
    /// Messages may be for its previous incarnation until the peer has answered the barrier.
    pub awaits_barrier: bool,
    /// The process at the other end, from RTR on. `None` if the address leads nowhere.
    pub peer: Option<ProcessId>,
    /// The link to that process, by index.
    pub link: Option<usize>,
    /// Its place among the queue pairs of that link.
    pub place: usize,
    /// Its direct mappings of the neighbour's memory.
    pub direct_mappings: DirectMappings,
    pub sends: SendQueue,
    pub receives: ReceiveQueue,
    pub requester: Requester,
    pub responder: Responder,
    /// It is in its link's queue of queue pairs with something to transmit.
    pub scheduled: bool,
    /// Answers are transmitted before requests next time.
    pub answers_first: bool,
    /// The application has been notified that communication is established.
    pub established: bool,
    /// It had no receive posted for so long that datagrams for it are dropped.
    pub is_dry: bool,
}

impl QueuePair {
    pub fn new(init: QpInit, qpn: u32, incarnation: u64) -> Self {
        let caps = init.caps;
        Self {
            init,
            attr: QpAttr { port: 1, ..QpAttr::default() },
            qpn,
            incarnation,
            has_past: false,
            awaits_barrier: false,
            peer: None,
            link: None,
            place: 0,
            direct_mappings: DirectMappings::default(),
            sends: SendQueue::new(caps.max_send_wr),
            receives: ReceiveQueue::new(caps.max_recv_wr, caps.max_recv_sge),
            requester: Requester::default(),
            responder: Responder::default(),
            scheduled: false,
            answers_first: false,
            established: false,
            is_dry: false,
        }
    }

    pub fn state(&self) -> QpState {
        self.attr.state
    }

    /// The identity under which its requests, and its peer's, name memory.
    #[inline]
    pub fn bearer(&self) -> Bearer {
        let selected = self.responder.named.or(self.responder.selected);
        let pd = selected.map_or(self.init.pd, |selected| selected.pd);
        Bearer { pd, incarnation: self.incarnation }
    }

    /// The domain in which its receives name memory, unless they are a shared queue's.
    pub fn receive_pd(&self) -> Pd {
        self.responder.selected.map_or(self.init.pd, |selected| selected.pd)
    }

    /// Where its receives complete.
    #[inline]
    pub fn recv_cq(&self) -> Cq {
        self.responder.selected.map_or(self.init.recv_cq, |selected| selected.cq)
    }

    /// True in the states in which requests of the peer are executed.
    #[inline]
    pub fn executes(&self) -> bool {
        matches!(self.attr.state, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe)
    }

    /// True in the states in which requests may be in flight.
    #[inline]
    pub fn requests(&self) -> bool {
        matches!(self.attr.state, QpState::Rts | QpState::Sqd)
    }

    /// True if SQD has been reached and nothing that was started is unfinished.
    pub fn is_drained(&self) -> bool {
        self.requester.sent <= self.sends.head()
    }

    /// True if there may be something to transmit.
    pub fn has_more(&self) -> bool {
        self.requester.next < self.sends.end()
            || self.requester.owes_resync()
            || self.responder.owes_answers()
    }

    /// True if all before message `msn` is over, and it has not been transmitted.
    pub fn is_next(&self, msn: u64) -> bool {
        msn == self.sends.head() && msn == self.requester.sent
    }

    /// True if requests are in flight, and the queued ones are not yet worth a write.
    pub fn may_linger(&self) -> bool {
        /// Requests in one write; more gain little.
        const COMPANY: u64 = 32;
        let (next, end) = (self.requester.next, self.sends.end());
        let is_short = |msn| self.sends.get(msn).is_some_and(|request| request.length <= COPIED);
        self.requests() && self.sends.head() < next && end - next < COMPANY && is_short(end - 1)
    }

    /// True if the last request takes so long to send that looking at links as well takes hardly more.
    pub fn has_long_request(&self) -> bool {
        const LONG: u32 = 16 * 1024;
        let last = self.sends.end().checked_sub(1).and_then(|last| self.sends.get(last));
        last.is_some_and(|request| request.length >= LONG && !request.is_query())
    }

    /// The attributes that `modify_qp` changes, without the effects on queues and peers.
    pub fn check(&self, attr: &QpAttr, mask: QpAttrMask, limits: &Limits) -> Result<QpState, Errno> {
        transition::check(self.init.kind, self.attr.state, attr, mask, limits)
    }

    /// Takes over the attributes in `mask`.
    pub fn assign(&mut self, attr: &QpAttr, mask: QpAttrMask) {
        macro_rules! assign {
            ($($bit:ident: $($field:ident),+;)*) => {$(
                if mask.contains(QpAttrMask::$bit) { $(self.attr.$field = attr.$field;)+ }
            )*};
        }
        assign! {
            ACCESS_FLAGS: access;
            PKEY_INDEX: pkey_index;
            PORT: port;
            AV: address;
            PATH_MTU: path_mtu;
            TIMEOUT: timeout;
            RETRY_CNT: retry_count;
            RNR_RETRY: rnr_retry;
            RQ_PSN: rq_psn;
            SQ_PSN: sq_psn;
            MAX_QP_RD_ATOMIC: max_rd_atomic;
            MAX_DEST_RD_ATOMIC: max_dest_rd_atomic;
            MIN_RNR_TIMER: min_rnr_timer;
            DEST_QPN: remote_qpn;
            EN_SQD_ASYNC_NOTIFY: en_sqd_async_notify;
            QKEY: qkey;
        }
        self.attr.rq_psn &= PSN_MASK;
        self.attr.sq_psn &= PSN_MASK;
    }

    /// Back to RESET: empty queues, no connection.
    pub fn reset(&mut self, incarnation: u64) {
        let has_past = self.has_past || self.peer.is_some();
        *self = Self { has_past, ..Self::new(self.init, self.qpn, incarnation) };
    }

    /// True if the peer may be asked for direct mappings: it cannot take the request for one of an earlier incarnation.
    pub fn may_ask(&self) -> bool {
        !self.has_past || self.requester.is_heard(u64::from(self.attr.sq_psn))
    }

    /// The BARRIER that the peer must answer before this incarnation sends or accepts messages.
    pub fn ask_for_barrier(&self, lookup: &LookupList) -> Header {
        Header { imm: self.barrier(), ..addressed(self, lookup, Opcode::Barrier) }
    }

    /// The number that barriers of this incarnation carry.
    pub fn barrier(&self) -> u32 {
        self.incarnation as u32
    }

    /// The pause before a request that found no ready peer is sent again: 4.096 µs · 2^timeout.
    pub fn retry_pause(&self) -> Duration {
        /// Where the application asked to wait for ever.
        const UNTIMED: Duration = Duration::from_millis(100);
        match self.attr.timeout {
            0 => UNTIMED,
            timeout => Duration::from_nanos(4096 << timeout),
        }
    }
}

const PSN_MASK: u32 = 0x00ff_ffff;

/// The pause that timer `code` of a receiver-not-ready NAK asks for.
pub(crate) fn rnr_pause(code: u32) -> Duration {
    /// Hundredths of a millisecond, by code (InfiniBand, table 45).
    const PAUSES: [u32; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
        3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];
    let hundredths = PAUSES[(code & 31) as usize];
    Duration::from_micros(u64::from(hundredths) * 10)
}
