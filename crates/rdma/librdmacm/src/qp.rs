//! Queue pairs of identifiers, and their transitions.

use std::ptr;

use libc::c_int;
use verbs_abi as abi;
use verbs_abi::constants::IBV_MTU_4096;
use verbs_abi::constants::access::{
    IBV_ACCESS_REMOTE_ATOMIC, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE,
};
use verbs_abi::constants::qp_init_attr::{IBV_QP_INIT_ATTR_PD, IBV_QP_INIT_ATTR_XRCD};
use verbs_abi::constants::srq_init_attr::{
    IBV_SRQ_INIT_ATTR_CQ, IBV_SRQ_INIT_ATTR_PD, IBV_SRQ_INIT_ATTR_TYPE, IBV_SRQ_INIT_ATTR_XRCD,
};
use verbs_abi::constants::srq_type::{IBV_SRQT_BASIC, IBV_SRQT_XRC};
use verbs_abi::{
    RDMA_UDP_QKEY, ibv_pd, ibv_qp_attr, ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_srq_init_attr,
    ibv_srq_init_attr_ex, rdma_cm_id,
};

use crate::datagrams::route_to;
use crate::device::{Device, PORT, extended};
use crate::errno::{Errno, INVALID, Result, done, made, status};
use crate::id::Id;
use crate::manager::Manager;
use crate::multicast;
use crate::verbs::{kind, mask, state, zeroed};
use waiting::{lock, uncancelled};

/// Acknowledgement time-out of a queue pair, as an exponent: about a second.
const TIMEOUT: u8 = 18;

/// The pause that a queue pair without receives asks for, as verbs number it: 0.64 ms.
const RNR_TIMER: u8 = 12;

/// How an identifier's queue pair gets to the state that `attr` names: fills the rest of `attr`, and returns the mask.
///
/// # Errors
/// `EINVAL` if that is unknown, or depends on the other side, which is.
pub(crate) fn attributes(id: &Id, attr: &mut ibv_qp_attr) -> Result<c_int> {
    let connected = matches!(id.c.qp_type, kind::RC | kind::XRC_SEND | kind::XRC_RECV);
    match attr.qp_state {
        state::INIT => Ok(to_init(id, attr)),
        state::RTR if id.is_datagram() => Ok(mask::STATE),
        state::RTR => to_rtr(id, attr, connected),
        state::RTS if id.is_datagram() => {
            attr.sq_psn = 0;
            Ok(mask::STATE | mask::SQ_PSN)
        }
        state::RTS => Ok(to_rts(id, attr, connected)),
        _ => Err(INVALID),
    }
}

fn to_init(id: &Id, attr: &mut ibv_qp_attr) -> c_int {
    attr.pkey_index = 0;
    attr.port_num = PORT;
    let mask = mask::STATE | mask::PKEY_INDEX | mask::PORT;
    if id.is_datagram() {
        attr.qkey = RDMA_UDP_QKEY;
        return mask | mask::QKEY;
    }
    attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
    if id.c.qp_type != kind::UC {
        attr.qp_access_flags |= IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
    }
    mask | mask::ACCESS_FLAGS
}

fn to_rtr(id: &Id, attr: &mut ibv_qp_attr, connected: bool) -> Result<c_int> {
    let state = lock(&id.core.state);
    let (Some(peer), Some(offer)) = (state.peer, &state.offer) else { return Err(INVALID) };
    attr.ah_attr = route_to(peer.lid);
    attr.path_mtu = IBV_MTU_4096;
    attr.dest_qp_num = offer.qpn;
    attr.rq_psn = offer.psn;
    attr.max_dest_rd_atomic = state.responder_resources;
    attr.min_rnr_timer = RNR_TIMER;
    let mask = mask::STATE | mask::AV | mask::PATH_MTU | mask::DEST_QPN | mask::RQ_PSN;
    Ok(if connected { mask | mask::MAX_DEST_RD_ATOMIC | mask::MIN_RNR_TIMER } else { mask })
}

fn to_rts(id: &Id, attr: &mut ibv_qp_attr, connected: bool) -> c_int {
    let state = lock(&id.core.state);
    attr.sq_psn = state.psn;
    attr.max_rd_atomic = state.initiator_depth;
    attr.timeout = TIMEOUT;
    attr.retry_cnt = state.retry_count.min(7);
    attr.rnr_retry = state.rnr_retry_count.min(7);
    let mask = mask::STATE | mask::SQ_PSN;
    if connected {
        mask | mask::MAX_QP_RD_ATOMIC | mask::TIMEOUT | mask::RETRY_CNT | mask::RNR_RETRY
    } else {
        mask
    }
}

fn modify(id: &Id, to: u32) -> Result<()> {
    // SAFETY: all-zero bytes are a value of the structure.
    let mut attr: ibv_qp_attr = unsafe { zeroed() };
    attr.qp_state = to;
    let mask = if to == state::ERR { mask::STATE } else { attributes(id, &mut attr)? };
    let verbs = Manager::get()?.device.verbs;
    // SAFETY: the identifier's queue pair is live, and the attributes can be read.
    done(unsafe { (verbs.ibv_modify_qp)(id.c.qp, &raw mut attr, mask) })
}

/// Makes a connected identifier's queue pair, if it has one, ready to receive and to send.
pub(crate) fn make_ready(id: &Id) -> Result<()> {
    if id.c.qp.is_null() || id.is_datagram() {
        return Ok(());
    }
    modify(id, state::RTR).and_then(|()| modify(id, state::RTS))
}

/// Ends the queued requests of the identifier's queue pair.
pub(crate) fn flush(id: &Id) {
    if !id.c.qp.is_null() && !id.is_datagram() {
        // One that the program has reset has nothing queued.
        let _ = modify(id, state::ERR);
    }
}

/// Completion queues of an identifier's own, where the program brings none.
fn create_cqs(id: &mut Id, device: &Device, send: u32, receive: u32) -> Result<()> {
    if receive > 0 {
        (id.c.recv_cq_channel, id.c.recv_cq) = create_cq(id, device, receive)?;
    }
    if send > 0 {
        (id.c.send_cq_channel, id.c.send_cq) = create_cq(id, device, send)?;
    }
    Ok(())
}

fn create_cq(
    id: &mut Id,
    device: &Device,
    entries: u32,
) -> Result<(*mut abi::ibv_comp_channel, *mut abi::ibv_cq)> {
    let verbs = device.verbs;
    let context = (&raw mut id.c).cast();
    let entries = c_int::try_from(entries).map_err(|_| INVALID)?;
    // SAFETY: the device is open.
    let channel = made(unsafe { (verbs.ibv_create_comp_channel)(device.context) })?;
    // SAFETY: as above; the channel is live.
    match made(unsafe { (verbs.ibv_create_cq)(device.context, entries, context, channel, 0) }) {
        Ok(cq) => Ok((channel, cq)),
        Err(errno) => {
            // SAFETY: no thread uses the channel.
            unsafe { (verbs.ibv_destroy_comp_channel)(channel) };
            Err(errno)
        }
    }
}

/// Destroys the identifier's own completion queues, unless its queue pair or its shared receives use them.
fn destroy_cqs(id: &mut Id) {
    let shared = id.c.qp_type == kind::XRC_RECV && !id.c.srq.is_null();
    if shared || !id.c.qp.is_null() {
        return;
    }
    let Some(manager) = Manager::current() else { return };
    let verbs = manager.device.verbs;
    let c = &mut id.c;
    for (cq, channel) in [(&mut c.send_cq, &mut c.send_cq_channel), (&mut c.recv_cq, &mut c.recv_cq_channel)]
    {
        // SAFETY: the objects are the identifier's own, and no thread uses them any more.
        unsafe {
            if !cq.is_null() {
                (verbs.ibv_destroy_cq)(*cq);
            }
            if !channel.is_null() {
                (verbs.ibv_destroy_comp_channel)(*channel);
            }
        }
        (*cq, *channel) = (ptr::null_mut(), ptr::null_mut());
    }
}

/// Creates the identifier's queue pair, with own objects where the program gives none.
pub(crate) fn create(id: &mut Id, attr: &mut ibv_qp_init_attr_ex) -> Result<()> {
    let device = &Manager::get()?.device;
    // An identifier without an address has no device.
    if id.c.verbs.is_null() || !id.c.qp.is_null() {
        return Err(INVALID);
    }
    if attr.comp_mask & IBV_QP_INIT_ATTR_PD == 0 || attr.pd.is_null() {
        attr.comp_mask |= IBV_QP_INIT_ATTR_PD;
        attr.pd = if id.c.pd.is_null() { device.pd } else { id.c.pd };
    }
    // Messages for a target of extended reliable connections complete with the SRQ that they name.
    let is_target = attr.qp_type == kind::XRC_RECV;
    if is_target && (attr.comp_mask & IBV_QP_INIT_ATTR_XRCD == 0 || attr.xrcd.is_null()) {
        attr.comp_mask |= IBV_QP_INIT_ATTR_XRCD;
        attr.xrcd = device.xrcd()?;
    }
    let wanted = |given: *mut abi::ibv_cq, own: *mut abi::ibv_cq, entries: u32| {
        if is_target || !given.is_null() || !own.is_null() { 0 } else { entries }
    };
    let send = wanted(attr.send_cq, id.c.send_cq, attr.cap.max_send_wr);
    let receive = wanted(attr.recv_cq, id.c.recv_cq, attr.cap.max_recv_wr);
    let created = create_cqs(id, device, send, receive).and_then(|()| create_with(id, device, attr));
    if created.is_err() {
        destroy_cqs(id);
    }
    created
}

fn create_with(id: &mut Id, device: &Device, attr: &mut ibv_qp_init_attr_ex) -> Result<()> {
    if attr.send_cq.is_null() {
        attr.send_cq = id.c.send_cq;
    }
    if attr.recv_cq.is_null() {
        attr.recv_cq = id.c.recv_cq;
    }
    if attr.srq.is_null() {
        attr.srq = id.c.srq;
    }
    // SAFETY: the device is open; its table lies before its context.
    let create = unsafe { (*extended(device.context)).create_qp_ex }.ok_or(Errno(libc::ENOSYS))?;
    // SAFETY: as above; the attributes are the program's, and can be written.
    let qp = made(unsafe { create(device.context, attr) })?;
    id.c.qp = qp;
    let to = if id.is_datagram() { &[state::INIT, state::RTR, state::RTS] as &[u32] } else { &[state::INIT] };
    let ready = to.iter().try_for_each(|to| modify(id, *to)).and_then(|()| multicast::attach_to_all(id));
    if let Err(errno) = ready {
        id.c.qp = ptr::null_mut();
        // SAFETY: no other code knows the queue pair.
        unsafe { (device.verbs.ibv_destroy_qp)(qp) };
        return Err(errno);
    }
    id.c.pd = attr.pd;
    Ok(())
}

/// As [`create`], with the older attributes, which report the granted sizes to the program.
pub(crate) fn create_classic(id: &mut Id, pd: *mut ibv_pd, attr: &mut ibv_qp_init_attr) -> Result<()> {
    // SAFETY: null pointers and zeroes are values of the structure.
    let mut wanted: ibv_qp_init_attr_ex = unsafe { zeroed() };
    wanted.qp_context = attr.qp_context;
    wanted.send_cq = attr.send_cq;
    wanted.recv_cq = attr.recv_cq;
    wanted.srq = attr.srq;
    wanted.cap = attr.cap;
    wanted.qp_type = attr.qp_type;
    wanted.sq_sig_all = attr.sq_sig_all;
    wanted.comp_mask = IBV_QP_INIT_ATTR_PD;
    wanted.pd = pd;
    let created = create(id, &mut wanted);
    attr.send_cq = wanted.send_cq;
    attr.recv_cq = wanted.recv_cq;
    attr.srq = wanted.srq;
    attr.cap = wanted.cap;
    created
}

/// Ends the identifier's queue pair, and the objects that were made for it.
pub(crate) fn destroy(id: &mut Id) {
    // A forked child without an own manager has nothing to end.
    let Some(manager) = Manager::current() else { return };
    if !id.c.qp.is_null() {
        // SAFETY: the queue pair is live, and not used again.
        unsafe { (manager.device.verbs.ibv_destroy_qp)(id.c.qp) };
        id.c.qp = ptr::null_mut();
        destroy_cqs(id);
    }
}

pub(crate) unsafe extern "C" fn rdma_create_qp(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: the contract of the connection manager: a live identifier, and attributes that can be written.
    status(|| unsafe { Id::given(id).and_then(|id| create_classic(id, pd, attr.as_mut().ok_or(INVALID)?)) })
}

pub(crate) unsafe extern "C" fn rdma_create_qp_ex(
    id: *mut rdma_cm_id,
    attr: *mut ibv_qp_init_attr_ex,
) -> c_int {
    // SAFETY: as above.
    status(|| unsafe { Id::given(id).and_then(|id| create(id, attr.as_mut().ok_or(INVALID)?)) })
}

pub(crate) unsafe extern "C" fn rdma_destroy_qp(id: *mut rdma_cm_id) {
    // SAFETY: as above.
    if let Ok(id) = unsafe { Id::given(id) } {
        uncancelled(|| destroy(id));
    }
}

/// The arguments of `ibv_modify_qp` that bring a queue pair of the program to `attr->qp_state`.
pub(crate) unsafe extern "C" fn rdma_init_qp_attr(
    id: *mut rdma_cm_id,
    attr: *mut ibv_qp_attr,
    attr_mask: *mut c_int,
) -> c_int {
    // SAFETY: as above; both can be written.
    status(|| unsafe {
        Id::given(id).and_then(|id| {
            if id.c.verbs.is_null() {
                return Err(INVALID);
            }
            let mask = attributes(id, attr.as_mut().ok_or(INVALID)?)?;
            attr_mask.as_mut().map(|place| *place = mask).ok_or(INVALID)
        })
    })
}

fn create_srq(id: &mut Id, attr: &mut ibv_srq_init_attr_ex) -> Result<()> {
    let device = &Manager::get()?.device;
    if attr.comp_mask & IBV_SRQ_INIT_ATTR_TYPE == 0 {
        return Err(INVALID);
    }
    if attr.comp_mask & IBV_SRQ_INIT_ATTR_PD == 0 || attr.pd.is_null() {
        attr.comp_mask |= IBV_SRQ_INIT_ATTR_PD;
        attr.pd = if id.c.pd.is_null() { device.pd } else { id.c.pd };
    }
    if attr.srq_type == IBV_SRQT_XRC {
        complete_xrc(id, device, attr)?;
    }
    // SAFETY: the device is open; its table lies before its context.
    let create = unsafe { (*extended(device.context)).create_srq_ex }.ok_or(Errno(libc::ENOSYS))?;
    // SAFETY: as above; the attributes can be written.
    let created = made(unsafe { create(device.context, attr) });
    id.c.srq = created.inspect_err(|_| destroy_cqs(id))?;
    if id.c.pd.is_null() {
        id.c.pd = attr.pd;
    }
    Ok(())
}

/// Adds the objects that an SRQ of extended reliable connections needs and the program does not give: the default
/// domain, and a completion queue of the identifier's own.
fn complete_xrc(id: &mut Id, device: &Device, attr: &mut ibv_srq_init_attr_ex) -> Result<()> {
    if attr.comp_mask & IBV_SRQ_INIT_ATTR_XRCD == 0 || attr.xrcd.is_null() {
        attr.xrcd = device.xrcd()?;
    }
    if attr.comp_mask & IBV_SRQ_INIT_ATTR_CQ == 0 || attr.cq.is_null() {
        if id.c.recv_cq.is_null() {
            create_cqs(id, device, 0, attr.attr.max_wr)?;
        }
        attr.cq = id.c.recv_cq;
    }
    attr.comp_mask |= IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
    Ok(())
}

fn create_srq_classic(id: &mut Id, pd: *mut ibv_pd, attr: &mut ibv_srq_init_attr) -> Result<()> {
    // SAFETY: null pointers and zeroes are values of the structure.
    let mut wanted: ibv_srq_init_attr_ex = unsafe { zeroed() };
    wanted.srq_context = attr.srq_context;
    wanted.attr = attr.attr;
    wanted.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD;
    wanted.srq_type = if id.c.qp_type == kind::XRC_RECV { IBV_SRQT_XRC } else { IBV_SRQT_BASIC };
    wanted.pd = pd;
    let created = create_srq(id, &mut wanted);
    attr.attr = wanted.attr;
    created
}

pub(crate) unsafe extern "C" fn rdma_create_srq(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: *mut ibv_srq_init_attr,
) -> c_int {
    // SAFETY: as above.
    status(|| unsafe {
        Id::given(id).and_then(|id| create_srq_classic(id, pd, attr.as_mut().ok_or(INVALID)?))
    })
}

pub(crate) unsafe extern "C" fn rdma_create_srq_ex(
    id: *mut rdma_cm_id,
    attr: *mut ibv_srq_init_attr_ex,
) -> c_int {
    // SAFETY: as above.
    status(|| unsafe { Id::given(id).and_then(|id| create_srq(id, attr.as_mut().ok_or(INVALID)?)) })
}

pub(crate) unsafe extern "C" fn rdma_destroy_srq(id: *mut rdma_cm_id) {
    // SAFETY: as above.
    if let Ok(id) = unsafe { Id::given(id) } {
        uncancelled(|| destroy_srq(id));
    }
}

/// Ends the identifier's shared receives, and the objects that were made for them.
pub(crate) fn destroy_srq(id: &mut Id) {
    let Some(manager) = Manager::current() else { return };
    if !id.c.srq.is_null() {
        // SAFETY: the queue is live, and not used again.
        unsafe { (manager.device.verbs.ibv_destroy_srq)(id.c.srq) };
        id.c.srq = ptr::null_mut();
        destroy_cqs(id);
    }
}
