//! Events in the form that a program sees.

use std::ptr;
use std::sync::Arc;

use cm::{Incoming, Offer, Reason};
use libc::c_int;
use verbs_abi::cm_event::*;
use verbs_abi::{
    RDMA_UDP_QKEY, ibv_gid, rdma_cm_event, rdma_cm_id, rdma_conn_param, rdma_event_channel, rdma_ud_param,
};

use crate::channel::{Channel, ChannelObject, Queued};
use crate::datagrams::route_to;
use crate::errno::{INVALID, Result, object, status};
use crate::happening::Happening;
use crate::id::{Core, Id};
use crate::multicast;
use crate::qp;
use crate::verbs::zeroed;
use waiting::{lock, uncancelled};

/// The private data of a message, as the peer sees it: always the same length, filled with zeroes.
pub(crate) mod private_size {
    pub(crate) const REQUEST: usize = 56;
    pub(crate) const REPLY: usize = 196;
    pub(crate) const REJECT: usize = 148;
    pub(crate) const DATAGRAM_REQUEST: usize = 180;
    pub(crate) const DATAGRAM_REPLY: usize = 136;
}

/// Why a service for datagrams does not say where it is (InfiniBand specification, 16.7.3): there is none, or its program does not
/// want to.
const SIDR_UNSUPPORTED: c_int = 1;
const SIDR_REJECT: c_int = 2;

/// The object that a program holds until it acknowledges it.
#[repr(C)]
struct Event {
    c: rdma_cm_event,
    /// The identifier that counts its acknowledgement.
    core: Arc<Core>,
    /// The target of `param`.
    private: Vec<u8>,
}

impl Event {
    fn new(core: Arc<Core>, id: *mut rdma_cm_id, event: u32, code: c_int) -> Self {
        // SAFETY: null pointers and zeroes are values of the structure.
        let mut c: rdma_cm_event = unsafe { zeroed() };
        c.id = id;
        c.event = event;
        c.status = code;
        Self { c, core, private: Vec::new() }
    }

    fn private(&mut self, mut bytes: Vec<u8>, size: usize) -> (*const libc::c_void, u8) {
        bytes.resize(size, 0);
        self.private = bytes;
        (self.private.as_ptr().cast(), u8::try_from(size).unwrap_or(u8::MAX))
    }

    /// The other side's offer, from this side's point of view: the amount that it can accept is the amount that we can send.
    fn with_connection(mut self, offer: Offer, size: usize) -> Self {
        let (private_data, private_data_len) = self.private(offer.private, size);
        self.c.param.conn = rdma_conn_param {
            private_data,
            private_data_len,
            responder_resources: offer.initiator_depth,
            initiator_depth: offer.responder_resources,
            flow_control: offer.flow_control,
            retry_count: offer.retry_count,
            rnr_retry_count: offer.rnr_retry_count,
            srq: u8::from(offer.shared),
            qp_num: offer.qpn,
        };
        self
    }

    fn with_datagrams(mut self, lid: u16, offer: Offer, size: usize) -> Self {
        let (private_data, private_data_len) = self.private(offer.private, size);
        let ah_attr = route_to(lid);
        let param =
            rdma_ud_param { private_data, private_data_len, ah_attr, qp_num: offer.qpn, qkey: offer.psn };
        self.c.param.ud = param;
        self
    }

    fn with_group(mut self, group: ibv_gid, context: usize) -> Self {
        self.c.param.ud = rdma_ud_param {
            private_data: ptr::without_provenance(context),
            private_data_len: 0,
            ah_attr: multicast::route_to(group),
            qp_num: 0xff_ffff,
            qkey: RDMA_UDP_QKEY,
        };
        self
    }
}

/// The event that the program sees; `None` if it need not know.
fn present(Queued { core, happening }: Queued) -> Option<Event> {
    let shown = core.shown();
    let plain = |core, event, code| Some(Event::new(core, shown, event, code));
    match happening {
        Happening::AddressResolved => {
            // SAFETY: events of a destroyed identifier are withdrawn.
            unsafe { Id::of(shown) }.show_route();
            plain(core, RDMA_CM_EVENT_ADDR_RESOLVED, 0)
        }
        Happening::AddressFailed(code) => plain(core, RDMA_CM_EVENT_ADDR_ERROR, code),
        Happening::RouteResolved => plain(core, RDMA_CM_EVENT_ROUTE_RESOLVED, 0),
        Happening::Requested(child, incoming) => Some(requested(core, &child, *incoming)),
        Happening::Replied(offer) => replied(core, *offer),
        Happening::Established => plain(core, RDMA_CM_EVENT_ESTABLISHED, 0),
        Happening::Rejected(reason, private) => rejected(core, reason, private),
        Happening::Unreachable(code) => plain(core, RDMA_CM_EVENT_UNREACHABLE, code),
        Happening::Disconnected => plain(core, RDMA_CM_EVENT_DISCONNECTED, 0),
        Happening::TimewaitExit => plain(core, RDMA_CM_EVENT_TIMEWAIT_EXIT, 0),
        Happening::Joined(group, context) => {
            let event = Event::new(core, shown, RDMA_CM_EVENT_MULTICAST_JOIN, 0);
            Some(event.with_group(group, context))
        }
        Happening::JoinFailed(code, context) => {
            let event = Event::new(core, shown, RDMA_CM_EVENT_MULTICAST_ERROR, code);
            // SAFETY: all-zero bytes are a group.
            Some(event.with_group(unsafe { zeroed() }, context))
        }
    }
}

/// A peer requests a connection.
fn requested(listening: Arc<Core>, child: &Core, incoming: Incoming) -> Event {
    let (listener, id) = (listening.shown(), child.shown());
    // SAFETY: it was made when the event was taken.
    let shown = unsafe { Id::of(id) };
    shown.show_addresses();
    shown.show_route();
    let mut event = Event::new(listening, id, RDMA_CM_EVENT_CONNECT_REQUEST, 0);
    event.c.listen_id = listener;
    if shown.is_datagram() {
        let offer = Offer { qpn: 0, psn: 0, ..incoming.offer };
        event.with_datagrams(incoming.peer.lid, offer, private_size::DATAGRAM_REQUEST)
    } else {
        event.with_connection(incoming.offer, private_size::REQUEST)
    }
}

/// The other side has accepted: the queue pair is made ready, if the identifier has one.
fn replied(core: Arc<Core>, offer: Offer) -> Option<Event> {
    let shown = core.shown();
    // SAFETY: events of a destroyed identifier are withdrawn.
    let id = unsafe { Id::of(shown) };
    let lid = {
        let mut state = lock(&core.state);
        state.responder_resources = offer.initiator_depth;
        state.initiator_depth = offer.responder_resources;
        state.rnr_retry_count = offer.rnr_retry_count;
        state.offer = Some(offer.clone());
        state.peer?.lid
    };
    if id.is_datagram() {
        let event = Event::new(core, shown, RDMA_CM_EVENT_ESTABLISHED, 0);
        return Some(event.with_datagrams(lid, offer, private_size::DATAGRAM_REPLY));
    }
    let (event, code) = if id.c.qp.is_null() {
        (RDMA_CM_EVENT_CONNECT_RESPONSE, 0)
    } else {
        match qp::make_ready(id).and_then(|()| id.establish()) {
            Ok(()) => (RDMA_CM_EVENT_ESTABLISHED, 0),
            Err(errno) => {
                id.reject(Vec::new());
                qp::flush(id);
                (RDMA_CM_EVENT_CONNECT_ERROR, -errno.0)
            }
        }
    };
    Some(Event::new(core, shown, event, code).with_connection(offer, private_size::REPLY))
}

/// The other side rejects the connection. Of a datagram service only the active side gets this.
fn rejected(core: Arc<Core>, reason: Reason, private: Vec<u8>) -> Option<Event> {
    let shown = core.shown();
    // SAFETY: events of a destroyed identifier are withdrawn.
    let id = unsafe { Id::of(shown) };
    if id.is_datagram() {
        let (lid, was_asked) = {
            let state = lock(&core.state);
            (state.peer.map_or(0, |peer| peer.lid), state.offer.is_some())
        };
        if was_asked {
            return None;
        }
        let code = if reason == Reason::CONSUMER { SIDR_REJECT } else { SIDR_UNSUPPORTED };
        let event = Event::new(core, shown, RDMA_CM_EVENT_UNREACHABLE, code);
        let offer = Offer { private, ..Offer::default() };
        return Some(event.with_datagrams(lid, offer, private_size::DATAGRAM_REPLY));
    }
    // The program's posted requests are flushed.
    qp::flush(id);
    let event = Event::new(core, shown, RDMA_CM_EVENT_REJECTED, c_int::from(reason.0));
    Some(event.with_connection(Offer { private, ..Offer::default() }, private_size::REJECT))
}

/// The next event of the program's channel.
///
/// # Safety
/// `channel` came from this library.
pub(crate) unsafe fn next(channel: *mut rdma_event_channel) -> Result<*mut rdma_cm_event> {
    loop {
        // SAFETY: the caller's promise.
        let queue = &unsafe { ChannelObject::of(channel) }.channel;
        if let Some(event) = show(Channel::next(queue, |queued| is_taken(queued, channel))?) {
            return Ok(event);
        }
    }
}

/// The next event of a channel of our own, if there is one.
///
/// # Safety
/// As for [`next`].
pub(crate) unsafe fn take(channel: *mut rdma_event_channel) -> Option<*mut rdma_cm_event> {
    // SAFETY: the caller's promise.
    let queue = &unsafe { ChannelObject::of(channel) }.channel;
    while let Some(queued) = queue.take(|queued| is_taken(queued, channel)) {
        if let Some(event) = show(queued) {
            return Some(event);
        }
    }
    None
}

/// A new identifier is made before another thread may take the events after its request from the same channel: it stays
/// there, even if the listener is on its way to another.
fn is_taken(Queued { core, happening }: &Queued, channel: *mut rdma_event_channel) {
    core.acks.taken();
    if let Happening::Requested(child, _) = happening {
        // SAFETY: events of a destroyed identifier are withdrawn.
        let listener = unsafe { Id::of(core.shown()) };
        let c = &listener.c;
        Id::show(child.clone(), channel, c.context, (c.ps, c.qp_type), false);
    }
}

/// The result of [`present`], which the program must acknowledge.
fn show(queued: Queued) -> Option<*mut rdma_cm_event> {
    let core = queued.core.clone();
    let event = present(queued);
    if event.is_none() {
        core.acks.acknowledge(1);
    }
    event.map(|event| Box::into_raw(Box::new(event)).cast())
}

/// # Safety
/// `event` came from [`next`], and is not used again.
pub(crate) unsafe fn acknowledge(event: *mut rdma_cm_event) {
    // SAFETY: the caller's promise.
    let event = unsafe { Box::from_raw(event.cast::<Event>()) };
    event.core.acks.acknowledge(1);
}

/// Gives the next event of a channel; waits for it unless the descriptor is non-blocking.
pub(crate) unsafe extern "C" fn rdma_get_cm_event(
    channel: *mut rdma_event_channel,
    event: *mut *mut rdma_cm_event,
) -> c_int {
    if channel.is_null() || event.is_null() {
        return status(|| Err(INVALID));
    }
    // SAFETY: the contract of the connection manager: a live channel, and a pointer that can be written.
    status(|| unsafe { next(channel).map(|got| event.write(got)) })
}

pub(crate) unsafe extern "C" fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    if event.is_null() {
        return status(|| Err(INVALID));
    }
    // SAFETY: the contract of the connection manager: an event that was not acknowledged yet.
    uncancelled(|| unsafe { acknowledge(event) });
    0
}

pub(crate) unsafe extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    object(ChannelObject::create)
}

pub(crate) unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    if !channel.is_null() {
        // SAFETY: the contract of the connection manager: a live channel, which is not used again.
        uncancelled(|| unsafe { ChannelObject::destroy(channel) });
    }
}
