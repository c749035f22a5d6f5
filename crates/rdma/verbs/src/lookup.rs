//! The destination lookup list: a process' translations of one peer's handles.
//!
//! A handle without an entry is its own translation, so an honest device that keeps its handles
//! costs its peers nothing. The entries are a peer's choice, hence the standard, keyed hash.

use std::collections::HashMap;

use crate::names::Translation;
use crate::recent::Recent;
use crate::source::HandleKind;

/// Handles that one peer may have translated; more are refused, so that it cannot fill our memory.
pub const MAX_ENTRIES: usize = 1 << 21;

/// A peer named more handles than any device has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooMany;

/// Virtual to real handles of one peer.
#[derive(Debug, Default)]
pub struct LookupList {
    queue_pairs: List,
    keys: List,
    shared_receive_queues: List,
}

/// Handles of one kind.
#[derive(Debug, Default)]
struct List {
    real: HashMap<u32, u32>,
    recent: Recent,
}

impl List {
    #[inline]
    fn get(&self, virtual_handle: u32) -> u32 {
        if self.real.is_empty() {
            return virtual_handle;
        }
        self.recent.get(virtual_handle).unwrap_or_else(|| self.find(virtual_handle))
    }

    fn find(&self, virtual_handle: u32) -> u32 {
        let real = self.real.get(&virtual_handle).copied().unwrap_or(virtual_handle);
        self.recent.keep(virtual_handle, real);
        real
    }

    /// The list, to be changed.
    fn change(&mut self) -> &mut HashMap<u32, u32> {
        self.recent.clear();
        &mut self.real
    }
}

impl LookupList {
    /// The real handle of what the application calls `virtual_handle`.
    #[must_use]
    #[inline]
    pub fn real(&self, kind: HandleKind, virtual_handle: u32) -> u32 {
        match kind {
            HandleKind::QueuePair => self.queue_pairs.get(virtual_handle),
            HandleKind::MemoryKey => self.keys.get(virtual_handle),
            HandleKind::SharedReceiveQueue => self.shared_receive_queues.get(virtual_handle),
        }
    }

    /// Learns one line; an "unchanged" line withdraws an earlier one.
    ///
    /// # Errors
    /// Past [`MAX_ENTRIES`].
    pub fn learn(&mut self, line: Translation) -> Result<(), TooMany> {
        let lists = [&self.queue_pairs, &self.keys, &self.shared_receive_queues];
        let full = lists.iter().map(|list| list.real.len()).sum::<usize>() >= MAX_ENTRIES;
        let list = match line.kind {
            HandleKind::QueuePair => self.queue_pairs.change(),
            HandleKind::MemoryKey => self.keys.change(),
            HandleKind::SharedReceiveQueue => self.shared_receive_queues.change(),
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

    /// Forgets everything: a peer sends all differing handles after its HELLO.
    pub fn clear(&mut self) {
        self.queue_pairs.change().clear();
        self.keys.change().clear();
        self.shared_receive_queues.change().clear();
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
        list.learn(line(5, 10)).unwrap();
        assert_eq!(list.real(HandleKind::MemoryKey, 5), 10, "what was looked up before is forgotten");
        list.learn(line(5, 5)).unwrap();
        assert_eq!(list.real(HandleKind::MemoryKey, 5), 5);
    }
}
