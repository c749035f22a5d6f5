//! Locates instances for libraries, in batches.
//!
//! At most one question is in flight. Instances wanted meanwhile go into the next one: a node that needs a thousand peers at once
//! asks twice, not a thousand times, and no timer delays a question.

use std::collections::BTreeSet;

use fabric::Vid;

use crate::protocol::{MAX_LOCATED, ToCoordinator};

/// Instances whose location a node wants.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Wanted {
    /// All instances without a final answer, which is a location that is not moving, or that the instance is gone.
    all: BTreeSet<Vid>,
    /// The subset for the next question.
    unasked: BTreeSet<Vid>,
    /// The unanswered subset of the last question.
    unanswered: BTreeSet<Vid>,
}

impl Wanted {
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Wants `vid`, even if its location was known: that has proved wrong.
    pub fn insert(&mut self, vid: Vid) {
        self.all.insert(vid);
        if !self.unanswered.contains(&vid) {
            self.unasked.insert(vid);
        }
    }

    /// Handles an answer; while `moving`, another answer follows. Returns false if the instance is not wanted.
    pub fn is_answered(&mut self, vid: Vid, moving: bool) -> bool {
        self.unanswered.remove(&vid);
        if moving {
            return self.all.contains(&vid);
        }
        self.unasked.remove(&vid);
        self.all.remove(&vid)
    }

    /// The next question, if it can be sent now.
    pub fn next_question(&mut self) -> Option<ToCoordinator> {
        if !self.unanswered.is_empty() || self.unasked.is_empty() {
            return None;
        }
        let vids: BTreeSet<Vid> = self.unasked.iter().copied().take(MAX_LOCATED).collect();
        self.unasked = self.unasked.split_off(vids.last()?);
        self.unasked.remove(vids.last()?);
        self.unanswered = vids.clone();
        Some(ToCoordinator::Locate { vids })
    }

    /// Asks for everything again, because the question, its answer, or a later answer may be lost.
    pub fn ask_again(&mut self) -> Option<ToCoordinator> {
        self.unanswered.clear();
        self.unasked = self.all.clone();
        self.next_question()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vid(lid: usize) -> Vid {
        Vid::new(lid as u16).unwrap()
    }

    fn asked(question: Option<ToCoordinator>) -> Vec<u16> {
        match question {
            Some(ToCoordinator::Locate { vids }) => vids.into_iter().map(Vid::lid).collect(),
            _ => Vec::new(),
        }
    }

    #[test]
    fn locations_wanted_meanwhile_are_batched() {
        let mut wanted = Wanted::default();
        wanted.insert(vid(1));
        assert_eq!(asked(wanted.next_question()), [1]);
        (1..=4).for_each(|lid| wanted.insert(vid(lid)));
        assert_eq!(asked(wanted.next_question()), []);
        assert!(wanted.is_answered(vid(1), false) && !wanted.is_answered(vid(9), false));
        assert_eq!(asked(wanted.next_question()), [2, 3, 4]);
    }

    #[test]
    fn a_moving_instance_does_not_delay_other_locations() {
        let mut wanted = Wanted::default();
        wanted.insert(vid(1));
        wanted.next_question();
        assert!(wanted.is_answered(vid(1), true));
        wanted.insert(vid(2));
        assert_eq!(asked(wanted.next_question()), [2]);
        assert_eq!(asked(wanted.ask_again()), [1, 2]);
        assert!(wanted.is_answered(vid(1), false) && wanted.is_answered(vid(2), false) && wanted.is_empty());
        assert_eq!(asked(wanted.ask_again()), []);
    }

    #[test]
    fn a_question_has_a_limit() {
        let mut wanted = Wanted::default();
        let lids: Vec<_> = (1..=MAX_LOCATED + 3).collect();
        lids.iter().for_each(|lid| wanted.insert(vid(*lid)));
        assert_eq!(asked(wanted.next_question()).len(), MAX_LOCATED);
        lids.iter().for_each(|lid| {
            wanted.is_answered(vid(*lid), *lid > MAX_LOCATED);
        });
        assert_eq!(asked(wanted.next_question()).len(), 3);
    }
}
