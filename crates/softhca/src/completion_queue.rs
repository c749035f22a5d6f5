//! Completion queues.

use std::collections::VecDeque;

use crate::work::Wc;

/// What an armed queue waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Armed {
    No,
    ForSolicited,
    ForAny,
}

/// What a new completion means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pushed {
    /// Nobody waits.
    Quietly,
    /// The queue was armed for it.
    WakeUp,
    /// There was no room: the queue is broken from now on.
    Overrun,
}

/// A completion queue.
#[derive(Debug)]
pub(crate) struct CompletionQueue {
    ring: VecDeque<Wc>,
    depth: u32,
    armed: Armed,
    /// How many came since anybody was last woken. Some of them may have been taken.
    untold: usize,
    overrun: bool,
    /// What completions are stamped with.
    clock: Option<fn() -> u64>,
    /// Queue pairs that complete here, counted once for each of their queues.
    pub users: u32,
}

impl CompletionQueue {
    pub fn new(depth: u32) -> Self {
        let ring = VecDeque::with_capacity(depth.min(1024) as usize);
        Self { ring, depth, armed: Armed::No, untold: 0, overrun: false, clock: None, users: 0 }
    }

    pub fn with_clock(depth: u32, clock: fn() -> u64) -> Self {
        Self { clock: Some(clock), ..Self::new(depth) }
    }

    pub fn depth(&self) -> u32 {
        self.depth
    }

    pub fn is_broken(&self) -> bool {
        self.overrun
    }

    /// True if somebody is about to wait for a completion.
    pub fn is_armed(&self) -> bool {
        self.armed != Armed::No
    }

    /// False if the next completion would overrun it.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.ring.len() < self.depth as usize
    }

    /// False if more completions wait than would fit.
    pub fn resize(&mut self, depth: u32) -> bool {
        let fits = self.ring.len() <= depth as usize;
        if fits {
            self.depth = depth;
        }
        fits
    }

    /// Asks to be woken. True if what is asked for is there already, and nobody was told of it: it came after the program had
    /// looked, and one that does not look again, as UCX, would wait for ever. Adapters tell of it as well.
    pub fn arm(&mut self, solicited_only: bool) -> bool {
        // Arming for less than before does not take the wider request back.
        if !(solicited_only && self.armed == Armed::ForAny) {
            self.armed = if solicited_only { Armed::ForSolicited } else { Armed::ForAny };
        }
        let for_any = self.armed == Armed::ForAny;
        let wakes =
            self.ring.iter().rev().take(self.untold).any(|completion| for_any || completion.solicited);
        if wakes {
            self.told();
        }
        wakes
    }

    fn told(&mut self) {
        self.armed = Armed::No;
        self.untold = 0;
    }

    #[inline(always)]
    pub fn push(&mut self, mut completion: Wc) -> Pushed {
        if !self.has_room() {
            self.overrun = true;
            return Pushed::Overrun;
        }
        if let Some(clock) = self.clock {
            completion.timestamp = clock();
        }
        self.ring.push_back(completion);
        let wakes = match self.armed {
            Armed::No => false,
            Armed::ForSolicited => completion.solicited,
            Armed::ForAny => true,
        };
        if !wakes {
            self.untold += 1;
            return Pushed::Quietly;
        }
        self.told();
        Pushed::WakeUp
    }

    /// Hands the oldest completions to `take`, at most `room`, and says how many.
    #[inline]
    pub fn take(&mut self, room: usize, mut take: impl FnMut(&Wc)) -> usize {
        let count = room.min(self.ring.len());
        for _ in 0..count {
            let Some(completion) = self.ring.pop_front() else { break };
            take(&completion);
        }
        if self.ring.is_empty() {
            self.untold = 0;
            // The next ones come where these were, which the processor still has at hand.
            self.ring.clear();
        }
        count
    }

    /// Forgets what `qpn` completed: its number may soon be another's.
    pub fn forget(&mut self, qpn: u32) {
        self.ring.retain(|completion| completion.qpn != qpn);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_armed_queue_wakes_once_for_what_was_asked() {
        let mut cq = CompletionQueue::new(4);
        cq.arm(true);
        assert_eq!(cq.push(Wc::default()), Pushed::Quietly);
        assert_eq!(cq.push(Wc { solicited: true, ..Wc::default() }), Pushed::WakeUp);
        assert_eq!(cq.push(Wc::default()), Pushed::Quietly);
        assert_eq!(cq.take(4, |_| ()), 3);
        cq.arm(false);
        cq.arm(true);
        assert_eq!(cq.push(Wc::default()), Pushed::WakeUp);
    }

    #[test]
    fn who_asks_is_told_at_once_of_what_nobody_was_told_of() {
        let mut cq = CompletionQueue::new(4);
        let none = |cq: &mut CompletionQueue| while cq.take(1, |_| ()) > 0 {};
        cq.push(Wc::default());
        assert!(!cq.arm(true), "it was not solicited");
        assert!(cq.arm(false));
        assert_eq!(cq.push(Wc::default()), Pushed::Quietly, "it is over with that");
        none(&mut cq);
        assert!(!cq.arm(false));
        assert_eq!(cq.push(Wc::default()), Pushed::WakeUp);
        assert!(!cq.arm(false), "of that one somebody was told");
        assert_eq!(cq.push(Wc::default()), Pushed::WakeUp);
        cq.push(Wc { solicited: true, ..Wc::default() });
        assert!(cq.arm(true));
    }

    #[test]
    fn an_overrun_loses_the_new_completion_not_the_old_ones() {
        let mut cq = CompletionQueue::new(1);
        cq.push(Wc { wr_id: 1, ..Wc::default() });
        assert_eq!(cq.push(Wc { wr_id: 2, ..Wc::default() }), Pushed::Overrun);
        let mut taken = Vec::new();
        assert_eq!(cq.take(4, |completion| taken.push(completion.wr_id)), 1);
        assert_eq!(taken, [1]);
        assert!(cq.is_broken());
    }
}
