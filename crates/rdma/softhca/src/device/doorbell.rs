//! The doorbell: transmits posted requests, at once or in a batch.

use crate::attr::QpKind;
use crate::completion_queue::CompletionQueue;
use crate::device::Device;
use crate::handle::Qp;
use crate::link::State;
use crate::qp::QueuePair;

impl Device {
    /// Transmits the posted requests of `qp`: call it once after a list of posts. True if it replaced a poll: it has
    /// taken in all arrived data.
    #[inline]
    pub fn flush_doorbell(&mut self, qp: Qp) -> bool {
        let looks = self.ring_doorbell(qp).filter(|at| self.should_drive_links(qp, *at));
        if let Some(at) = looks {
            self.poll_some_links(at);
        }
        looks.is_some()
    }

    /// The same, without taking anything in. Returns the link over which something has left.
    #[inline]
    pub(super) fn ring_doorbell(&mut self, qp: Qp) -> Option<usize> {
        let entry = self.core.qps.get(qp.0).filter(|entry| !entry.sends.is_empty() && !self.suspended)?;
        if entry.sends.is_local_next() && self.core.run_local(qp) {
            self.settle();
        }
        self.transmit_of(qp)
    }

    /// True if the caller that posted on `qp`, over link `at`, should drive links as well. A program that posts much
    /// before it polls then need not be helped by the thread, which would wake for each acknowledgement, and want the lock.
    fn should_drive_links(&self, qp: Qp, at: usize) -> bool {
        let Some(entry) = self.core.qps.get(qp.0) else { return false };
        entry.has_long_request() && !self.waits_for_events(entry) && self.links.links[at].gathers()
    }

    /// True if the caller that posted on `qp` is about to wait for events, so that the thread will drive links anyway.
    fn waits_for_events(&self, qp: &QueuePair) -> bool {
        self.core.cqs.get(qp.init.send_cq.0).is_some_and(CompletionQueue::is_armed)
    }

    /// The same for short requests, which left by themselves: looks at links after many of them. True if it did.
    #[inline]
    pub fn look_after_many(&mut self, qp: Qp) -> bool {
        /// Some microseconds' work.
        const MANY: u32 = 64;
        self.links.unseen >= MANY && self.drive_all_links(qp)
    }

    #[cold]
    fn drive_all_links(&mut self, qp: Qp) -> bool {
        self.links.unseen = 0;
        let Some(entry) = self.core.qps.get(qp.0) else { return false };
        let Some(at) = entry.link.filter(|_| !self.waits_for_events(entry)) else { return false };
        self.poll_some_links(at);
        true
    }

    /// Takes in arrived data of link `at`, and of one other: all have their turn.
    fn poll_some_links(&mut self, at: usize) {
        self.poll_link(at);
        self.links.turn = self.links.turn.wrapping_add(1);
        let live = &self.links.live;
        let other = (!live.is_empty()).then(|| live[self.links.turn % live.len()]);
        if let Some(other) = other.filter(|other| *other != at) {
            self.poll_link(other);
        }
        self.settle();
    }

    /// As [`Self::flush_doorbell`], without haste: while the peer has still to answer earlier requests, short requests
    /// wait for that answer or the application's next poll, whichever comes first, so that those posted by then leave
    /// in one write.
    #[inline]
    pub fn defer_doorbell(&mut self, qp: Qp) -> bool {
        match self.lingering_place(qp) {
            Some(at) => {
                self.links.links[at].schedule(&mut self.core, qp);
                self.links.lingers = true;
                false
            }
            None => self.flush_doorbell(qp),
        }
    }

    /// The link over which the queued requests of `qp` may leave later.
    fn lingering_place(&self, qp: Qp) -> Option<usize> {
        let entry = self.core.qps.get(qp.0)?;
        let at = entry.link?;
        (!self.suspended && entry.may_linger() && self.links.links[at].gathers()).then_some(at)
    }

    /// Transmits the requests that were left for a poll.
    #[inline]
    pub(super) fn end_lingering(&mut self) {
        if std::mem::take(&mut self.links.lingers) {
            self.transmit_urgent();
        }
    }

    #[cold]
    fn transmit_urgent(&mut self) {
        let mut turn = 0;
        while let Some(&at) = self.links.live.get(turn) {
            turn += 1;
            if self.links.links[at].has_urgent_work() {
                self.transmit(at);
            }
        }
        self.settle();
    }

    /// Returns the link over which something has left.
    fn transmit_of(&mut self, qp: Qp) -> Option<usize> {
        let entry = self.core.qps.get(qp.0).filter(|entry| !entry.sends.is_empty())?;
        match (entry.peer, entry.link) {
            _ if entry.init.kind == QpKind::Ud => self.send_datagrams(qp),
            // No process can have that QPN: the request times out as if the peer did not answer.
            (None, _) => {
                let head = entry.sends.head();
                self.core.on_not_ready(qp, head);
            }
            (_, None) => self.core.give_up(qp),
            (_, Some(at)) if self.links.links[at].state != State::Up => self.need_link(at),
            (_, Some(at)) => {
                self.links.links[at].schedule(&mut self.core, qp);
                let sent = self.transmit(at);
                self.settle();
                return sent.then_some(at);
            }
        }
        None
    }
}
