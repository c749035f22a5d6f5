//! Decides whether the thread sends acknowledgements at once, or the program piggybacks them on its answer.
//!
//! Of two programs that answer each other, each can learn from one message both that its request was executed and
//! the answer; then the program that waits for its completion gets the answer with it, and needs no thread. So the
//! thread leaves acknowledgements to the program for a moment, if the program has lately answered that fast.

use std::time::Duration;

/// How long acknowledgements are left to the program.
pub(crate) const HOLD: Duration = Duration::from_micros(50);

/// After so many wake-ups by links, acknowledgements are left to a program that was not quick enough before.
const PROBE: u32 = 64;

/// The thread's observations of the program.
#[derive(Default)]
pub(crate) struct HeldAcks {
    /// [`softhca::Device::acks_sent`] when some were left to the program.
    left: Option<u64>,
    /// The program has sent the acknowledgements that were left to it last.
    is_quick: bool,
    /// Wake-ups by links.
    wakes: u32,
}

impl HeldAcks {
    /// Whether acknowledgements may be left to the program now. `sent`: [`softhca::Device::acks_sent`]; `by_link`: the
    /// thread was woken by a link.
    pub(crate) fn may_be_delayed(&mut self, sent: u64, by_link: bool) -> bool {
        if let Some(before) = self.left.take() {
            self.is_quick = sent != before;
            return self.is_quick && by_link;
        }
        self.wakes = self.wakes.wrapping_add(u32::from(by_link));
        by_link && (self.is_quick || self.wakes.is_multiple_of(PROBE))
    }

    /// Some have been.
    pub(crate) fn leave(&mut self, sent: u64) {
        self.left = Some(sent);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acknowledgements_are_piggybacked_while_the_program_answers() {
        let mut acks = HeldAcks::default();
        let tried = (1..=PROBE).find(|_| acks.may_be_delayed(7, true));
        assert_eq!(tried, Some(PROBE));
        acks.leave(7);
        assert!(acks.may_be_delayed(8, true), "the program has sent them");
        acks.leave(8);
        assert!(!acks.may_be_delayed(9, false), "nothing has come since");
        assert!(acks.may_be_delayed(9, true));
        acks.leave(9);
        assert!(!acks.may_be_delayed(9, false), "the moment is over: the thread sends them");
        assert!((2..PROBE).all(|_| !acks.may_be_delayed(10, true)), "and does so for a while");
    }
}
