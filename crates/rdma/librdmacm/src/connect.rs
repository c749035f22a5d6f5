//! Connections: connect, accept, reject, disconnect.

use std::net::SocketAddr;

use cm::Offer;
use cm::wire::MAX_PRIVATE;
use libc::{c_int, c_void};
use verbs_abi::constants::event::IBV_EVENT_COMM_EST;
use verbs_abi::{RDMA_MAX_RESOURCES, RDMA_UDP_QKEY, ibv_ece, rdma_cm_id, rdma_conn_param};

use crate::bind::{destroy, migrate};
use crate::errno::{Errno, INVALID, Result, status};
use crate::event::{self, private_size};
use crate::id::{Id, Stage};
use crate::manager::{Manager, Purpose};
use crate::qp;
use waiting::lock;

/// Default retries of a request, and of a missing receive: for ever.
const RETRIES: u8 = 7;

/// The program's private data, at most `size` bytes of it.
///
/// # Safety
/// `bytes` is NULL, or readable for `length` bytes.
unsafe fn private(bytes: *const c_void, length: u8, size: usize) -> Result<Vec<u8>> {
    if bytes.is_null() || length == 0 {
        return Ok(Vec::new());
    }
    let length = usize::from(length);
    if length > size.min(MAX_PRIVATE) {
        return Err(INVALID);
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(bytes.cast::<u8>(), length) }.to_vec())
}

impl Id {
    /// The offer of this side's queue pair.
    ///
    /// # Safety
    /// The private data of `param` is readable.
    unsafe fn offer(&self, param: Option<&rdma_conn_param>, size: usize) -> Result<Offer> {
        let state = lock(&self.core.state);
        // SAFETY: a live queue pair of the identifier, or none.
        let own = unsafe { self.c.qp.as_ref() };
        let mut offer = Offer {
            qpn: own.map_or_else(|| param.map_or(0, |param| param.qp_num), |qp| qp.qp_num),
            psn: if self.is_datagram() { RDMA_UDP_QKEY } else { state.psn },
            kind: u8::try_from(self.c.qp_type).unwrap_or(0),
            shared: own.map_or_else(|| param.is_some_and(|param| param.srq != 0), |qp| !qp.srq.is_null()),
            responder_resources: state.responder_resources,
            initiator_depth: state.initiator_depth,
            retry_count: RETRIES,
            rnr_retry_count: RETRIES,
            ..Offer::default()
        };
        if let Some(param) = param {
            offer.flow_control = param.flow_control;
            offer.retry_count = param.retry_count;
            offer.rnr_retry_count = param.rnr_retry_count;
            // SAFETY: the caller's promise.
            offer.private = unsafe { private(param.private_data, param.private_data_len, size)? };
        }
        Ok(offer)
    }

    /// # Safety
    /// The private data of `param` is readable.
    pub(crate) unsafe fn connect(&mut self, param: Option<&rdma_conn_param>) -> Result<()> {
        let remote = {
            let mut state = lock(&self.core.state);
            state.go_on(&[Stage::Routed], Stage::Connecting)?;
            state.remote
        };
        // SAFETY: the caller's promise.
        let asked = remote.ok_or(INVALID).and_then(|remote| unsafe { self.ask(remote, param) });
        asked.inspect_err(|_| lock(&self.core.state).stage = Stage::Routed)?;
        self.complete()
    }

    /// Asks for the connection.
    ///
    /// # Safety
    /// The private data of `param` is readable.
    unsafe fn ask(&self, remote: SocketAddr, param: Option<&rdma_conn_param>) -> Result<()> {
        let manager = Manager::get()?;
        let device = &manager.device;
        {
            let mut state = lock(&self.core.state);
            let asked = |given: Option<u8>, most: u8| match given.unwrap_or(RDMA_MAX_RESOURCES) {
                RDMA_MAX_RESOURCES => Ok(most),
                given if given > most => Err(INVALID),
                given => Ok(given),
            };
            state.responder_resources =
                asked(param.map(|param| param.responder_resources), device.max_responder_resources)?;
            state.initiator_depth =
                asked(param.map(|param| param.initiator_depth), device.max_initiator_depth)?;
            state.retry_count = param.map_or(RETRIES, |param| param.retry_count);
        }
        let size = if self.is_datagram() { private_size::DATAGRAM_REQUEST } else { private_size::REQUEST };
        // SAFETY: the caller's promise.
        let offer = Box::new(unsafe { self.offer(param, size)? });
        let service =
            cm::Service { space: self.c.ps as u16, address: remote.ip().to_canonical(), port: remote.port() };
        manager.look_up(&self.core, service, Purpose::Connect(offer), None)
    }

    /// # Safety
    /// The private data of `param` is readable.
    pub(crate) unsafe fn accept(&mut self, param: Option<&rdma_conn_param>) -> Result<()> {
        let manager = Manager::get()?;
        let connection = {
            let mut state = lock(&self.core.state);
            let granted = |given: Option<u8>, asked: u8, most: u8| match given.unwrap_or(RDMA_MAX_RESOURCES) {
                RDMA_MAX_RESOURCES => Ok(asked.min(most)),
                given if given > most => Err(INVALID),
                given => Ok(given),
            };
            let (asked, most) = (state.responder_resources, manager.device.max_responder_resources);
            state.responder_resources = granted(param.map(|param| param.responder_resources), asked, most)?;
            let (asked, most) = (state.initiator_depth, manager.device.max_initiator_depth);
            state.initiator_depth = granted(param.map(|param| param.initiator_depth), asked, most)?;
            state.connection.ok_or(INVALID)?
        };
        qp::make_ready(self)?;
        let size = if self.is_datagram() { private_size::DATAGRAM_REPLY } else { private_size::REPLY };
        // SAFETY: the caller's promise.
        let offer = unsafe { self.offer(param, size)? };
        if !manager.with(|inner, now| inner.cm.accept(connection, offer, now)) {
            qp::flush(self);
            return Err(INVALID);
        }
        if self.is_datagram() {
            self.acknowledge_own();
            return Ok(());
        }
        self.complete()
    }

    /// Rejects a request or a reply; `false` if there is none.
    pub(crate) fn reject(&mut self, private: Vec<u8>) -> bool {
        let connection = lock(&self.core.state).connection;
        let (Some(connection), Some(manager)) = (connection, Manager::current()) else { return false };
        manager.with(|inner, now| inner.cm.reject(connection, private, now))
    }

    /// Says after a reply that this side is ready.
    pub(crate) fn establish(&mut self) -> Result<()> {
        let connection = lock(&self.core.state).connection.ok_or(INVALID)?;
        if !Manager::get()?.with(|inner, _| inner.cm.establish(connection)) {
            return Err(INVALID);
        }
        lock(&self.core.state).connected = true;
        Ok(())
    }

    pub(crate) fn disconnect(&mut self) -> Result<()> {
        let connection = lock(&self.core.state).connection.ok_or(INVALID)?;
        qp::flush(self);
        if !Manager::get()?.with(|inner, now| inner.cm.disconnect(connection, now)) {
            return Err(INVALID);
        }
        self.complete()
    }

    fn notice(&mut self, event: u32) -> Result<()> {
        if event == IBV_EVENT_COMM_EST {
            let connection = lock(&self.core.state).connection.ok_or(INVALID)?;
            Manager::get()?.with(|inner, _| inner.cm.notice_ready(connection));
        }
        Ok(())
    }

    /// The next connection request to a synchronous listener, with a queue pair if the listener was created with
    /// attributes for one.
    fn request(&mut self) -> Result<*mut rdma_cm_id> {
        if !self.synchronous {
            return Err(INVALID);
        }
        self.acknowledge_own();
        // SAFETY: the channel is the identifier's own.
        let event = unsafe { event::next(self.c.channel)? };
        // SAFETY: the event was just made, and so the identifier in it.
        let (got, asked) = unsafe { ((*event).event, (*event).id) };
        if got != verbs_abi::cm_event::RDMA_CM_EVENT_CONNECT_REQUEST {
            self.c.event = event;
            return Err(INVALID);
        }
        // SAFETY: as above.
        let id = unsafe { Id::of(asked) };
        match self.prepare(id) {
            Ok(()) => {
                id.c.event = event;
                Ok(asked)
            }
            Err(errno) => {
                // Otherwise no code would know the requester, which would wait for ever.
                // SAFETY: neither is used again.
                unsafe {
                    event::acknowledge(event);
                    destroy(asked);
                }
                Err(errno)
            }
        }
    }

    /// Makes the identifier of a request synchronous, with a queue pair.
    fn prepare(&self, id: &mut Self) -> Result<()> {
        migrate(id, std::ptr::null_mut())?;
        match self.prepared {
            Some(mut prepared) => qp::create_classic(id, prepared.pd, &mut prepared.attributes),
            None => Ok(()),
        }
    }
}

pub(crate) unsafe extern "C" fn rdma_connect(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    // SAFETY: the contract of the connection manager: a live identifier, and NULL or parameters with private data of
    // the stated length.
    status(|| unsafe { Id::given(id).and_then(|id| id.connect(param.as_ref())) })
}

pub(crate) unsafe extern "C" fn rdma_accept(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    // SAFETY: as above.
    status(|| unsafe { Id::given(id).and_then(|id| id.accept(param.as_ref())) })
}

pub(crate) unsafe extern "C" fn rdma_reject(id: *mut rdma_cm_id, bytes: *const c_void, length: u8) -> c_int {
    // SAFETY: as above.
    status(|| unsafe {
        let private = private(bytes, length, private_size::REJECT)?;
        Id::given(id)?.reject(private).then_some(()).ok_or(INVALID)
    })
}

/// No vendor's options are ever asked for, so that there is nothing more to say than in any other rejection.
pub(crate) unsafe extern "C" fn rdma_reject_ece(
    id: *mut rdma_cm_id,
    bytes: *const c_void,
    length: u8,
) -> c_int {
    // SAFETY: as above.
    unsafe { rdma_reject(id, bytes, length) }
}

pub(crate) unsafe extern "C" fn rdma_establish(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: as above.
    status(|| unsafe { Id::given(id).and_then(Id::establish) })
}

pub(crate) unsafe extern "C" fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: as above.
    status(|| unsafe { Id::given(id).and_then(Id::disconnect) })
}

pub(crate) unsafe extern "C" fn rdma_notify(id: *mut rdma_cm_id, event: u32) -> c_int {
    // SAFETY: as above.
    status(|| unsafe { Id::given(id).and_then(|id| id.notice(event)) })
}

pub(crate) unsafe extern "C" fn rdma_get_request(
    listener: *mut rdma_cm_id,
    id: *mut *mut rdma_cm_id,
) -> c_int {
    if id.is_null() {
        return status(|| Err(INVALID));
    }
    // SAFETY: as above; `id` can be written.
    status(|| unsafe { Id::given(listener).and_then(Id::request).map(|request| id.write(request)) })
}

/// The device has no vendor's options.
pub(crate) unsafe extern "C" fn rdma_set_local_ece(_: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    // SAFETY: the contract of the connection manager: NULL, or readable.
    let none = unsafe { ece.as_ref() }.is_some_and(|ece| ece.vendor_id == 0 && ece.options == 0);
    status(|| if none { Ok(()) } else { Err(Errno(libc::EOPNOTSUPP)) })
}

pub(crate) unsafe extern "C" fn rdma_get_remote_ece(_: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    if ece.is_null() {
        return status(|| Err(INVALID));
    }
    // SAFETY: the contract of the connection manager: `ece` can be written.
    unsafe { ece.write(ibv_ece { vendor_id: 0, options: 0, comp_mask: 0 }) };
    0
}
