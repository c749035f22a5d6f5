//! Shared receive queues, and the domains of extended reliable connections.

use verbs::{HandleKind, Translation};

use crate::attr::SrqAttr;
use crate::core::Domain;
use crate::device::{Device, require, require_room};
use crate::errno::Errno;
use crate::handle::{Cq, Pd, Srq, Xrcd};
use crate::shared_receive_queue::{SharedReceiveQueue, Xrc};

impl Device {
    /// Makes a shared receive queue. Grants at least the limits in `attr`.
    ///
    /// # Errors
    /// `INVALID` for nothing or too much; `NO_MEMORY` past the number of queues.
    pub fn create_srq(&mut self, pd: Pd, attr: &SrqAttr) -> Result<(Srq, SrqAttr), Errno> {
        let number = self.core.srqs.next_index() + 1;
        self.insert_srq(pd, number, None, attr)
    }

    /// Makes one for the XRC targets of a domain.
    ///
    /// # Errors
    /// As for [`Self::create_srq`]; `INVALID` also for a domain or queue that is not there.
    pub fn create_xrc_srq(&mut self, pd: Pd, xrc: Xrc, attr: &SrqAttr) -> Result<(Srq, SrqAttr), Errno> {
        require(self.core.xrcds.get(xrc.xrcd.0).is_some() && self.core.cqs.get(xrc.cq.0).is_some())?;
        let number = self.free_srq_number();
        let (srq, granted) = self.insert_srq(pd, number, Some(xrc), attr)?;
        self.count_xrc_user(xrc.xrcd, xrc.cq, 1);
        let line = self.core.srq_names.insert_fixed(&mut *self.core.source, number, srq.0);
        self.tell(line);
        Ok((srq, granted))
    }

    fn insert_srq(
        &mut self,
        pd: Pd,
        number: u32,
        xrc: Option<Xrc>,
        attr: &SrqAttr,
    ) -> Result<(Srq, SrqAttr), Errno> {
        require((1..=self.core.limits.max_srq_wr).contains(&attr.max_wr))?;
        require(attr.max_sge <= self.core.limits.max_sge)?;
        require_room(self.core.srqs.len(), self.core.limits.max_srq)?;
        self.enter_domain(pd)?;
        let granted = SrqAttr { max_sge: attr.max_sge.max(1), ..*attr };
        let queue = SharedReceiveQueue::new(pd, number, xrc, &granted);
        Ok((Srq(self.core.srqs.insert(queue)), granted))
    }

    /// A number that is free: they go round, so that one that was given back rests. There are far more than queues.
    fn free_srq_number(&mut self) -> u32 {
        loop {
            self.srq_numbers = self.srq_numbers.wrapping_add(1) & HandleKind::SharedReceiveQueue.mask();
            if self.srq_numbers > 0 && self.core.srq_names.is_free(self.srq_numbers) {
                return self.srq_numbers;
            }
        }
    }

    fn count_xrc_user(&mut self, xrcd: Xrcd, cq: Cq, change: i32) {
        if let Some(domain) = self.core.xrcds.get_mut(xrcd.0) {
            domain.users = domain.users.saturating_add_signed(change);
        }
        if let Some(queue) = self.core.cqs.get_mut(cq.0) {
            queue.users = queue.users.saturating_add_signed(change);
        }
    }

    /// Ends a shared receive queue. XRC targets that have named it find it gone.
    ///
    /// # Errors
    /// `BUSY` while a queue pair uses it for all that it receives.
    pub fn destroy_srq(&mut self, srq: Srq) -> Result<(), Errno> {
        let queue = self.core.srqs.get(srq.0).ok_or(Errno::INVALID)?;
        let (pd, number, xrc) = (queue.pd, queue.number, queue.xrc);
        if self.core.users_of(srq) > 0 {
            return Err(Errno::BUSY);
        }
        if let Some(xrc) = xrc {
            self.core.deselect(srq);
            self.count_xrc_user(xrc.xrcd, xrc.cq, -1);
            if let Some(known) = self.core.srq_names.remove(&mut *self.core.source, number) {
                self.links.announce(Translation { real: known.virtual_handle, ..known }, known.real);
            }
        }
        self.core.srqs.remove(srq.0);
        self.leave_domain(pd);
        Ok(())
    }

    /// Makes a domain of extended reliable connections.
    ///
    /// # Errors
    /// `NO_MEMORY` past the device's limit.
    pub fn alloc_xrcd(&mut self) -> Result<Xrcd, Errno> {
        require_room(self.core.xrcds.len(), self.core.limits.max_xrcd)?;
        Ok(Xrcd(self.core.xrcds.insert(Domain::default())))
    }

    /// Closes such a domain.
    ///
    /// # Errors
    /// `BUSY` while something is in it.
    pub fn dealloc_xrcd(&mut self, xrcd: Xrcd) -> Result<(), Errno> {
        if self.core.xrcds.get(xrcd.0).ok_or(Errno::INVALID)?.users > 0 {
            return Err(Errno::BUSY);
        }
        self.core.xrcds.remove(xrcd.0);
        Ok(())
    }

    pub(super) fn count_target(&mut self, xrcd: Option<Xrcd>, change: i32) {
        if let Some(xrcd) = xrcd {
            self.count_xrc_user(xrcd, Cq::NONE, change);
        }
    }
}
