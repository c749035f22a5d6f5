//! Work requests and completions, with the numbers of the verbs ABI.

use crate::attr::{Access, QpCaps};
use crate::errno::Errno;
use crate::handle::Ah;

/// A piece of local memory (`struct ibv_sge`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sge {
    /// Where it starts.
    pub addr: u64,
    /// Its bytes.
    pub length: u32,
    /// The key of the region in which it lies.
    pub lkey: u32,
}

/// A send work request.
#[derive(Clone, Copy, Debug)]
pub struct SendWr<'a> {
    /// The application's name for it.
    pub wr_id: u64,
    /// The operation.
    pub op: SendOp,
    /// Complete it with an entry in the send CQ. Implied where the QP has `sq_sig_all`.
    pub signaled: bool,
    /// Start it only after earlier READs and atomics of its QP are complete.
    pub fence: bool,
    /// Raise a solicited event at the receiver.
    pub solicited: bool,
    /// Through an XRC initiator: the peer's shared receive queue, as applications know it. Else ignored.
    pub srq_number: u32,
    /// Where its bytes come from or go to.
    pub payload: Payload<'a>,
}

impl SendWr<'_> {
    /// Bytes of the message, if this is a request that a queue pair with `caps` takes.
    pub(crate) fn check(&self, caps: &QpCaps) -> Result<u32, Errno> {
        let (Payload::Sges(pieces) | Payload::Inline(pieces)) = self.payload;
        let is_inline = matches!(self.payload, Payload::Inline(_));
        let length = self.payload.length(caps).ok_or(Errno::INVALID)?;
        let is_atomic = matches!(self.op, SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. });
        let is_query = is_atomic || matches!(self.op, SendOp::Read { .. });
        let has_word = || length == 8 && pieces.iter().any(|sge| sge.length == 8);
        if (is_inline && (is_query || self.op.is_local())) || (is_atomic && !has_word()) {
            return Err(Errno::INVALID);
        }
        // Past the largest message the request completes with an error, as on hardware.
        Ok(u32::try_from(length).unwrap_or(u32::MAX))
    }

    /// The same, if it is a WRITE or READ without more.
    #[inline]
    pub(crate) fn rdma(&self) -> Option<Rdma<'_>> {
        let (va, rkey, reads) = match self.op {
            SendOp::Write { va, rkey } => (va, rkey, false),
            SendOp::Read { va, rkey } => (va, rkey, true),
            _ => return None,
        };
        Some(Rdma { wr_id: self.wr_id, va, rkey, reads, signaled: self.signaled, payload: self.payload })
    }

    /// The same, if it is a SEND that does nothing else.
    #[inline]
    pub(crate) fn send(&self) -> Option<PlainSend<'_>> {
        let imm = match self.op {
            SendOp::Send => None,
            SendOp::SendImm(imm) => Some(imm),
            _ => return None,
        };
        let Self { wr_id, signaled, fence, solicited, payload, .. } = *self;
        Some(PlainSend { wr_id, imm, signaled, fence, solicited, payload })
    }
}

/// The parts of a WRITE or READ that tell whether it may be done at once.
#[derive(Clone, Copy, Debug)]
pub struct Rdma<'a> {
    /// The application's name for it.
    pub wr_id: u64,
    /// Where in the peer's region.
    pub va: u64,
    /// The region's key.
    pub rkey: u32,
    /// A READ.
    pub reads: bool,
    /// As in [`SendWr`].
    pub signaled: bool,
    /// As in [`SendWr`].
    pub payload: Payload<'a>,
}

/// The parts of a SEND that tell whether it may leave at once.
#[derive(Clone, Copy, Debug)]
pub struct PlainSend<'a> {
    /// The application's name for it.
    pub wr_id: u64,
    /// Immediate data.
    pub imm: Option<u32>,
    /// As in [`SendWr`].
    pub signaled: bool,
    /// As in [`SendWr`].
    pub fence: bool,
    /// As in [`SendWr`].
    pub solicited: bool,
    /// As in [`SendWr`].
    pub payload: Payload<'a>,
}

/// Local memory of a send work request.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// Gathered from (scattered to, for READ and atomics) registered memory.
    Sges(&'a [Sge]),
    /// Copied by `post_send` from these pieces of memory, regardless of registration: address and bytes; keys
    /// are ignored. They must be readable during the call.
    Inline(&'a [Sge]),
}

impl Payload<'_> {
    /// Its bytes, if a queue pair with `caps` takes it.
    pub(crate) fn length(&self, caps: &QpCaps) -> Option<u64> {
        let bytes = |pieces: &[Sge]| pieces.iter().map(|sge| u64::from(sge.length)).sum();
        match self {
            // Before the pieces are read: a program that asks for too many may not have them.
            Self::Sges(pieces) => (pieces.len() <= caps.max_send_sge as usize).then(|| bytes(pieces)),
            Self::Inline(pieces) => Some(bytes(pieces)).filter(|length| *length <= caps.max_inline.into()),
        }
    }
}

/// The operation of a send work request. Immediate data is carried as the 32 bits that the application
/// stored (network order by convention), never swapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOp {
    /// Into the peer's next receive.
    Send,
    /// The same with immediate data.
    SendImm(u32),
    /// The same, and invalidates the peer's memory window that this key names.
    SendInvalidate(u32),
    /// Into the peer's memory.
    Write {
        /// Where in the peer's region.
        va: u64,
        /// The region's key.
        rkey: u32,
    },
    /// The same, and completes the peer's next receive.
    WriteImm {
        /// Where in the peer's region.
        va: u64,
        /// The region's key.
        rkey: u32,
        /// Immediate data.
        imm: u32,
    },
    /// From the peer's memory.
    Read {
        /// Where in the peer's region.
        va: u64,
        /// The region's key.
        rkey: u32,
    },
    /// Stores `swap` in the peer's memory if it held `compare`; returns the former value.
    CompareSwap {
        /// Where in the peer's region; 8-byte aligned.
        va: u64,
        /// The region's key.
        rkey: u32,
        /// The expected value.
        compare: u64,
        /// The new value.
        swap: u64,
    },
    /// Adds to the peer's memory; returns the former value.
    FetchAdd {
        /// Where in the peer's region; 8-byte aligned.
        va: u64,
        /// The region's key.
        rkey: u32,
        /// The summand.
        add: u64,
    },
    /// Binds a memory window. Done here, once all before it is.
    Bind(Binding),
    /// Invalidates the memory window of the own device that this key names; likewise.
    LocalInvalidate(u32),
    /// Into the next receive of a datagram QP.
    Datagram {
        /// Where that QP is.
        ah: Ah,
        /// Its number, as applications know it.
        qpn: u32,
        /// The access that it grants.
        qkey: u32,
        /// Immediate data.
        imm: Option<u32>,
    },
}

/// The binding of a memory window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binding {
    /// The window's new key: one of the 256 that begin with the one it was allocated with.
    pub key: u32,
    /// The key of the region; 0 for none, which ends the binding of a window of type 1.
    pub lkey: u32,
    /// The access rights of peers, and whether they call the first byte 0.
    pub access: Access,
    /// Where in the region.
    pub va: u64,
    /// Bytes.
    pub length: u64,
}

impl SendOp {
    /// The opcode that its completion reports.
    #[inline]
    pub(crate) fn completes_as(&self) -> WcOpcode {
        match self {
            Self::Send | Self::SendImm(_) | Self::SendInvalidate(_) | Self::Datagram { .. } => WcOpcode::Send,
            Self::Write { .. } | Self::WriteImm { .. } => WcOpcode::RdmaWrite,
            Self::Read { .. } => WcOpcode::RdmaRead,
            Self::CompareSwap { .. } => WcOpcode::CompareSwap,
            Self::FetchAdd { .. } => WcOpcode::FetchAdd,
            Self::Bind(_) => WcOpcode::Bind,
            Self::LocalInvalidate(_) => WcOpcode::LocalInvalidate,
        }
    }

    /// True for operations that no peer sees.
    #[inline]
    pub(crate) fn is_local(&self) -> bool {
        matches!(self, Self::Bind(_) | Self::LocalInvalidate(_))
    }
}

/// The result of posting a send work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Posted {
    /// Its bytes are where they belong, or on their way.
    Done,
    /// It waits for [`crate::Device::flush_doorbell`].
    Queued,
}

/// How a work request ended (`enum ibv_wc_status`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum WcStatus {
    /// Done.
    #[default]
    Success = 0,
    /// The message is longer than the receive, or than the device carries.
    LocalLength = 1,
    /// The QP could not do it.
    LocalQpOperation = 2,
    /// A local key, range or access right is wrong.
    LocalProtection = 4,
    /// The QP is in the error state, or came there before this request's turn.
    Flushed = 5,
    /// A memory window could not be bound or invalidated.
    WindowBind = 6,
    /// The memory that a WRITE with immediate data was arriving in went away under it; of its receive.
    LocalAccess = 8,
    /// The responder found the request malformed or too long for its receive.
    RemoteInvalidRequest = 9,
    /// A remote key, range or access right is wrong.
    RemoteAccess = 10,
    /// The responder could not complete it.
    RemoteOperation = 11,
    /// The peer did not answer.
    RetryExceeded = 12,
    /// The peer had no receive ready too often.
    RnrRetryExceeded = 13,
}

/// The operation that completed (`enum ibv_wc_opcode`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum WcOpcode {
    /// A SEND.
    #[default]
    Send = 0,
    /// An RDMA WRITE.
    RdmaWrite = 1,
    /// An RDMA READ.
    RdmaRead = 2,
    /// A compare and swap.
    CompareSwap = 3,
    /// A fetch and add.
    FetchAdd = 4,
    /// A memory window was bound.
    Bind = 5,
    /// A memory window was invalidated.
    LocalInvalidate = 6,
    /// A receive.
    Receive = 128,
    /// A receive that a WRITE with immediate data consumed.
    ReceiveRdmaWithImm = 129,
}

/// A completion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wc {
    /// The work request's `wr_id`.
    pub wr_id: u64,
    /// How it ended. Only `wr_id`, `status`, `qpn` and `vendor_error` are valid unless it is
    /// [`WcStatus::Success`].
    pub status: WcStatus,
    /// The operation.
    pub opcode: WcOpcode,
    /// Says more about an error; no meaning across versions.
    pub vendor_error: u32,
    /// Bytes received or read.
    pub byte_len: u32,
    /// Immediate data, as the peer's application stored it.
    pub imm: Option<u32>,
    /// The key of the memory window that the peer has invalidated.
    pub invalidated: Option<u32>,
    /// The local QP, as applications know it.
    pub qpn: u32,
    /// The remote QP, as applications know it.
    pub src_qp: u32,
    /// The peer's LID.
    pub slid: u16,
    /// The service level of a datagram.
    pub sl: u8,
    /// When it completed, by the clock of a CQ that has one; else 0.
    pub timestamp: u64,
    /// The peer asked for a solicited event, or the status is an error.
    pub solicited: bool,
    /// A datagram that came with a global route: its first 40 bytes are a GRH.
    pub has_route: bool,
}
