//! The device: the objects, links and timers of one process.
//!
//! * `memory_windows`: memory windows.
//! * `registration`: re-registration, null regions, and real addresses of regions.
//! * `objects`: domains, regions, completion queues.
//! * `queue_pairs`: queue pairs and posting.
//! * `datagrams`: address handles and datagrams. `groups`: multicast.
//! * `links`: links to peers, timers, suspension. * `doorbell`: transmission of posted requests.
//! * `shared_queues`: shared receive queues, XRC domains.
//! * `sharing`: direct mappings of memory between neighbours. * `traffic`: counts of payload.

mod datagrams;
mod doorbell;
mod groups;
mod links;
mod memory_windows;
mod objects;
mod queue_pairs;
mod registration;
mod shared_queues;
mod sharing;
mod traffic;

use std::time::Duration;

use fabric::{Epoch, FabricId, ProcessId};
use verbs::{HandleSource, RegisteredList};

use crate::core::Core;
use crate::errno::Errno;
use crate::event::Event;
use crate::limits::Limits;
use crate::share::owner::Sharing;

use links::Links;
pub use registration::Rereg;

/// The parameters of a new device.
pub struct Config {
    /// The process that owns the device.
    pub process: ProcessId,
    /// The fabric of its instance.
    pub fabric: FabricId,
    /// A random number that tells this process from others with the same identity, earlier or later.
    pub incarnation: u64,
    /// How often its instance has moved.
    pub epoch: Epoch,
    /// How real handles are picked.
    pub handles: Box<dyn HandleSource>,
    /// Its limits.
    pub limits: Limits,
}

/// The result of [`Device::progress`].
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

/// The result of [`Device::suspend`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Suspended {
    /// Peers to which a connection has carried traffic since it connected or the peer moved.
    pub active_peers: Vec<ProcessId>,
    /// The objects that the device holds.
    pub counts: Counts,
}

/// The RDMA device of one process.
///
/// Calls return [`Errno::INVALID`] for a wrong argument, [`Errno::NO_MEMORY`] at a limit, and
/// [`Errno::BUSY`] if another object still uses the one in question.
pub struct Device {
    core: Core,
    links: Links,
    registered: RegisteredList,
    epoch: Epoch,
    incarnation: u64,
    suspended: bool,
    sharing: Sharing,
    /// The QP number given out last.
    qp_numbers: u16,
    /// The same of an XRC target's shared receive queue.
    srq_numbers: u32,
}

impl Device {
    /// A device without objects or links.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let Config { process, fabric, incarnation, epoch, handles, limits } = config;
        Self {
            core: Core::new(process, fabric, limits, handles),
            links: Links::default(),
            registered: RegisteredList::default(),
            epoch,
            incarnation,
            suspended: false,
            sharing: Sharing::default(),
            qp_numbers: 0,
            srq_numbers: 0,
        }
    }

    /// The limits of the device.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.core.limits
    }

    /// The number of objects that the device holds.
    #[must_use]
    pub fn counts(&self) -> Counts {
        Counts { queue_pairs: self.core.qps.len() as u32, memory_regions: self.core.regions.len() as u32 }
    }

    /// Queue pairs that wait for a moment to come. It grows when another one starts to wait: the next
    /// [`Self::progress`] returns the deadline.
    #[must_use]
    #[inline]
    pub fn waiting(&self) -> usize {
        self.core.waiting.len()
    }

    /// True if [`Self::take_events`], [`Self::take_link_requests`] or [`Self::take_group_requests`] would find
    /// something.
    #[must_use]
    #[inline]
    pub fn has_news(&self) -> bool {
        !self.core.events.is_empty() || self.links.has_requests() || self.core.groups.has_wanted()
    }

    /// Events since the last call.
    pub fn take_events(&mut self, into: &mut Vec<Event>) {
        into.append(&mut self.core.events);
    }
}

/// `ok` or [`Errno::INVALID`].
fn require(ok: bool) -> Result<(), Errno> {
    if ok { Ok(()) } else { Err(Errno::INVALID) }
}

/// [`Errno::NO_MEMORY`] unless `used` is below `limit`.
fn require_room(used: usize, limit: u32) -> Result<(), Errno> {
    if used < limit as usize { Ok(()) } else { Err(Errno::NO_MEMORY) }
}
