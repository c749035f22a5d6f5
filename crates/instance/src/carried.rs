//! What a broker knows of an instance and hands on to the broker that takes it over.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::output::Output;

/// Who has a seat in an instance, attached or not: it tells a broker that takes the instance over, on
/// another host or after its node died, whom to wait for and which indexes are taken.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Roster {
    /// Indexes of processes that use verbs, with the number of each in the instance's PID namespace, by which it is known again: it
    /// has the same on every host.
    pub verbs: BTreeMap<u8, i32>,
    /// Whether the instance's first process has attached.
    pub init: bool,
    /// The index that was allotted last. Free ones are taken in a circle, so that a dead process' QPNs are not
    /// soon another's.
    pub last: u8,
}

impl Roster {
    /// Indexes of processes that use verbs.
    #[must_use]
    pub fn indexes(&self) -> BTreeSet<u8> {
        self.verbs.keys().copied().collect()
    }

    /// Lets the process with `number` have `index` again. False if another process has it.
    pub fn allot_again(&mut self, index: u8, number: i32) -> bool {
        *self.verbs.entry(index).or_insert(number) == number
    }

    /// A free index for the process with `number`; `None` if all are taken.
    pub fn allot(&mut self, number: i32) -> Option<u8> {
        let mut indexes = (self.last..=u8::MAX).skip(1).chain(1..=self.last);
        let index = indexes.find(|index| !self.verbs.contains_key(index))?;
        self.verbs.insert(index, number);
        self.last = index;
        Some(index)
    }
}

/// What goes along when another broker takes an instance over.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Carried {
    /// Who has a seat.
    pub roster: Roster,
    /// What the command has written of late.
    pub output: Output,
    /// How the command ended, if it has.
    pub exit: Option<i32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indexes_are_taken_in_a_circle_and_run_out() {
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
    fn an_index_is_had_again_by_its_own_process_only() {
        let mut roster = Roster::default();
        assert_eq!(roster.allot(7), Some(1));
        assert!(!roster.allot_again(1, 8) && roster.allot_again(1, 7));
        roster.verbs.remove(&1);
        assert!(roster.allot_again(1, 8), "nobody's any more");
    }
}
