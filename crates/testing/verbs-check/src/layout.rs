//! Where everything lies in the memory of a side. Both sides have the same layout, so that a
//! target address is the peer's base address plus an offset.
//!
//! ```text
//! block, one per queue pair and its own memory region
//!   counter │ verified │ send slots: depth + 1 │ receive slots: depth │ write slots: depth + 1
//! shared area, one more memory region
//!   counter │ constant data │ slots of the shared receive queue
//! ```

use crate::plan::CONSTANT_SLACK;
use crate::workload::Workload;

/// Offsets are aligned to this, so that neighbours do not share a cache line.
const ALIGNMENT: usize = 64;

/// The most receives in the shared receive queue: a slot's number has 16 bits in a `wr_id`.
const MAX_SHARED_RECEIVES: usize = 1 << 12;

/// The 8-byte word at the start of a block and of the shared area that atomics work on.
pub const COUNTER: usize = 0;

/// The word of a block with the number of WRITEs that its owner has verified.
pub const VERIFIED: usize = 8;

/// The constant data in the shared area.
pub const CONSTANT: usize = ALIGNMENT;

/// Offsets and sizes, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    slot: usize,
    depth: usize,
    block_receives: usize,
    shared_receives: usize,
    constant: usize,
}

impl Layout {
    /// The layout of `workload`.
    #[must_use]
    pub fn new(workload: &Workload) -> Self {
        let depth = usize::from(workload.depth);
        let pool = (depth * usize::from(workload.queue_pairs) / 2).clamp(depth, MAX_SHARED_RECEIVES);
        let (block_receives, shared_receives) = if workload.shared_receives { (0, pool) } else { (depth, 0) };
        Self {
            slot: (workload.max_size.max(8) as usize).next_multiple_of(ALIGNMENT),
            depth,
            block_receives,
            shared_receives,
            constant: ((workload.max_size + CONSTANT_SLACK) as usize).next_multiple_of(ALIGNMENT),
        }
    }

    /// Work requests that a send queue must hold: the operations and one READ of the peer's
    /// [`VERIFIED`].
    #[must_use]
    pub fn send_slots(&self) -> usize {
        self.depth + 1
    }

    /// Receives that a queue holds.
    #[must_use]
    pub fn receive_slots(&self) -> usize {
        self.block_receives + self.shared_receives
    }

    /// WRITEs that may await their verification.
    #[must_use]
    pub fn write_slots(&self) -> usize {
        self.depth + 1
    }

    /// The local buffer of the work request with number `number`, in its block.
    #[must_use]
    pub fn send_slot(&self, number: u64) -> usize {
        ALIGNMENT + modulo(number, self.send_slots()) * self.slot
    }

    /// The buffer of receive slot `slot`, in its block or in the shared area.
    #[must_use]
    pub fn receive_slot(&self, slot: usize) -> usize {
        let start = if self.shared_receives > 0 {
            CONSTANT + self.constant
        } else {
            ALIGNMENT + self.send_slots() * self.slot
        };
        start + slot * self.slot
    }

    /// Where WRITE number `number` of a stream goes, in the target's block.
    #[must_use]
    pub fn write_slot(&self, number: u64) -> usize {
        let before = self.send_slots() + self.block_receives;
        ALIGNMENT + (before + modulo(number, self.write_slots())) * self.slot
    }

    /// The bytes of a block.
    #[must_use]
    pub fn block(&self) -> usize {
        ALIGNMENT + (self.send_slots() + self.block_receives + self.write_slots()) * self.slot
    }

    /// The bytes of the shared area.
    #[must_use]
    pub fn shared_area(&self) -> usize {
        CONSTANT + self.constant + self.shared_receives * self.slot
    }

    /// The bytes of constant data.
    #[must_use]
    pub fn constant(&self) -> usize {
        self.constant
    }

    /// The bytes of a slot.
    #[must_use]
    pub fn slot(&self) -> usize {
        self.slot
    }
}

fn modulo(number: u64, slots: usize) -> usize {
    usize::try_from(number % slots as u64).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::workload;

    #[test]
    fn slots_do_not_overlap_and_fill_the_block() {
        for shared_receives in [false, true] {
            let layout = Layout::new(&Workload { shared_receives, ..workload() });
            let receives = if shared_receives { 0 } else { layout.receive_slots() };
            let mut starts: Vec<usize> =
                (0..layout.send_slots()).map(|n| layout.send_slot(n as u64)).collect();
            starts.extend((0..receives).map(|slot| layout.receive_slot(slot)));
            starts.extend((0..layout.write_slots()).map(|n| layout.write_slot(n as u64)));
            assert_eq!(starts[0], ALIGNMENT);
            assert!(starts.windows(2).all(|pair| pair[1] - pair[0] == layout.slot()));
            assert_eq!(starts.last().unwrap() + layout.slot(), layout.block());
        }
    }

    #[test]
    fn shared_receives_follow_the_constant_data() {
        let layout = Layout::new(&Workload { shared_receives: true, ..workload() });
        assert_eq!(layout.receive_slot(0), CONSTANT + layout.constant());
        assert_eq!(layout.receive_slot(layout.receive_slots()), layout.shared_area());
    }
}
