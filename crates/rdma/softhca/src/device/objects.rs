//! Protection domains, memory regions, completion queues and shared receive queues.

use crate::attr::{Access, SrqAttr};
use crate::completion_queue::CompletionQueue;
use crate::core::Domain;
use crate::device::{Device, require, require_room};
use crate::errno::Errno;
use crate::event::Event;
use crate::handle::{Cq, Keys, Mr, Pd, Srq};
use crate::region::Region;
use crate::shared_receive_queue::SharedReceiveQueue;
use crate::work::{Sge, Wc};

impl Device {
    /// Makes a protection domain.
    ///
    /// # Errors
    /// `NO_MEMORY` past the device's limit.
    pub fn alloc_pd(&mut self) -> Result<Pd, Errno> {
        require_room(self.core.domains.len(), self.core.limits.max_pd)?;
        Ok(Pd(self.core.domains.insert(Domain::default())))
    }

    /// Ends a protection domain.
    ///
    /// # Errors
    /// `BUSY` while something is in it.
    pub fn dealloc_pd(&mut self, pd: Pd) -> Result<(), Errno> {
        let domain = self.core.domains.get(pd.0).ok_or(Errno::INVALID)?;
        if domain.users > 0 {
            return Err(Errno::BUSY);
        }
        self.core.domains.remove(pd.0);
        Ok(())
    }

    pub(super) fn enter_domain(&mut self, pd: Pd) -> Result<(), Errno> {
        self.core.domains.get_mut(pd.0).ok_or(Errno::INVALID)?.users += 1;
        Ok(())
    }

    pub(super) fn leave_domain(&mut self, pd: Pd) {
        if let Some(domain) = self.core.domains.get_mut(pd.0) {
            domain.users -= 1;
        }
    }

    /// Tells peers of a new handle, if they have to know.
    pub(super) fn tell(&mut self, line: verbs::Translation) {
        if line.real != line.virtual_handle {
            self.links.announce(line, line.real);
        }
    }

    /// Registers `length` bytes at `addr`, which peers and work requests address from `iova` on.
    ///
    /// # Errors
    /// `INVALID` for a range that wraps, or remote access that stores without local write access;
    /// `NO_MEMORY` past the device's limits.
    ///
    /// # Safety
    /// The memory stays mapped (writable, if `access` lets anything be stored) until `dereg_mr`.
    pub unsafe fn reg_mr(
        &mut self,
        pd: Pd,
        addr: u64,
        length: u64,
        iova: u64,
        access: Access,
    ) -> Result<(Mr, Keys), Errno> {
        let region = Region { pd, addr, length, iova, access, key: 0, windows: 0, is_null: false };
        region.check(&self.core.limits)?;
        require_room(self.core.regions.len(), self.core.limits.max_mr)?;
        self.enter_domain(pd)?;
        let (mr, line) = self.core.regions.insert(&mut *self.core.source, region);
        self.tell(line);
        Ok((mr, Keys { lkey: line.virtual_handle, rkey: line.virtual_handle }))
    }

    /// Ends a registration. Requests that still need it fail.
    ///
    /// # Errors
    /// `INVALID` if there is no such region; `BUSY` while memory windows are bound to it.
    pub fn dereg_mr(&mut self, mr: Mr) -> Result<(), Errno> {
        let region = *self.core.regions.get(mr).ok_or(Errno::INVALID)?;
        if region.windows > 0 {
            return Err(Errno::BUSY);
        }
        self.forget_memory(mr, &region);
        let removed = self.core.regions.remove(&mut *self.core.source, mr);
        if let Some((_, Some(known))) = removed {
            let withdrawn = verbs::Translation { real: known.virtual_handle, ..known };
            self.links.announce(withdrawn, known.real);
        }
        self.leave_domain(region.pd);
        Ok(())
    }

    /// Makes a completion queue. The granted depth is at least `depth`.
    ///
    /// # Errors
    /// `INVALID` for a depth of 0 or past the limit; `NO_MEMORY` past the number of queues.
    pub fn create_cq(&mut self, depth: u32) -> Result<(Cq, u32), Errno> {
        self.insert_cq(CompletionQueue::new(depth))
    }

    /// Creates one whose completions carry in [`Wc::timestamp`] the time of `clock`.
    ///
    /// # Errors
    /// The errors of [`Self::create_cq`].
    pub fn create_stamped_cq(&mut self, depth: u32, clock: fn() -> u64) -> Result<(Cq, u32), Errno> {
        self.insert_cq(CompletionQueue::with_clock(depth, clock))
    }

    fn insert_cq(&mut self, queue: CompletionQueue) -> Result<(Cq, u32), Errno> {
        let depth = queue.depth();
        require((1..=self.core.limits.max_cqe).contains(&depth))?;
        require_room(self.core.cqs.len(), self.core.limits.max_cq)?;
        Ok((Cq(self.core.cqs.insert(queue)), depth))
    }

    /// Changes the depth of a completion queue. Returns the granted depth.
    ///
    /// # Errors
    /// `INVALID` for a depth of 0, past the limit, or below the number of waiting completions.
    pub fn resize_cq(&mut self, cq: Cq, depth: u32) -> Result<u32, Errno> {
        require((1..=self.core.limits.max_cqe).contains(&depth))?;
        let queue = self.core.cqs.get_mut(cq.0).ok_or(Errno::INVALID)?;
        require(queue.resize(depth))?;
        Ok(queue.depth())
    }

    /// Ends a completion queue.
    ///
    /// # Errors
    /// `BUSY` while a queue pair completes there.
    pub fn destroy_cq(&mut self, cq: Cq) -> Result<(), Errno> {
        let queue = self.core.cqs.get(cq.0).ok_or(Errno::INVALID)?;
        if queue.users > 0 {
            return Err(Errno::BUSY);
        }
        self.core.cqs.remove(cq.0);
        Ok(())
    }

    /// Passes completions to `take`, at most `room`, and returns how many. Drives the links when there is none
    /// yet.
    ///
    /// # Errors
    /// `INVALID` when the queue has overrun and its remaining completions are taken.
    #[inline(always)]
    pub fn poll_cq(&mut self, cq: Cq, room: usize, mut take: impl FnMut(&Wc)) -> Result<usize, Errno> {
        let queue = self.core.cqs.get_mut(cq.0).ok_or(Errno::INVALID)?;
        let taken = queue.take(room, &mut take);
        if taken > 0 {
            self.end_lingering();
            return Ok(taken);
        }
        if queue.is_broken() {
            return Err(Errno::INVALID);
        }
        if self.is_quiet() {
            return Ok(0);
        }
        self.poll_links();
        let queue = self.core.cqs.get_mut(cq.0).ok_or(Errno::INVALID)?;
        Ok(queue.take(room, take))
    }

    /// The next completion (the next solicited one) raises [`crate::Event::Completion`]. Nothing waits for company any
    /// more: the application is about to sleep.
    ///
    /// # Errors
    /// `INVALID` if there is no such queue.
    pub fn arm_cq(&mut self, cq: Cq, solicited_only: bool) -> Result<(), Errno> {
        self.end_lingering();
        if self.core.cqs.get_mut(cq.0).ok_or(Errno::INVALID)?.arm(solicited_only) {
            self.core.events.push(Event::Completion(cq));
        }
        Ok(())
    }

    /// A shared receive queue's number, as applications know it.
    ///
    /// # Errors
    /// `INVALID` if there is no such queue.
    pub fn srq_number(&self, srq: Srq) -> Result<u32, Errno> {
        self.core.srqs.get(srq.0).map(|queue| queue.number).ok_or(Errno::INVALID)
    }

    /// Changes the room of a shared receive queue, or arms its limit event.
    ///
    /// # Errors
    /// `INVALID` if more receives are posted than would fit, or the limit exceeds the room.
    pub fn modify_srq(&mut self, srq: Srq, max_wr: Option<u32>, limit: Option<u32>) -> Result<(), Errno> {
        let most = self.core.limits.max_srq_wr;
        let queue = self.core.srqs.get_mut(srq.0).ok_or(Errno::INVALID)?;
        let room = max_wr.unwrap_or(queue.receives.depth());
        require((1..=most).contains(&room) && limit.is_none_or(|limit| limit <= room))?;
        require(queue.receives.resize(room))?;
        if let Some(limit) = limit {
            queue.set_limit(limit);
        }
        Ok(())
    }

    /// The limits and attributes of a shared receive queue.
    ///
    /// # Errors
    /// `INVALID` if there is no such queue.
    pub fn query_srq(&self, srq: Srq) -> Result<SrqAttr, Errno> {
        self.core.srqs.get(srq.0).map(SharedReceiveQueue::attributes).ok_or(Errno::INVALID)
    }

    /// Posts a receive for any queue pair of `srq`.
    ///
    /// # Errors
    /// `NO_MEMORY` when it is full; `INVALID` for too many elements.
    pub fn post_srq_recv(&mut self, srq: Srq, wr_id: u64, sges: &[Sge]) -> Result<(), Errno> {
        self.core.srqs.get_mut(srq.0).ok_or(Errno::INVALID)?.receives.post(wr_id, sges)?;
        self.deliver_waiting();
        Ok(())
    }
}
