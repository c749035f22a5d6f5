//! Event channels: queues of events of connections, with a descriptor that is readable while there are any.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use verbs_abi::rdma_event_channel;

use crate::errno::Result;
use crate::happening::Happening;
use crate::id::Core;
use waiting::EventQueue;

/// Something that happened to an identifier.
pub(crate) struct Queued {
    pub(crate) core: Arc<Core>,
    pub(crate) happening: Happening,
}

impl Queued {
    /// The requester, if it is a request.
    pub(crate) fn asking(&self) -> Option<&Arc<Core>> {
        if let Happening::Requested(child, _) = &self.happening { Some(child) } else { None }
    }
}

/// The queue of events of the identifiers of one channel.
pub(crate) type Channel = EventQueue<Queued>;

/// The object behind a program's pointer.
#[repr(C)]
pub(crate) struct ChannelObject {
    shown: rdma_event_channel,
    pub(crate) channel: Arc<Channel>,
}

impl ChannelObject {
    /// A new channel, for the program.
    pub(crate) fn create() -> Result<*mut rdma_event_channel> {
        let channel = Arc::new(Channel::new()?);
        let shown = rdma_event_channel { fd: channel.fd() };
        Ok(Box::into_raw(Box::new(Self { shown, channel })).cast())
    }

    /// # Safety
    /// The program got `channel` from this library, and has not destroyed it.
    pub(crate) unsafe fn of<'a>(channel: *mut rdma_event_channel) -> &'a Self {
        // SAFETY: the caller's promise; every such pointer leads to the start of a `Self`.
        unsafe { &*channel.cast::<Self>() }
    }

    /// # Safety
    /// As for [`Self::of`], and the channel is not used again.
    pub(crate) unsafe fn destroy(channel: *mut rdma_event_channel) {
        /// Debian's `rping` destroys a channel while its other thread is on its way from one event to the next: late, it
        /// finds the descriptor closed, and ends the program as failed.
        const ON_ITS_WAY: Duration = Duration::from_millis(50);
        // SAFETY: the caller's promise.
        unsafe { Self::of(channel) }.channel.await_reader(ON_ITS_WAY);
        // SAFETY: the caller's promise.
        drop(unsafe { Box::from_raw(channel.cast::<Self>()) });
    }
}

/// Takes out the events of `core`, and of its unseen requesters. The program does not know these before it has
/// taken their requests, which come first: after the requests, other threads find no more of their events.
pub(crate) fn withdraw(channel: &Channel, core: &Arc<Core>) -> Vec<Queued> {
    let mut gone = HashSet::from([Arc::as_ptr(core)]);
    channel.withdraw(|queued| {
        let goes = gone.contains(&Arc::as_ptr(&queued.core));
        if goes {
            gone.extend(queued.asking().map(Arc::as_ptr));
        }
        goes
    })
}
