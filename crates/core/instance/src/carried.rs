//! The state of an instance that a broker hands to the broker that takes the instance over.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::output::Output;

/// The seats of an instance, with or without an attached process. A broker that takes the instance over, on
/// another host or after a restart of its node, learns which processes to wait for and which indexes are taken.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Roster {
    /// Indexes of processes that use verbs, with the PID of each in the instance's PID namespace, which identifies it: it is the same
    /// on every host.
    pub verbs: BTreeMap<u8, i32>,
    /// Whether the instance's first process has attached.
    pub init: bool,
    /// The last index that was allotted. Allotment goes round-robin, so that the QPNs of an ended process are not reused soon.
    pub last: u8,
}

impl Roster {
    /// Indexes of processes that use verbs.
    #[must_use]
    pub fn indexes(&self) -> BTreeSet<u8> {
        self.verbs.keys().copied().collect()
    }

    /// Gives the process with `number` its `index` again. False if another process has that index.
    pub fn allot_again(&mut self, index: u8, number: i32) -> bool {
        *self.verbs.entry(index).or_insert(number) == number
    }

    /// Allots a free index to the process with `number`; `None` if all are taken.
    pub fn allot(&mut self, number: i32) -> Option<u8> {
        let mut indexes = (self.last..=u8::MAX).skip(1).chain(1..=self.last);
        let index = indexes.find(|index| !self.verbs.contains_key(index))?;
        self.verbs.insert(index, number);
        self.last = index;
        Some(index)
    }
}

/// The state that travels when another broker takes an instance over.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Carried {
    /// The seats.
    pub roster: Roster,
    /// The recent output of the command.
    pub output: Output,
    /// How the command ended, if it has.
    pub exit: Option<i32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indexes_are_allotted_round_robin_until_none_is_free() {
        let mut roster = Roster::default();
        assert_eq!(roster.allot(7), Some(1));
        assert_eq!(roster.allot(7), Some(2));
        roster.verbs.remove(&1);
        assert_eq!(roster.allot(7), Some(3));
        for expected in (4..=255).chain([1]) {
            assert_eq!(roster.allot(7), Some(expected));
        }
        assert_eq!(roster.allot(7), None);
    }

    #[test]
    fn only_its_own_process_gets_an_index_again() {
        let mut roster = Roster::default();
        assert_eq!(roster.allot(7), Some(1));
        assert!(!roster.allot_again(1, 8) && roster.allot_again(1, 7));
        roster.verbs.remove(&1);
        assert!(roster.allot_again(1, 8), "the index is free");
    }
}
