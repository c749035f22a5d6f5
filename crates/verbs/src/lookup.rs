//! What a process knows of one peer's handles: the destination lookup list.
//!
//! A handle without an entry is its own translation, so an honest device that keeps its handles
//! costs its peers nothing. The entries are a peer's choice, hence the standard, keyed hash.

use std::collections::HashMap;

use crate::names::Translation;
use crate::source::HandleKind;

/// Handles that one peer may have translated; more are refused, so that it cannot fill our memory.
pub const MAX_ENTRIES: usize = 1 << 21;

/// A peer named more handles than any device has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooMany;

/// Virtual to real handles of one peer.
#[derive(Debug, Default)]
pub struct LookupList {
    queue_pairs: HashMap<u32, u32>,
    keys: HashMap<u32, u32>,
    shared_receive_queues: HashMap<u32, u32>,
}

impl LookupList {
    /// The real handle of what the application calls `virtual_handle`.
    #[must_use]
    #[inline]
    pub fn real(&self, kind: HandleKind, virtual_handle: u32) -> u32 {
        let list = self.list(kind);
        if list.is_empty() {
            return virtual_handle;
        }
        list.get(&virtual_handle).copied().unwrap_or(virtual_handle)
    }

    /// Learns one line; one that says "unchanged" withdraws an earlier one.
    ///
    /// # Errors
    /// Past [`MAX_ENTRIES`].
    pub fn learn(&mut self, line: Translation) -> Result<(), TooMany> {
        let used = self.queue_pairs.len() + self.keys.len() + self.shared_receive_queues.len();
        let full = used >= MAX_ENTRIES;
        let list = match line.kind {
            HandleKind::QueuePair => &mut self.queue_pairs,
            HandleKind::MemoryKey => &mut self.keys,
            HandleKind::SharedReceiveQueue => &mut self.shared_receive_queues,
        };
        if line.real == line.virtual_handle {
            list.remove(&line.virtual_handle);
        } else if full && !list.contains_key(&line.virtual_handle) {
            return Err(TooMany);
        } else {
            list.insert(line.virtual_handle, line.real);
        }
        Ok(())
    }

    /// Forgets everything: a peer that says hello says all that differs.
    pub fn clear(&mut self) {
        self.queue_pairs.clear();
        self.keys.clear();
        self.shared_receive_queues.clear();
    }

    fn list(&self, kind: HandleKind) -> &HashMap<u32, u32> {
        match kind {
            HandleKind::QueuePair => &self.queue_pairs,
            HandleKind::MemoryKey => &self.keys,
            HandleKind::SharedReceiveQueue => &self.shared_receive_queues,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(virtual_handle: u32, real: u32) -> Translation {
        Translation { kind: HandleKind::MemoryKey, virtual_handle, real }
    }

    #[test]
    fn unknown_handles_are_used_directly() {
        let mut list = LookupList::default();
        assert_eq!(list.real(HandleKind::MemoryKey, 5), 5);
        list.learn(line(5, 9)).unwrap();
        assert_eq!(list.real(HandleKind::MemoryKey, 5), 9);
        assert_eq!(list.real(HandleKind::QueuePair, 5), 5);
        list.learn(line(5, 5)).unwrap();
        assert_eq!(list.real(HandleKind::MemoryKey, 5), 5);
    }
}
