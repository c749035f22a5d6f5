//! Identifiers: the objects that a program holds, and their internal events.

use std::net::SocketAddr;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex};

use cm::{ConnectionId, ListenerId, Offer, Peer};
use libc::c_void;
use verbs_abi::port_space::{RDMA_PS_IB, RDMA_PS_IPOIB, RDMA_PS_TCP, RDMA_PS_UDP};
use verbs_abi::{ibv_pd, ibv_qp_init_attr, ibv_sa_path_rec, rdma_cm_id, rdma_event_channel};

use crate::channel::{Channel, ChannelObject, Queued, withdraw};
use crate::directory::Holder;
use crate::errno::{self, INVALID, Result};
use crate::happening::Happening;
use crate::multicast::Membership;
use crate::verbs::{kind, zeroed};
use waiting::{Acks, generation, lock};

/// The part of an identifier that others refer to, also when the program has destroyed it. Its state is locked after
/// the manager, and before channels.
pub(crate) struct Core {
    /// The program's object; null as long as the program does not know the identifier.
    shown: AtomicPtr<rdma_cm_id>,
    pub(crate) state: Mutex<State>,
    /// Events that the program has not acknowledged.
    pub(crate) acks: Acks,
    /// The value of [`generation`] when it was made.
    generation: u32,
}

/// How far an identifier has come. As the kernel's own it goes forward only, but that addresses are resolved again after a
/// failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Idle,
    Bound,
    Listening,
    Resolving,
    Resolved,
    Routed,
    /// A connection has been asked for, by one side or the other.
    Connecting,
}

/// The state of an identifier.
pub(crate) struct State {
    pub(crate) channel: Arc<Channel>,
    pub(crate) stage: Stage,
    /// Where it is bound.
    pub(crate) local: Option<SocketAddr>,
    /// The destination.
    pub(crate) remote: Option<SocketAddr>,
    /// The queue pair that the directory is to know under its address; if none, the manager's.
    pub(crate) published: Option<u32>,
    /// Its own keys in the directory.
    pub(crate) claimed: Vec<Vec<u8>>,
    /// No addresses of another family.
    pub(crate) only_family: bool,
    pub(crate) listener: Option<ListenerId>,
    pub(crate) connection: Option<ConnectionId>,
    /// Where the other side's manager is, once that is known.
    pub(crate) peer: Option<Peer>,
    /// The other side's queue pair.
    pub(crate) offer: Option<Offer>,
    pub(crate) psn: u32,
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry_count: u8,
    /// There has been a connection.
    pub(crate) connected: bool,
    /// Multicast groups.
    pub(crate) groups: Vec<Membership>,
}

impl Core {
    pub(crate) fn new(channel: Arc<Channel>) -> Arc<Self> {
        let state = State {
            channel,
            stage: Stage::Idle,
            local: None,
            remote: None,
            published: None,
            claimed: Vec::new(),
            only_family: false,
            listener: None,
            connection: None,
            peer: None,
            offer: None,
            psn: random() & 0xff_ffff,
            responder_resources: 0,
            initiator_depth: 0,
            retry_count: 7,
            rnr_retry_count: 7,
            connected: false,
            groups: Vec::new(),
        };
        let shown = AtomicPtr::new(ptr::null_mut());
        Arc::new(Self { shown, state: Mutex::new(state), acks: Acks::default(), generation: generation() })
    }

    /// True if a parent process has made it. Its state is as a thread of the parent left it, perhaps locked for
    /// ever, so it is not used.
    pub(crate) fn is_inherited(&self) -> bool {
        self.generation != generation()
    }

    /// Its holder for the directory.
    pub(crate) fn holder(self: &Arc<Self>) -> Holder {
        Arc::as_ptr(self).addr()
    }

    /// Queues something for the program.
    pub(crate) fn push(self: &Arc<Self>, happening: Happening) {
        let state = lock(&self.state);
        state.channel.push(Queued { core: self.clone(), happening });
    }

    /// The other side's address is known, or cannot be: then it may be asked for again.
    pub(crate) fn resolved(&self, known: bool) {
        lock(&self.state).stage = if known { Stage::Resolved } else { Stage::Bound };
    }

    /// The program's object, or null.
    pub(crate) fn shown(&self) -> *mut rdma_cm_id {
        self.shown.load(Ordering::Acquire)
    }

    /// Moves queued events to another channel, where later ones go as well. Events of requested connections
    /// follow the requests for them.
    pub(crate) fn migrate(self: &Arc<Self>, to: &Arc<Channel>) {
        let mut state = lock(&self.state);
        let queued = withdraw(&state.channel, self);
        for child in queued.iter().filter_map(Queued::asking) {
            lock(&child.state).channel = to.clone();
        }
        state.channel = to.clone();
        queued.into_iter().for_each(|queued| to.push(queued));
    }

    /// Takes out the events that the program has not seen, also those of requesters.
    pub(crate) fn withdraw(self: &Arc<Self>) -> Vec<Queued> {
        let channel = lock(&self.state).channel.clone();
        withdraw(&channel, self)
    }
}

impl State {
    /// Goes on to `to`.
    ///
    /// # Errors
    /// `EINVAL` if it is not at one of `from`.
    pub(crate) fn go_on(&mut self, from: &[Stage], to: Stage) -> Result<()> {
        if !from.contains(&self.stage) {
            return Err(INVALID);
        }
        self.stage = to;
        Ok(())
    }
}

/// A queue pair that is made for each connection of a listening endpoint.
#[derive(Clone, Copy)]
pub(crate) struct Prepared {
    pub(crate) pd: *mut ibv_pd,
    pub(crate) attributes: ibv_qp_init_attr,
}

/// The object that a program holds.
#[repr(C)]
pub(crate) struct Id {
    pub(crate) c: rdma_cm_id,
    pub(crate) core: Arc<Core>,
    pub(crate) path: ibv_sa_path_rec,
    /// The program has no channel: calls return when the event has come.
    pub(crate) synchronous: bool,
    pub(crate) prepared: Option<Prepared>,
}

impl Id {
    /// A new identifier. Without a channel it is synchronous, and gets a channel of its own.
    pub(crate) fn create(
        channel: *mut rdma_event_channel,
        context: *mut c_void,
        space: u32,
        qp_type: u32,
    ) -> Result<*mut rdma_cm_id> {
        errno::memory()?;
        let synchronous = channel.is_null();
        let channel = if synchronous { ChannelObject::create()? } else { channel };
        // SAFETY: the program's or a fresh channel.
        let core = Core::new(unsafe { ChannelObject::of(channel) }.channel.clone());
        Ok(Self::show(core, channel, context, (space, qp_type), synchronous))
    }

    /// Gives `core` to the program.
    pub(crate) fn show(
        core: Arc<Core>,
        channel: *mut rdma_event_channel,
        context: *mut c_void,
        (space, qp_type): (u32, u32),
        synchronous: bool,
    ) -> *mut rdma_cm_id {
        // SAFETY: null pointers and zeroes are values of these structures.
        let (mut c, path): (rdma_cm_id, ibv_sa_path_rec) = unsafe { (zeroed(), zeroed()) };
        c.channel = channel;
        c.context = context;
        c.ps = space;
        c.qp_type = qp_type;
        let shown = Box::into_raw(Box::new(Self { c, core, path, synchronous, prepared: None })).cast();
        // SAFETY: the identifier was just made.
        unsafe { Self::of(shown) }.core.shown.store(shown, Ordering::Release);
        shown
    }

    /// The identifier at which a program's pointer points. The program uses it in one thread at a time, and none of
    /// the library's own threads touches more than its core.
    ///
    /// # Safety
    /// `id` came from this library and is not destroyed, or is being destroyed by the caller.
    pub(crate) unsafe fn of<'a>(id: *mut rdma_cm_id) -> &'a mut Self {
        // SAFETY: the caller's promise.
        unsafe { &mut *id.cast::<Self>() }
    }

    /// As [`Self::of`], for a pointer from the program.
    ///
    /// # Errors
    /// `EINVAL` for NULL, and for an identifier of the parent.
    ///
    /// # Safety
    /// As for [`Self::of`], or `id` is NULL.
    pub(crate) unsafe fn given<'a>(id: *mut rdma_cm_id) -> Result<&'a mut Self> {
        if id.is_null() {
            return Err(INVALID);
        }
        // SAFETY: the caller's promise.
        let id = unsafe { Self::of(id) };
        if id.core.is_inherited() { Err(INVALID) } else { Ok(id) }
    }

    /// # Safety
    /// `id` came from this library, and is not used again.
    pub(crate) unsafe fn free(id: *mut rdma_cm_id) {
        // SAFETY: the caller's promise.
        drop(unsafe { Box::from_raw(id.cast::<Self>()) });
    }

    pub(crate) fn is_datagram(&self) -> bool {
        self.c.qp_type == kind::UD
    }
}

/// The type of queue pairs of a port space.
///
/// # Errors
/// `EINVAL` for one that there is not.
pub(crate) fn type_of(space: u32) -> Result<u32> {
    match space {
        RDMA_PS_UDP | RDMA_PS_IPOIB => Ok(kind::UD),
        RDMA_PS_TCP | RDMA_PS_IB => Ok(kind::RC),
        _ => Err(INVALID),
    }
}

/// A random number; 0 if the kernel cannot give one, which is good enough for its use.
pub(crate) fn random() -> u32 {
    let mut bytes = [0; 4];
    let _ = getrandom::fill(&mut bytes);
    u32::from_ne_bytes(bytes)
}
