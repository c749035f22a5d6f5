//! Event channels: queues of what happened to connections, with a descriptor that is readable while there is any.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use verbs_abi::rdma_event_channel;

use crate::errno::Result;
use crate::happening::Happening;
use crate::id::Core;
use waiting::{EventFd, lock};

/// Something that happened to an identifier.
pub(crate) struct Queued {
    pub(crate) core: Arc<Core>,
    pub(crate) happening: Happening,
}

/// See the module.
pub(crate) struct Channel {
    ready: EventFd,
    queue: Mutex<VecDeque<Queued>>,
}

/// What a program holds.
#[repr(C)]
pub(crate) struct ChannelObject {
    shown: rdma_event_channel,
    pub(crate) channel: Arc<Channel>,
}

impl ChannelObject {
    /// A new channel, for the program.
    pub(crate) fn create() -> Result<*mut rdma_event_channel> {
        let ready = EventFd::new(libc::EFD_SEMAPHORE)?;
        let shown = rdma_event_channel { fd: ready.fd() };
        let channel = Arc::new(Channel { ready, queue: Mutex::default() });
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
        // SAFETY: the caller's promise.
        drop(unsafe { Box::from_raw(channel.cast::<Self>()) });
    }
}

impl Channel {
    pub(crate) fn push(&self, queued: Queued) {
        lock(&self.queue).push_back(queued);
        self.ready.signal();
    }

    /// The oldest; waits for it unless the descriptor is non-blocking. `taken` sees it before anybody can
    /// [`Self::withdraw`] it.
    ///
    /// # Errors
    /// `EAGAIN`, `EINTR`.
    pub(crate) fn next(&self, taken: impl Fn(&Queued)) -> Result<Queued> {
        loop {
            self.ready.wait()?;
            let mut queue = lock(&self.queue);
            if let Some(queued) = queue.pop_front() {
                taken(&queued);
                return Ok(queued);
            }
        }
    }

    /// Takes out what is of `core`.
    pub(crate) fn withdraw(&self, core: &Arc<Core>) -> Vec<Queued> {
        let mut queue = lock(&self.queue);
        let (withdrawn, left): (Vec<_>, Vec<_>) =
            queue.drain(..).partition(|queued: &Queued| Arc::ptr_eq(&queued.core, core));
        queue.extend(left);
        withdrawn.iter().for_each(|_| self.ready.take());
        withdrawn
    }
}
