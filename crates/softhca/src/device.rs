//! The device: one process' objects, links and clocks.

use std::time::Duration;

use fabric::attach::LinkRefusal;
use fabric::{Epoch, FabricId, ProcessId};
use verbs::HandleSource;

use crate::attr::{Access, QpAttr, QpAttrMask, QpCaps, QpInit, SrqAttr};
use crate::errno::Errno;
use crate::event::Event;
use crate::handle::{Cq, Keys, Mr, Pd, Qp, Srq};
use crate::limits::Limits;
use crate::stream::{Stream, Waitable};
use crate::work::{SendWr, Sge, Wc};

/// What a device is made of.
pub struct Config {
    /// Whose device it is.
    pub process: ProcessId,
    /// The fabric of its instance.
    pub fabric: FabricId,
    /// The moves of its instance so far.
    pub epoch: Epoch,
    /// How real handles are picked.
    pub handles: Box<dyn HandleSource>,
    /// What it can hold.
    pub limits: Limits,
}

/// What [`Device::progress`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes were moved or timers ran out.
    pub did_work: bool,
    /// When to call again at the latest, on the same clock.
    pub next_deadline: Option<Duration>,
    /// The call was cut short to keep it brief; call again at once.
    pub more: bool,
}

/// Objects of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Queue pairs.
    pub queue_pairs: u32,
    /// Memory regions.
    pub memory_regions: u32,
}

/// What [`Device::suspend`] found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Suspended {
    /// Peers to which a connection has carried traffic since it connected or the peer moved.
    pub active_peers: Vec<ProcessId>,
    /// What the device holds.
    pub counts: Counts,
}

/// The RDMA device of one process.
///
/// Calls that find an argument wrong return [`Errno::INVALID`]; those that meet a limit
/// [`Errno::NO_MEMORY`]; those that would pull something from under another object
/// [`Errno::BUSY`].
pub struct Device {
    config: Config,
}

const SKELETON: Errno = Errno(libc::ENOSYS);

#[allow(
    missing_docs,
    clippy::unused_self,
    clippy::needless_pass_by_value,
    unused_variables,
    clippy::missing_errors_doc
)]
impl Device {
    /// A device without objects or links.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self { config }
    }

    /// What the device can hold.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.config.limits
    }

    pub fn alloc_pd(&mut self) -> Result<Pd, Errno> {
        Err(SKELETON)
    }
    pub fn dealloc_pd(&mut self, pd: Pd) -> Result<(), Errno> {
        Err(SKELETON)
    }
    /// Registers `length` bytes at `addr`, which peers and work requests address from `iova` on.
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
        Err(SKELETON)
    }
    pub fn dereg_mr(&mut self, mr: Mr) -> Result<(), Errno> {
        Err(SKELETON)
    }
    /// The granted depth is at least `depth`.
    pub fn create_cq(&mut self, depth: u32) -> Result<(Cq, u32), Errno> {
        Err(SKELETON)
    }
    pub fn resize_cq(&mut self, cq: Cq, depth: u32) -> Result<u32, Errno> {
        Err(SKELETON)
    }
    pub fn destroy_cq(&mut self, cq: Cq) -> Result<(), Errno> {
        Err(SKELETON)
    }
    /// Takes completions, at most as many as `into` holds, and says how many. Drives the links when
    /// there is none yet. `Err`: the CQ has overrun.
    pub fn poll_cq(&mut self, cq: Cq, into: &mut [Wc]) -> Result<usize, Errno> {
        Err(SKELETON)
    }
    /// The next completion (the next solicited one) raises [`Event::Completion`].
    pub fn arm_cq(&mut self, cq: Cq, solicited_only: bool) -> Result<(), Errno> {
        Err(SKELETON)
    }
    pub fn create_srq(&mut self, pd: Pd, attr: &SrqAttr) -> Result<(Srq, SrqAttr), Errno> {
        Err(SKELETON)
    }
    /// SRQ number as applications know it.
    pub fn srq_number(&self, srq: Srq) -> Result<u32, Errno> {
        Err(SKELETON)
    }
    /// `max_wr`: resize (refused with EINVAL if more receives are posted); `limit`: arm the event.
    pub fn modify_srq(&mut self, srq: Srq, max_wr: Option<u32>, limit: Option<u32>) -> Result<(), Errno> {
        Err(SKELETON)
    }
    pub fn query_srq(&self, srq: Srq) -> Result<SrqAttr, Errno> {
        Err(SKELETON)
    }
    pub fn destroy_srq(&mut self, srq: Srq) -> Result<(), Errno> {
        Err(SKELETON)
    }
    pub fn post_srq_recv(&mut self, srq: Srq, wr_id: u64, sges: &[Sge]) -> Result<(), Errno> {
        Err(SKELETON)
    }
    /// The QP, its number as applications know it, and the capacities granted.
    pub fn create_qp(&mut self, init: &QpInit) -> Result<(Qp, u32, QpCaps), Errno> {
        Err(SKELETON)
    }
    pub fn modify_qp(&mut self, qp: Qp, attr: &QpAttr, mask: QpAttrMask) -> Result<(), Errno> {
        Err(SKELETON)
    }
    pub fn query_qp(&self, qp: Qp) -> Result<(QpAttr, QpInit), Errno> {
        Err(SKELETON)
    }
    pub fn destroy_qp(&mut self, qp: Qp) -> Result<(), Errno> {
        Err(SKELETON)
    }
    /// Queues a send work request, copying inline data. Nothing leaves before
    /// [`Self::flush_doorbell`].
    ///
    /// # Errors
    /// `NO_MEMORY` when the queue is full; `INVALID` for a wrong state, operation, length or number of elements.
    pub fn post_send(&mut self, qp: Qp, wr: &SendWr<'_>) -> Result<(), Errno> {
        Err(SKELETON)
    }
    /// Transmits what `post_send` queued on `qp`: call it once after a list of posts.
    pub fn flush_doorbell(&mut self, qp: Qp) {}
    pub fn post_recv(&mut self, qp: Qp, wr_id: u64, sges: &[Sge]) -> Result<(), Errno> {
        Err(SKELETON)
    }
    /// True if [`Self::take_events`] or [`Self::take_link_requests`] would find something.
    #[must_use]
    pub fn has_news(&self) -> bool {
        false
    }
    /// Events since the last call.
    pub fn take_events(&mut self, into: &mut Vec<Event>) {}
    /// Peers that need a link now; each is named once until `link_up` or `link_refused`.
    pub fn take_link_requests(&mut self, into: &mut Vec<ProcessId>) {}
    /// A link is there. An older one to the same peer is dropped.
    pub fn link_up(&mut self, peer: ProcessId, peer_epoch: Epoch, stream: Box<dyn Stream>, now: Duration) {}
    /// There is no link for now.
    pub fn link_refused(&mut self, peer: ProcessId, reason: LinkRefusal, now: Duration) {}
    /// Moves what can be moved without waiting: links, timers. `now`: `CLOCK_MONOTONIC`.
    pub fn progress(&mut self, now: Duration) -> Progress {
        Progress::default()
    }
    /// Changes whenever [`Self::waitables`] would answer otherwise.
    #[must_use]
    pub fn waitables_version(&self) -> u64 {
        0
    }
    /// What to sleep on between calls of `progress`.
    pub fn waitables(&self, into: &mut Vec<Waitable>) {}
    /// Announces that the caller is going to sleep on the waitables. False: call `progress` instead.
    pub fn prepare_to_sleep(&mut self) -> bool {
        true
    }
    /// Takes the announcement back: after waking, or when an application polls by itself.
    pub fn awake(&mut self) {}
    /// Says good-bye to peers, closes every link and stops all clocks. Work may be posted; it waits.
    pub fn suspend(&mut self, now: Duration) -> Suspended {
        Suspended::default()
    }
    /// Runs again, here or elsewhere: real handles are issued again, and active peers get links.
    pub fn resume(&mut self, now: Duration, epoch: Epoch) {}
    /// What the device holds.
    #[must_use]
    pub fn counts(&self) -> Counts {
        Counts::default()
    }
}
