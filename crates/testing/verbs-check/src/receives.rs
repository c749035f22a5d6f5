//! The accounting of a receive queue: posted receives, and the ones that may complete next.

use crate::violation::Violation;

/// The receives of a queue pair, or of a shared receive queue.
#[derive(Debug)]
pub struct Receives {
    tag: u16,
    /// A shared queue's receives complete in any order, a queue pair's own in the order of posting.
    in_order: bool,
    /// The number under which each slot is posted.
    posted: Vec<Option<u32>>,
    next_number: u32,
    next_completion: u32,
}

impl Receives {
    /// A queue with `slots` receives, none of them posted. `tag` tells its `wr_id`s from others'.
    #[must_use]
    pub fn new(tag: u16, slots: usize, in_order: bool) -> Self {
        Self { tag, in_order, posted: vec![None; slots], next_number: 0, next_completion: 0 }
    }

    /// Notes that `slot`, which is free, is posted; returns its `wr_id`.
    pub fn post(&mut self, slot: usize) -> u64 {
        let number = self.next_number;
        self.next_number = number.wrapping_add(1);
        self.posted[slot] = Some(number);
        self.wr_id(number, slot)
    }

    fn wr_id(&self, number: u32, slot: usize) -> u64 {
        u64::from(self.tag) << 48 | u64::from(number & 0x7fff_ffff) << 16 | slot as u64
    }

    /// Notes that `wr_id` completed; returns its slot, which is free again.
    ///
    /// # Errors
    /// If it is not posted, has completed before, or another one should have completed first.
    pub fn complete(&mut self, wr_id: u64) -> Result<usize, Violation> {
        let (queue_pair, slot) = (self.tag, (wr_id & 0xffff) as usize);
        let Some(posted) = self.posted.get(slot) else {
            return Err(Violation::NotPosted { queue_pair, wr_id });
        };
        let Some(number) = posted.filter(|number| self.wr_id(*number, slot) == wr_id) else {
            return Err(Violation::CompletedTwice { queue_pair, wr_id });
        };
        if self.in_order && number != self.next_completion {
            let missing = self.oldest(wr_id);
            return Err(Violation::OutOfOrder { queue_pair, missing, arrived: wr_id });
        }
        self.next_completion = self.next_completion.wrapping_add(1);
        self.posted[slot] = None;
        Ok(slot)
    }

    /// The `wr_id` that should have completed instead of `arrived`.
    fn oldest(&self, arrived: u64) -> u64 {
        let expected = self.posted.iter().position(|number| *number == Some(self.next_completion));
        expected.map_or(arrived, |slot| self.wr_id(self.next_completion, slot))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receives_complete_once_and_in_order() {
        let mut queue = Receives::new(3, 2, true);
        let (first, second) = (queue.post(0), queue.post(1));
        assert_eq!(
            queue.complete(second),
            Err(Violation::OutOfOrder { queue_pair: 3, missing: first, arrived: second })
        );
        assert_eq!(queue.complete(first), Ok(0));
        assert_eq!(queue.complete(first), Err(Violation::CompletedTwice { queue_pair: 3, wr_id: first }));
        let third = queue.post(0);
        assert_ne!(third, first);
        assert_eq!(queue.complete(second), Ok(1));
        assert_eq!(queue.complete(third), Ok(0));
    }

    #[test]
    fn shared_receives_complete_in_any_order() {
        let mut queue = Receives::new(u16::MAX, 2, false);
        let (first, second) = (queue.post(0), queue.post(1));
        assert_eq!(queue.complete(second), Ok(1));
        assert_eq!(queue.complete(first), Ok(0));
    }

    #[test]
    fn a_receive_that_was_never_posted_is_noticed() {
        let mut queue = Receives::new(0, 2, true);
        assert!(matches!(queue.complete(77), Err(Violation::NotPosted { .. })));
    }
}
