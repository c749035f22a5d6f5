//! Completion queues.

use std::collections::VecDeque;

use crate::work::Wc;

/// The completions for which an armed queue wakes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Armed {
    No,
    ForSolicited,
    ForAny,
}

/// The effect of a new completion on waiting threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pushed {
    /// No thread waits.
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
    /// Completions since the last wake-up. Some of them may have been polled.
    unreported: usize,
    overrun: bool,
    /// The clock for completion timestamps.
    clock: Option<fn() -> u64>,
    /// Queue pairs that complete here, counted once for each of their queues.
    pub users: u32,
}

impl CompletionQueue {
    pub fn new(depth: u32) -> Self {
        let ring = VecDeque::with_capacity(depth.min(1024) as usize);
        Self { ring, depth, armed: Armed::No, unreported: 0, overrun: false, clock: None, users: 0 }
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

    /// True if a thread is about to wait for a completion.
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

    /// Asks to be woken. True if such a completion is there already, and woke no thread: it came after the program had
    /// polled, and a program that does not poll again, as UCX, would wait for ever. Adapters report it as well.
    pub fn arm(&mut self, solicited_only: bool) -> bool {
        // Arming for less than before does not take the wider request back.
        if !(solicited_only && self.armed == Armed::ForAny) {
            self.armed = if solicited_only { Armed::ForSolicited } else { Armed::ForAny };
        }
        let for_any = self.armed == Armed::ForAny;
        let wakes =
            self.ring.iter().rev().take(self.unreported).any(|completion| for_any || completion.solicited);
        if wakes {
            self.mark_reported();
        }
        wakes
    }

    fn mark_reported(&mut self) {
        self.armed = Armed::No;
        self.unreported = 0;
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
            self.unreported += 1;
            return Pushed::Quietly;
        }
        self.mark_reported();
        Pushed::WakeUp
    }

    /// Passes the oldest completions to `take`, at most `room`, and returns how many.
    #[inline]
    pub fn take(&mut self, room: usize, mut take: impl FnMut(&Wc)) -> usize {
        let count = room.min(self.ring.len());
        for _ in 0..count {
            let Some(completion) = self.ring.pop_front() else { break };
            take(&completion);
        }
        if self.ring.is_empty() {
            self.unreported = 0;
            // The next ones come where these were, which the processor still has at hand.
            self.ring.clear();
        }
        count
    }

    /// Forgets the completions of `qpn`: its number may soon be another's.
    pub fn forget(&mut self, qpn: u32) {
        self.ring.retain(|completion| completion.qpn != qpn);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_armed_queue_wakes_once_for_the_requested_kind() {
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
    fn arming_reports_completions_that_woke_no_thread() {
        let mut cq = CompletionQueue::new(4);
        let none = |cq: &mut CompletionQueue| while cq.take(1, |_| ()) > 0 {};
        cq.push(Wc::default());
        assert!(!cq.arm(true), "it was not solicited");
        assert!(cq.arm(false));
        assert_eq!(cq.push(Wc::default()), Pushed::Quietly, "it is over with that");
        none(&mut cq);
        assert!(!cq.arm(false));
        assert_eq!(cq.push(Wc::default()), Pushed::WakeUp);
        assert!(!cq.arm(false), "that completion was already notified");
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
