//! Completion channels: a descriptor that is readable while events of its CQs wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use libc::{c_int, c_void};
use softhca::Errno;
use verbs_abi::{ibv_comp_channel, ibv_context, ibv_cq};
use waiting::{EventQueue, Uncancelled};

use crate::context::Context;
use crate::cq::Cq;
use crate::errno;
use crate::object;
use crate::process::{Held, Process};

/// The object behind a program's `ibv_comp_channel`.
#[repr(C)]
pub(crate) struct Channel {
    base: ibv_comp_channel,
    pub(crate) events: Arc<EventQueue<Held<ibv_cq>>>,
    /// CQs that use the channel.
    pub(crate) users: AtomicU32,
}

starts_with!(Channel, ibv_comp_channel);

pub(crate) unsafe extern "C" fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    errno::object(|| {
        EventQueue::new().map_err(|_| Errno(libc::EMFILE)).map(|events| {
            let base = ibv_comp_channel { context, fd: events.fd(), refcnt: 0 };
            object::give(Channel { base, events: Arc::new(events), users: AtomicU32::new(0) })
        })
    })
}

pub(crate) unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    // SAFETY: the contract of verbs.
    if unsafe { Channel::of(channel) }.users.load(Ordering::Acquire) != 0 {
        return libc::EBUSY;
    }
    let _whole = Uncancelled::new();
    // SAFETY: `ibv_create_comp_channel` gave it, and the program gives it back.
    unsafe { object::take::<Channel, _>(channel) };
    0
}

/// The next event; waits unless the channel's descriptor is non-blocking.
pub(crate) unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    // SAFETY: the contract of verbs; a context outlives its channels.
    let (channel, process) = unsafe { (Channel::of(channel), Context::of((*channel).context).process) };
    // SAFETY: a CQ's events leave the channel before it is freed.
    let taken = next(process, &channel.events, |Held(cq)| unsafe { Cq::of(*cq) }.comp_acks.taken());
    // SAFETY: the contract of verbs; and the CQ waits for the acknowledgement before it goes.
    errno::minus_one(taken.map(|Held(found)| unsafe {
        cq.write(found);
        cq_context.write((*found).cq_context);
    }))
}

/// The next event of the program's. A forked child, which shares the descriptor with its parent, does not take the
/// parent's wake-ups.
pub(crate) fn next<T: 'static>(
    process: &Process,
    events: &Arc<EventQueue<T>>,
    taken: impl Fn(&T),
) -> Result<T, Errno> {
    process.own()?;
    EventQueue::next(events, taken).map_err(|error| Errno(error.raw_os_error().unwrap_or(libc::EIO)))
}

pub(crate) unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, events: u32) {
    // SAFETY: the contract of verbs.
    unsafe { Cq::of(cq) }.comp_acks.acknowledge(events);
}
