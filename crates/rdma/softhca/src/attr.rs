//! Attributes of queue pairs and shared receive queues, with the numbers of the verbs ABI.

use bitflags::bitflags;

use crate::handle::{Cq, Pd, Srq, Xrcd};
use crate::work::SendOp;

bitflags! {
    /// Access rights of a memory region, or of a QP's peer (`enum ibv_access_flags`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Access: u32 {
        /// Receives, READs and atomics may store here.
        const LOCAL_WRITE = 1;
        /// Peers may WRITE.
        const REMOTE_WRITE = 1 << 1;
        /// Peers may READ.
        const REMOTE_READ = 1 << 2;
        /// Peers may do atomics.
        const REMOTE_ATOMIC = 1 << 3;
        /// Memory windows may be bound to it.
        const MW_BIND = 1 << 4;
        /// Peers and work requests call its first byte 0.
        const ZERO_BASED = 1 << 5;
        /// A hint; ignored.
        const RELAXED_ORDERING = 1 << 20;
    }
}

bitflags! {
    /// Which fields of [`QpAttr`] count (`enum ibv_qp_attr_mask`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct QpAttrMask: u32 {
        /// `state`
        const STATE = 1;
        /// `current_state`
        const CUR_STATE = 1 << 1;
        /// `en_sqd_async_notify`
        const EN_SQD_ASYNC_NOTIFY = 1 << 2;
        /// `access`
        const ACCESS_FLAGS = 1 << 3;
        /// `pkey_index`
        const PKEY_INDEX = 1 << 4;
        /// `port`
        const PORT = 1 << 5;
        /// `qkey`
        const QKEY = 1 << 6;
        /// `address`
        const AV = 1 << 7;
        /// `path_mtu`
        const PATH_MTU = 1 << 8;
        /// `timeout`
        const TIMEOUT = 1 << 9;
        /// `retry_count`
        const RETRY_CNT = 1 << 10;
        /// `rnr_retry`
        const RNR_RETRY = 1 << 11;
        /// `rq_psn`
        const RQ_PSN = 1 << 12;
        /// `max_rd_atomic`
        const MAX_QP_RD_ATOMIC = 1 << 13;
        /// Alternate paths are not supported.
        const ALT_PATH = 1 << 14;
        /// `min_rnr_timer`
        const MIN_RNR_TIMER = 1 << 15;
        /// `sq_psn`
        const SQ_PSN = 1 << 16;
        /// `max_dest_rd_atomic`
        const MAX_DEST_RD_ATOMIC = 1 << 17;
        /// Path migration; only the state "migrated", which changes nothing.
        const PATH_MIG_STATE = 1 << 18;
        /// Resizing is not supported.
        const CAP = 1 << 19;
        /// `remote_qpn`
        const DEST_QPN = 1 << 20;
        /// Not supported.
        const RATE_LIMIT = 1 << 25;
    }
}

/// How a QP is connected to its peer (`enum ibv_qp_type`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QpKind {
    /// A reliable connection.
    #[default]
    Rc,
    /// An unreliable connection: SENDs and WRITEs only (and local operations), and a message that the peer cannot take
    /// is dropped silently. No message is lost on its way, not even in a move.
    Uc,
    /// Datagrams: SENDs of at most [`crate::limits::MTU`] bytes, each to the destination that it names.
    Ud,
    /// The initiator of an extended reliable connection: it sends, and names the shared receive queue for each message.
    XrcSend,
    /// The target of one: it receives into the queues that its peer names, and completes where they do.
    XrcRecv,
}

impl QpKind {
    /// True if requests are repeated until they are answered, or fail.
    #[must_use]
    #[inline]
    pub fn is_reliable(self) -> bool {
        matches!(self, Self::Rc | Self::XrcSend | Self::XrcRecv)
    }

    /// True if it has a receive queue, of its own or shared.
    #[must_use]
    pub fn receives(self) -> bool {
        !matches!(self, Self::XrcSend | Self::XrcRecv)
    }

    /// True if such QPs support `op`.
    #[must_use]
    #[inline]
    pub fn does(self, op: &SendOp) -> bool {
        use SendOp::{Datagram, Send, SendImm, Write, WriteImm};
        match self {
            Self::Rc | Self::XrcSend => !matches!(op, Datagram { .. }),
            Self::Uc => op.is_local() || matches!(op, Send | SendImm(_) | Write { .. } | WriteImm { .. }),
            Self::Ud => matches!(op, Datagram { .. }),
            Self::XrcRecv => false,
        }
    }
}

/// A QP's state (`enum ibv_qp_state`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum QpState {
    /// Fresh.
    #[default]
    Reset = 0,
    /// Receives may be posted.
    Init = 1,
    /// Ready to receive.
    Rtr = 2,
    /// Ready to send.
    Rts = 3,
    /// The send queue drains or is drained.
    Sqd = 4,
    /// A send has failed; receives go on. Never that of a reliable connection.
    Sqe = 5,
    /// Everything is flushed.
    Error = 6,
}

impl QpState {
    /// The state that `number` stands for in `enum ibv_qp_state`.
    #[must_use]
    pub fn from_abi(number: u32) -> Option<Self> {
        use QpState::{Error, Init, Reset, Rtr, Rts, Sqd, Sqe};
        [Reset, Init, Rtr, Rts, Sqd, Sqe, Error].get(number as usize).copied()
    }
}

/// Where a peer is (`struct ibv_ah_attr`). Fields that choose no destination are kept for queries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AddressVector {
    /// The peer's GID, if the address has a global route.
    pub global: Option<GlobalRoute>,
    /// The peer's LID.
    pub dlid: u16,
    /// Service level.
    pub sl: u8,
    /// Source path bits.
    pub src_path_bits: u8,
    /// Static rate.
    pub static_rate: u8,
    /// Port, from 1.
    pub port: u8,
}

/// A global route (`struct ibv_global_route`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GlobalRoute {
    /// The peer's GID in network order.
    pub dgid: [u8; 16],
    /// Flow label.
    pub flow_label: u32,
    /// Index of the own GID; 0.
    pub sgid_index: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
}

/// A queue pair's capacities (`struct ibv_qp_cap`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpCaps {
    /// Work requests in the send queue.
    pub max_send_wr: u32,
    /// Work requests in the receive queue.
    pub max_recv_wr: u32,
    /// Elements in a send.
    pub max_send_sge: u32,
    /// Elements in a receive.
    pub max_recv_sge: u32,
    /// Inline bytes in a send.
    pub max_inline: u32,
}

/// The parameters of a new QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpInit {
    /// Its connection.
    pub kind: QpKind,
    /// Protection domain.
    pub pd: Pd,
    /// Where sends complete.
    pub send_cq: Cq,
    /// Where receives complete; [`Cq::NONE`] for an XRC initiator.
    pub recv_cq: Cq,
    /// The shared queue from which it takes receives, instead of a queue of its own.
    pub srq: Option<Srq>,
    /// The domain of an XRC target, which has neither protection domain nor completion queues ([`Pd::NONE`],
    /// [`Cq::NONE`]).
    pub xrcd: Option<Xrcd>,
    /// Wanted; at least as much is granted.
    pub caps: QpCaps,
    /// Every send work request completes with an entry in the CQ.
    pub sq_sig_all: bool,
}

/// A QP's attributes (`struct ibv_qp_attr`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpAttr {
    /// The state to come to; or, queried, the state it is in.
    pub state: QpState,
    /// The state that the caller takes it to be in.
    pub current_state: QpState,
    /// Path MTU as in `enum ibv_mtu`; kept for queries, nothing is cut by it.
    pub path_mtu: u32,
    /// The first packet sequence number received.
    pub rq_psn: u32,
    /// The first packet sequence number sent.
    pub sq_psn: u32,
    /// The peer's QPN, as applications know it.
    pub remote_qpn: u32,
    /// The access rights that the peer has through this QP.
    pub access: Access,
    /// Where the peer is.
    pub address: AddressVector,
    /// Index in the partition table; 0.
    pub pkey_index: u16,
    /// Port, 1.
    pub port: u8,
    /// Raise [`crate::AsyncEvent::SendQueueDrained`].
    pub en_sqd_async_notify: bool,
    /// Queried: the send queue is still draining.
    pub sq_draining: bool,
    /// Outstanding READs and atomics as requester.
    pub max_rd_atomic: u8,
    /// The same as responder.
    pub max_dest_rd_atomic: u8,
    /// The pause that the peer makes when no receive is ready, as InfiniBand encodes it.
    pub min_rnr_timer: u8,
    /// 4.096 µs · 2^timeout without an answer make a retry; 0: wait for ever.
    pub timeout: u8,
    /// Retries before [`crate::WcStatus::RetryExceeded`].
    pub retry_count: u8,
    /// Retries before [`crate::WcStatus::RnrRetryExceeded`]; 7: for ever.
    pub rnr_retry: u8,
    /// The Q_Key that a datagram must carry.
    pub qkey: u32,
}

impl QpAttr {
    /// Time-outs before [`crate::WcStatus::RetryExceeded`].
    pub fn pauses(&self) -> u8 {
        self.retry_count + 1
    }
}

/// How a memory window is bound (`enum ibv_mw_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowKind {
    /// To its protection domain. A new binding takes the place of the one before.
    One,
    /// To the queue pair that binds it as well, until it is invalidated (the specification's type 2B).
    Two,
}

/// A shared receive queue's attributes (`struct ibv_srq_attr`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SrqAttr {
    /// Receives that it holds.
    pub max_wr: u32,
    /// Elements in a receive.
    pub max_sge: u32,
    /// Below this many receives an event is raised, once; 0: none.
    pub limit: u32,
}
