//! Where instances are that libraries need: what is asked, and when.
//!
//! There is one question at a time. What is wanted while it has no answer goes in the next one: whoever needs a thousand peers at once
//! asks twice, not a thousand times, and nobody waits for a clock.

use std::collections::BTreeSet;

use fabric::Vid;

use crate::protocol::{MAX_LOCATED, ToCoordinator};

/// Instances of which a node wants to know where they are.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Wanted {
    /// All that are not known to be somewhere, or gone, with nothing in progress.
    all: BTreeSet<Vid>,
    /// Of these, those that are to be in the next question.
    unasked: BTreeSet<Vid>,
    /// Those of the last question to which no answer has come.
    unanswered: BTreeSet<Vid>,
}

impl Wanted {
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// `vid` is wanted, also if it was before: what is known of it has proved wrong.
    pub fn insert(&mut self, vid: Vid) {
        self.all.insert(vid);
        if !self.unanswered.contains(&vid) {
            self.unasked.insert(vid);
        }
    }

    /// Takes an answer; while `moving`, another one will follow. False if it is not wanted.
    pub fn is_answered(&mut self, vid: Vid, moving: bool) -> bool {
        self.unanswered.remove(&vid);
        if moving {
            return self.all.contains(&vid);
        }
        self.unasked.remove(&vid);
        self.all.remove(&vid)
    }

    /// What is to be asked now, if anything.
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

    /// The question or its answer may be lost, and so may the word that something has settled: all is asked again.
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
    fn what_is_wanted_meanwhile_goes_in_the_next_question() {
        let mut wanted = Wanted::default();
        wanted.insert(vid(1));
        assert_eq!(asked(wanted.next_question()), [1]);
        (1..=4).for_each(|lid| wanted.insert(vid(lid)));
        assert_eq!(asked(wanted.next_question()), []);
        assert!(wanted.is_answered(vid(1), false) && !wanted.is_answered(vid(9), false));
        assert_eq!(asked(wanted.next_question()), [2, 3, 4]);
    }

    #[test]
    fn one_that_moves_is_waited_for_and_does_not_hold_up_others() {
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
