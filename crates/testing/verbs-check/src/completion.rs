//! Completions and memory as the accounting sees them, independent of the verbs library.

use crate::workload::Kind;

/// Marks the `wr_id` of a send; the queue pair lies above it, a running number below.
const SEND: u64 = 1 << 47;

/// A work completion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The work request.
    pub wr_id: u64,
    /// Why it failed, in the library's words, with the device's own error code.
    pub failure: Option<(String, u32)>,
    /// `ibv_wc_opcode`.
    pub opcode: u32,
    /// Bytes received.
    pub length: u32,
    /// Immediate data, in host byte order.
    pub immediate: Option<u32>,
}

/// `ibv_wc_opcode`s.
pub mod opcode {
    /// A SEND completed at its initiator.
    pub const SEND: u32 = 0;
    /// A WRITE completed at its initiator.
    pub const RDMA_WRITE: u32 = 1;
    /// A READ completed.
    pub const RDMA_READ: u32 = 2;
    /// A compare-and-swap completed.
    pub const COMP_SWAP: u32 = 3;
    /// A fetch-and-add completed.
    pub const FETCH_ADD: u32 = 4;
    /// A SEND arrived.
    pub const RECV: u32 = 128;
    /// A WRITE with immediate data arrived.
    pub const RECV_RDMA_WITH_IMM: u32 = 129;
}

/// The opcode with which an operation of `kind` completes at its initiator.
#[must_use]
pub fn send_opcode(kind: Kind) -> u32 {
    match kind {
        Kind::Send | Kind::SendImm => opcode::SEND,
        Kind::Write | Kind::WriteImm => opcode::RDMA_WRITE,
        Kind::Read | Kind::ReadBack => opcode::RDMA_READ,
        Kind::CompareSwap => opcode::COMP_SWAP,
        Kind::FetchAdd | Kind::SharedAdd => opcode::FETCH_ADD,
    }
}

/// The `wr_id` of send number `number` on `queue_pair`.
#[must_use]
pub fn send_id(queue_pair: u16, number: u64) -> u64 {
    u64::from(queue_pair) << 48 | SEND | number
}

/// Which queue pair posted `wr_id`, if it is one of [`send_id`].
#[must_use]
pub fn sender(wr_id: u64) -> Option<u16> {
    (wr_id & SEND != 0).then_some((wr_id >> 48) as u16)
}

/// Memory that the device writes to.
pub trait Memory {
    /// Copies the bytes from `offset` on.
    fn copy_out(&self, offset: usize, into: &mut [u8]);

    /// The 8-byte word at `offset`, a multiple of 8.
    fn word(&self, offset: usize) -> u64;
}

#[cfg(test)]
impl Memory for Vec<u8> {
    fn copy_out(&self, offset: usize, into: &mut [u8]) {
        into.copy_from_slice(&self[offset..offset + into.len()]);
    }

    fn word(&self, offset: usize) -> u64 {
        u64::from_le_bytes(self[offset..offset + 8].try_into().unwrap())
    }
}
