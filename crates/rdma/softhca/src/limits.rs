//! The limits of one device. `ibv_query_device` reports the same figures.

/// The most bytes of a datagram: the port's MTU.
pub const MTU: u32 = 4096;

/// Limits of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Protection domains.
    pub max_pd: u32,
    /// Memory regions.
    pub max_mr: u32,
    /// Bytes in one memory region.
    pub max_mr_size: u64,
    /// Memory windows.
    pub max_mw: u32,
    /// Completion queues.
    pub max_cq: u32,
    /// Completions in one queue.
    pub max_cqe: u32,
    /// Queue pairs.
    pub max_qp: u32,
    /// Work requests in one send or receive queue.
    pub max_qp_wr: u32,
    /// Scatter/gather elements in one work request.
    pub max_sge: u32,
    /// Bytes that a work request may carry inline.
    pub max_inline: u32,
    /// Shared receive queues.
    pub max_srq: u32,
    /// Receives in one shared queue.
    pub max_srq_wr: u32,
    /// Domains of extended reliable connections.
    pub max_xrcd: u32,
    /// READs and atomics that a QP may have outstanding, as requester or responder.
    pub max_rd_atomic: u8,
    /// Bytes in one message.
    pub max_message: u32,
    /// Address handles.
    pub max_ah: u32,
    /// Multicast groups from which a process receives.
    pub max_groups: u32,
    /// Peer processes that one process can talk to.
    pub max_peers: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_pd: 16 * 1024,
            max_mr: 1 << 20,
            max_mr_size: 1 << 47,
            max_mw: 1 << 18,
            max_cq: 16 * 1024,
            max_cqe: 4 * 1024 * 1024 - 1,
            max_qp: 32 * 1024,
            max_qp_wr: 16 * 1024,
            max_sge: 30,
            max_inline: 1024,
            max_srq: 16 * 1024,
            max_srq_wr: 32 * 1024,
            max_xrcd: 4096,
            max_rd_atomic: 16,
            max_message: 1 << 30,
            max_ah: 1 << 20,
            max_groups: 1024,
            max_peers: 16 * 1024,
        }
    }
}
