//! Reliable connections: creation, connection, posting.

use std::ptr::NonNull;

use anyhow::{Context as _, Result};
use libc::c_int;
use serde::{Deserialize, Serialize};
use verbs_abi as abi;
use verbs_abi::constants::send_flags::{IBV_SEND_INLINE, IBV_SEND_SIGNALED};
use verbs_abi::constants::{access, qp_type, wr_opcode};

use super::queues::{CompletionQueue, SharedReceives};
use super::{Device, PORT, none, not_null, success};
use crate::workload::Kind;

/// `enum ibv_qp_state`.
mod state {
    pub(super) const INIT: u32 = 1;
    pub(super) const RTR: u32 = 2;
    pub(super) const RTS: u32 = 3;
}

/// `enum ibv_qp_attr_mask`, combined as each transition of a reliable connection requires.
mod mask {
    const STATE: i32 = 1;
    const ACCESS: i32 = 1 << 3;
    const PKEY_INDEX: i32 = 1 << 4;
    const PORT: i32 = 1 << 5;
    const AV: i32 = 1 << 7;
    const PATH_MTU: i32 = 1 << 8;
    const TIMEOUT: i32 = 1 << 9;
    const RETRY_CNT: i32 = 1 << 10;
    const RNR_RETRY: i32 = 1 << 11;
    const RQ_PSN: i32 = 1 << 12;
    const MAX_RD_ATOMIC: i32 = 1 << 13;
    const MIN_RNR_TIMER: i32 = 1 << 15;
    const SQ_PSN: i32 = 1 << 16;
    const MAX_DEST_RD_ATOMIC: i32 = 1 << 17;
    const DEST_QPN: i32 = 1 << 20;

    pub(super) const TO_INIT: i32 = STATE | PKEY_INDEX | PORT | ACCESS;
    pub(super) const TO_RTR: i32 =
        STATE | AV | PATH_MTU | DEST_QPN | RQ_PSN | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER;
    pub(super) const TO_RTS: i32 = STATE | TIMEOUT | RETRY_CNT | RNR_RETRY | SQ_PSN | MAX_RD_ATOMIC;
}

/// READs and atomics outstanding per queue pair.
const MAX_READS: i32 = 16;
/// 4.096 µs × 2^14 = 67 ms until an unacknowledged packet is sent again.
const ACK_TIMEOUT: u8 = 14;
/// 0.64 ms until a message that found no receive is sent again.
const RNR_TIMER: u8 = 12;
/// Seven retries; for receiver-not-ready that means for ever.
const RETRIES: u8 = 7;
/// `IBV_MTU_1024`.
const PATH_MTU: u32 = 3;

/// Where a queue pair is, for its peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Address {
    /// The port's LID; 0 if it has none.
    pub lid: u16,
    /// The port's GID.
    pub gid: [u8; 16],
    /// The QP's number.
    pub qpn: u32,
    /// The first packet's sequence number.
    pub psn: u32,
}

/// A receive to post.
#[derive(Clone, Copy, Debug)]
pub struct Receive {
    /// Its identifier.
    pub wr_id: u64,
    /// Where the message goes.
    pub address: u64,
    /// The room there.
    pub length: u32,
    /// The first bytes that get a scatter/gather entry of their own; at most `length`.
    pub split: u32,
    /// The region's key.
    pub lkey: u32,
}

/// The target of a one-sided operation.
#[derive(Clone, Copy, Debug, Default)]
pub struct Target {
    /// The peer's address.
    pub address: u64,
    /// The peer's key.
    pub rkey: u32,
    /// Compare-and-swap: the expected value. Fetch-and-add: the summand.
    pub compare_add: u64,
    /// Compare-and-swap: the new value.
    pub swap: u64,
}

/// A send to post.
#[derive(Clone, Copy, Debug)]
pub struct Send {
    /// Its identifier.
    pub wr_id: u64,
    /// The operation.
    pub kind: Kind,
    /// The local buffer.
    pub local: Receive,
    /// The peer's memory.
    pub target: Target,
    /// Immediate data, in host byte order.
    pub immediate: u32,
    /// Whether a completion is asked for.
    pub signaled: bool,
    /// Whether the bytes are copied at once.
    pub inline: bool,
}

/// A reliable connection.
pub struct QueuePair {
    pair: NonNull<abi::ibv_qp>,
    sends: Vec<abi::ibv_send_wr>,
    parts: Vec<[abi::ibv_sge; 2]>,
    receives: ReceiveList,
    device: Device,
}

/// The sizes of a queue pair.
#[derive(Clone, Copy, Debug)]
pub struct Capacity {
    /// Outstanding sends.
    pub sends: usize,
    /// Its own outstanding receives.
    pub receives: usize,
    /// Bytes inline.
    pub inline: u32,
}

impl QueuePair {
    /// A queue pair that can be connected.
    ///
    /// # Errors
    /// If the device refuses.
    pub fn new(
        device: &Device,
        (send_queue, receive_queue): (&CompletionQueue, &CompletionQueue),
        shared: Option<&SharedReceives>,
        capacity: Capacity,
    ) -> Result<Self> {
        let mut wanted = abi::ibv_qp_init_attr {
            qp_context: none(),
            send_cq: send_queue.raw(),
            recv_cq: receive_queue.raw(),
            srq: shared.map_or_else(none, SharedReceives::raw),
            cap: abi::ibv_qp_cap {
                max_send_wr: u32::try_from(capacity.sends)?,
                max_recv_wr: u32::try_from(capacity.receives)?,
                max_send_sge: 2,
                max_recv_sge: 2,
                max_inline_data: capacity.inline,
            },
            qp_type: qp_type::IBV_QPT_RC,
            sq_sig_all: 0,
        };
        // SAFETY: the domain and the queues are live, and the attributes are valid for the call.
        let pair = unsafe { (device.functions().ibv_create_qp)(device.domain(), &raw mut wanted) };
        let pair = not_null(pair, &format!("ibv_create_qp with {capacity:?}"))?;
        let device = device.clone();
        Ok(Self { pair, sends: Vec::new(), parts: Vec::new(), receives: ReceiveList::default(), device })
    }

    /// The QP's number.
    #[must_use]
    pub fn number(&self) -> u32 {
        // SAFETY: the queue pair lives as long as `self`.
        unsafe { (*self.pair.as_ptr()).qp_num }
    }

    /// Brings the queue pair to the state in which receives can be posted.
    ///
    /// # Errors
    /// If the device refuses.
    pub fn initialise(&mut self) -> Result<()> {
        let mut attributes = blank();
        attributes.qp_state = state::INIT;
        attributes.port_num = PORT;
        attributes.qp_access_flags = access::IBV_ACCESS_REMOTE_WRITE
            | access::IBV_ACCESS_REMOTE_READ
            | access::IBV_ACCESS_REMOTE_ATOMIC;
        self.modify(&mut attributes, mask::TO_INIT)
    }

    /// Connects to `peer`, with `psn` as the first packet's sequence number.
    ///
    /// # Errors
    /// If the device refuses.
    pub fn connect(&mut self, psn: u32, peer: &Address) -> Result<()> {
        let attributes = self.device.attributes();
        let reads = MAX_READS.min(attributes.max_qp_rd_atom).min(attributes.max_qp_init_rd_atom);
        let reads = u8::try_from(reads).unwrap_or(1);
        let mut receive = blank();
        receive.qp_state = state::RTR;
        receive.path_mtu = PATH_MTU;
        receive.dest_qp_num = peer.qpn;
        receive.rq_psn = peer.psn;
        receive.max_dest_rd_atomic = reads;
        receive.min_rnr_timer = RNR_TIMER;
        receive.ah_attr = route(peer);
        self.modify(&mut receive, mask::TO_RTR)?;
        let mut send = blank();
        send.qp_state = state::RTS;
        send.timeout = ACK_TIMEOUT;
        send.retry_cnt = RETRIES;
        send.rnr_retry = RETRIES;
        send.sq_psn = psn;
        send.max_rd_atomic = reads;
        self.modify(&mut send, mask::TO_RTS)
    }

    fn modify(&mut self, attributes: &mut abi::ibv_qp_attr, mask: i32) -> Result<()> {
        // SAFETY: the queue pair is live, and the attributes are valid for the call.
        let code = unsafe { (self.device.functions().ibv_modify_qp)(self.pair.as_ptr(), attributes, mask) };
        success(code, &format!("ibv_modify_qp to state {}", attributes.qp_state))
    }

    /// Posts `receives` in one list.
    ///
    /// # Errors
    /// If the device refuses.
    pub fn post_receives(&mut self, receives: &[Receive]) -> Result<()> {
        let post = self.device.table().post_recv.context("the context has no post_recv")?;
        let first = self.receives.build(receives);
        let mut bad = none();
        // SAFETY: the list is well-formed, and its buffers are registered until the pair is gone.
        success(unsafe { post(self.pair.as_ptr(), first, &raw mut bad) }, "ibv_post_recv")
    }

    /// Posts `sends` in one list.
    ///
    /// # Errors
    /// If the device refuses.
    pub fn post_sends(&mut self, sends: &[Send]) -> Result<()> {
        let post = self.device.table().post_send.context("the context has no post_send")?;
        self.parts.clear();
        self.parts.extend(sends.iter().map(|send| send.local.parts()));
        self.sends.clear();
        for (send, parts) in sends.iter().zip(&mut self.parts) {
            self.sends.push(work_request(send, parts));
        }
        let first = self.sends.as_mut_ptr();
        for at in 1..self.sends.len() {
            // SAFETY: both are elements of the vector, which does not grow any more.
            unsafe { (*first.add(at - 1)).next = first.add(at) };
        }
        let mut bad = none();
        // SAFETY: the list is well-formed, and its buffers are registered until the pair is gone.
        success(unsafe { post(self.pair.as_ptr(), first, &raw mut bad) }, "ibv_post_send")
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // SAFETY: the queue pair is not used afterwards.
        unsafe { (self.device.functions().ibv_destroy_qp)(self.pair.as_ptr()) };
    }
}

impl Receive {
    /// One or two scatter/gather entries; the second one may be empty.
    fn parts(&self) -> [abi::ibv_sge; 2] {
        let split = self.split.min(self.length);
        [
            abi::ibv_sge { addr: self.address, length: split, lkey: self.lkey },
            abi::ibv_sge {
                addr: self.address + u64::from(split),
                length: self.length - split,
                lkey: self.lkey,
            },
        ]
    }
}

fn used(parts: &[abi::ibv_sge; 2]) -> c_int {
    parts.iter().filter(|part| part.length > 0).count() as c_int
}

fn work_request(send: &Send, parts: &mut [abi::ibv_sge; 2]) -> abi::ibv_send_wr {
    // SAFETY: the structure is plain old data, for which zeroes are valid.
    let mut request: abi::ibv_send_wr = unsafe { std::mem::zeroed() };
    request.wr_id = send.wr_id;
    request.num_sge = used(parts);
    request.sg_list = parts.as_mut_ptr();
    request.opcode = opcode(send.kind);
    request.imm_data = send.immediate.to_be();
    request.send_flags = if send.signaled { IBV_SEND_SIGNALED } else { 0 };
    request.send_flags |= if send.inline { IBV_SEND_INLINE } else { 0 };
    let Target { address: remote_addr, rkey, compare_add, swap } = send.target;
    request.wr = if send.kind.is_atomic() {
        abi::ibv_send_wr_target { atomic: abi::ibv_wr_atomic { remote_addr, compare_add, swap, rkey } }
    } else {
        abi::ibv_send_wr_target { rdma: abi::ibv_wr_rdma { remote_addr, rkey } }
    };
    request
}

fn opcode(kind: Kind) -> u32 {
    match kind {
        Kind::Send => wr_opcode::IBV_WR_SEND,
        Kind::SendImm => wr_opcode::IBV_WR_SEND_WITH_IMM,
        Kind::Write => wr_opcode::IBV_WR_RDMA_WRITE,
        Kind::WriteImm => wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM,
        Kind::Read | Kind::ReadBack => wr_opcode::IBV_WR_RDMA_READ,
        Kind::CompareSwap => wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP,
        Kind::FetchAdd | Kind::SharedAdd => wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD,
    }
}

fn blank() -> abi::ibv_qp_attr {
    // SAFETY: the structure is plain old data, for which zeroes are valid.
    unsafe { std::mem::zeroed() }
}

/// By LID where the port has one, otherwise by GID.
fn route(peer: &Address) -> abi::ibv_ah_attr {
    let mut route = blank().ah_attr;
    route.dlid = peer.lid;
    route.port_num = PORT;
    if peer.lid == 0 {
        route.is_global = 1;
        route.grh.dgid = abi::ibv_gid { raw: peer.gid };
        route.grh.hop_limit = 64;
    }
    route
}

/// Memory for lists of receives.
#[derive(Default)]
pub(super) struct ReceiveList {
    requests: Vec<abi::ibv_recv_wr>,
    parts: Vec<[abi::ibv_sge; 2]>,
}

impl ReceiveList {
    /// The list of `receives`, valid until the next one is built.
    pub(super) fn build(&mut self, receives: &[Receive]) -> *mut abi::ibv_recv_wr {
        self.parts.clear();
        self.parts.extend(receives.iter().map(Receive::parts));
        self.requests.clear();
        for (receive, parts) in receives.iter().zip(&mut self.parts) {
            let num_sge = used(parts);
            let request =
                abi::ibv_recv_wr { wr_id: receive.wr_id, next: none(), sg_list: parts.as_mut_ptr(), num_sge };
            self.requests.push(request);
        }
        let first = self.requests.as_mut_ptr();
        for at in 1..self.requests.len() {
            // SAFETY: both are elements of the vector, which does not grow any more.
            unsafe { (*first.add(at - 1)).next = first.add(at) };
        }
        first
    }
}
