//! Classic posting: `ibv_post_send`, `ibv_post_recv`, `ibv_post_srq_recv`.

use std::slice;

use libc::c_int;
use softhca::{Device, Errno, Payload, PlainSend, Posted, QpKind, Rdma, SendOp, SendWr, Sge};
use verbs_abi::constants::{send_flags, wr_opcode};
use verbs_abi::{ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_sge, ibv_srq};

use crate::address::Ah;
use crate::process::State;
use crate::qp::Qp;
use crate::srq::Srq;
use crate::{errno, memory_window};

const _: () = assert!(size_of::<Sge>() == size_of::<ibv_sge>());

/// Posts a list; on an error `bad` names the first request that was not posted.
pub(crate) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    list: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the contract of verbs.
    let qp = unsafe { Qp::of(qp) };
    let mut next = list;
    let posted = match qp.process.lock_as_owner() {
        // SAFETY: the contract of verbs.
        Some(mut state) => unsafe { post_locked(&mut state, qp, &mut next) },
        // SAFETY: as above.
        None => qp.process.locked_after_yield(|state| unsafe { post_locked(state, qp, &mut next) }),
    };
    // SAFETY: the contract of verbs: `bad` can be written.
    unsafe { report(posted, next, bad) }
}

/// Posts a list under the lock, and handles the consequences. On an error `next` is the request that was
/// not posted.
///
/// # Safety
/// `next` is NULL or a live list. Its arrays have the lengths in the list.
#[inline(always)]
unsafe fn post_locked(state: &mut State, qp: &Qp, next: &mut *mut ibv_send_wr) -> Result<(), Errno> {
    // SAFETY: the caller's promise is passed on.
    unsafe { write_plainly(&mut state.device, qp, next) };
    let mut outcome = (false, Ok(()));
    if !next.is_null() {
        // SAFETY: as above.
        outcome = unsafe { post_sends(&mut state.device, qp, next) };
    }
    let (queued, posted) = outcome;
    ring(qp, state, queued);
    posted
}

/// Executes the plain WRITEs at the start of a list, and leaves the rest in `next`.
///
/// They cost the program little more than their instructions: some 150 here instead of the 240 of [`post_sends`].
///
/// # Safety
/// `next` is NULL or a live list. Its arrays have the lengths in the list.
#[inline(always)]
unsafe fn write_plainly(device: &mut Device, qp: &Qp, next: &mut *mut ibv_send_wr) {
    // SAFETY: the caller's promise.
    while let Some(wr) = unsafe { next.as_ref() }.filter(|wr| is_plain_write(wr)) {
        // SAFETY: as above.
        if !device.write_plainly(qp.handle, &unsafe { rdma(wr, false) }) {
            break;
        }
        *next = wr.next;
    }
}

/// True for WRITEs of one piece.
#[inline(always)]
fn is_plain_write(wr: &ibv_send_wr) -> bool {
    wr.opcode == wr_opcode::IBV_WR_RDMA_WRITE && wr.num_sge == 1 && !wr.sg_list.is_null()
}

/// A WRITE, or a READ, of one piece.
///
/// # Safety
/// The request has one piece, and is a WRITE or a READ.
#[inline(always)]
unsafe fn rdma(wr: &ibv_send_wr, reads: bool) -> Rdma<'_> {
    // SAFETY: the caller's promise; the union's member holds plain integers.
    let (piece, to) = unsafe { (piece(wr), wr.wr.rdma) };
    let signaled = wr.send_flags & send_flags::IBV_SEND_SIGNALED != 0;
    let (va, rkey) = (to.remote_addr, to.rkey);
    Rdma { wr_id: wr.wr_id, va, rkey, reads, signaled, payload: payload(wr, piece) }
}

/// The only piece of a request.
///
/// # Safety
/// It has one.
#[inline(always)]
unsafe fn piece(wr: &ibv_send_wr) -> &[Sge] {
    // SAFETY: the caller's promise; both structures are laid out alike.
    slice::from_ref(unsafe { &*wr.sg_list.cast::<Sge>() })
}

/// Rings the doorbell if anything waits for it, and passes on the effects of posting.
#[inline(always)]
pub(crate) fn ring(qp: &Qp, state: &mut State, queued: bool) {
    /// The weight of a post that drives the link as well, and takes so much longer than a poll.
    const POLLS: u32 = 4;
    let looked = queued && state.device.defer_doorbell(qp.handle);
    if looked | state.device.look_after_many(qp.handle) {
        qp.process.count_polls(POLLS);
    }
    if queued || state.device.has_news() {
        qp.process.attend(state);
    }
}

/// Posts each request of a list until one is refused, which is then left in `next`. Also returns whether any waits for the
/// doorbell.
///
/// # Safety
/// `next` is NULL or a live list. Its arrays have the lengths in the list.
#[inline(always)]
unsafe fn post_sends(device: &mut Device, qp: &Qp, next: &mut *mut ibv_send_wr) -> (bool, Result<(), Errno>) {
    let mut queued = false;
    // SAFETY: the caller's promise.
    while let Some(wr) = unsafe { next.as_ref() } {
        // SAFETY: as above.
        let posted = match unsafe { frequent(wr, qp.kind) } {
            Some(Frequent::Rdma(rdma)) if device.post_rdma(qp.handle, &rdma) => Ok(Posted::Done),
            // SAFETY: as above.
            Some(Frequent::Send(send)) if unsafe { device.send_express(qp.handle, &send) } => {
                Ok(Posted::Done)
            }
            // SAFETY: as above.
            Some(_) => unsafe {
                send_wr(wr, qp.kind).and_then(|wr| device.queue_send(qp.handle, &wr)).map(|()| Posted::Queued)
            },
            // SAFETY: as above.
            None => unsafe { send_wr(wr, qp.kind).and_then(|wr| device.post_send(qp.handle, &wr)) },
        };
        match posted {
            Ok(posted) => queued |= posted == Posted::Queued,
            Err(error) => return (queued, Err(error)),
        }
        *next = wr.next;
    }
    (queued, Ok(()))
}

/// The frequent requests, with one piece of memory: they need not be converted to a request of the device first.
enum Frequent<'a> {
    Rdma(Rdma<'a>),
    Send(PlainSend<'a>),
}

/// # Safety
/// The request's array is as long as it says.
#[inline(always)]
unsafe fn frequent(wr: &ibv_send_wr, kind: QpKind) -> Option<Frequent<'_>> {
    if wr.num_sge != 1 || wr.sg_list.is_null() {
        return None;
    }
    let send = |imm| {
        let has = |flag: u32| wr.send_flags & flag != 0;
        Frequent::Send(PlainSend {
            wr_id: wr.wr_id,
            imm,
            signaled: has(send_flags::IBV_SEND_SIGNALED),
            fence: has(send_flags::IBV_SEND_FENCE),
            solicited: has(send_flags::IBV_SEND_SOLICITED),
            // SAFETY: the caller's promise.
            payload: payload(wr, unsafe { piece(wr) }),
        })
    };
    match wr.opcode {
        // SAFETY: the caller's promise.
        wr_opcode::IBV_WR_RDMA_WRITE => Some(Frequent::Rdma(unsafe { rdma(wr, false) })),
        // SAFETY: as above.
        wr_opcode::IBV_WR_RDMA_READ => Some(Frequent::Rdma(unsafe { rdma(wr, true) })),
        wr_opcode::IBV_WR_SEND if kind != QpKind::Ud => Some(send(None)),
        wr_opcode::IBV_WR_SEND_WITH_IMM if kind != QpKind::Ud => Some(send(Some(wr.imm_data))),
        _ => None,
    }
}

/// # Safety
/// `bad` can be written if `posted` is an error.
unsafe fn report<T>(posted: Result<(), Errno>, at: *mut T, bad: *mut *mut T) -> c_int {
    if posted.is_err() && !bad.is_null() {
        // SAFETY: the caller's promise.
        unsafe { bad.write(at) };
    }
    errno::code(posted)
}

/// # Safety
/// The request's array is as long as it says, and its union is as its opcode and the `kind` of QP say.
#[inline]
unsafe fn send_wr(wr: &ibv_send_wr, kind: QpKind) -> Result<SendWr<'_>, Errno> {
    let has_data = !matches!(wr.opcode, wr_opcode::IBV_WR_BIND_MW | wr_opcode::IBV_WR_LOCAL_INV);
    // SAFETY: the caller's promise.
    let sges = unsafe { elements(wr.sg_list, if has_data { wr.num_sge } else { 0 }) }?;
    let has = |flag: u32| wr.send_flags & flag != 0;
    Ok(SendWr {
        wr_id: wr.wr_id,
        // SAFETY: the caller's promise.
        op: unsafe { if kind == QpKind::Ud { datagram(wr) } else { operation(wr) } }?,
        signaled: has(send_flags::IBV_SEND_SIGNALED),
        fence: has(send_flags::IBV_SEND_FENCE),
        solicited: has(send_flags::IBV_SEND_SOLICITED),
        srq_number: wr.qp_type,
        payload: payload(wr, sges),
    })
}

#[inline(always)]
fn payload<'a>(wr: &ibv_send_wr, pieces: &'a [Sge]) -> Payload<'a> {
    let is_inline = wr.send_flags & send_flags::IBV_SEND_INLINE != 0;
    if is_inline { Payload::Inline(pieces) } else { Payload::Sges(pieces) }
}

/// # Safety
/// The request is one for a UD QP.
unsafe fn datagram(wr: &ibv_send_wr) -> Result<SendOp, Errno> {
    let imm = match wr.opcode {
        wr_opcode::IBV_WR_SEND => None,
        wr_opcode::IBV_WR_SEND_WITH_IMM => Some(wr.imm_data),
        _ => return Err(Errno::INVALID),
    };
    // SAFETY: the caller's promise.
    let to = unsafe { wr.wr.ud };
    if to.ah.is_null() {
        return Err(Errno::INVALID);
    }
    // SAFETY: the caller's promise.
    let ah = unsafe { Ah::of(to.ah) }.handle;
    Ok(SendOp::Datagram { ah, qpn: to.remote_qpn, qkey: to.remote_qkey, imm })
}

/// # Safety
/// The union is as the opcode says.
unsafe fn operation(wr: &ibv_send_wr) -> Result<SendOp, Errno> {
    // SAFETY: the caller's promise; the members hold plain integers.
    let (rdma, atomic) = unsafe { (wr.wr.rdma, wr.wr.atomic) };
    let (va, rkey) = (rdma.remote_addr, rdma.rkey);
    Ok(match wr.opcode {
        wr_opcode::IBV_WR_SEND => SendOp::Send,
        wr_opcode::IBV_WR_SEND_WITH_IMM => SendOp::SendImm(wr.imm_data),
        wr_opcode::IBV_WR_RDMA_WRITE => SendOp::Write { va, rkey },
        wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM => SendOp::WriteImm { va, rkey, imm: wr.imm_data },
        wr_opcode::IBV_WR_RDMA_READ => SendOp::Read { va, rkey },
        wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP => SendOp::CompareSwap {
            va: atomic.remote_addr,
            rkey: atomic.rkey,
            compare: atomic.compare_add,
            swap: atomic.swap,
        },
        wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD => {
            SendOp::FetchAdd { va: atomic.remote_addr, rkey: atomic.rkey, add: atomic.compare_add }
        }
        wr_opcode::IBV_WR_SEND_WITH_INV => SendOp::SendInvalidate(wr.imm_data),
        wr_opcode::IBV_WR_LOCAL_INV => SendOp::LocalInvalidate(wr.imm_data),
        wr_opcode::IBV_WR_BIND_MW => {
            let bind = &wr.bind_mw;
            // SAFETY: the caller's promise.
            unsafe { memory_window::binding(bind.mw, bind.rkey, &bind.bind_info) }?
        }
        _ => return Err(Errno::INVALID),
    })
}

/// # Safety
/// `count` elements at `list` can be read for as long as the result is used.
pub(crate) unsafe fn elements<'a>(list: *const ibv_sge, count: c_int) -> Result<&'a [Sge], Errno> {
    let count = usize::try_from(count).map_err(|_| Errno::INVALID)?;
    if count == 0 {
        return Ok(&[]);
    }
    if list.is_null() {
        return Err(Errno::INVALID);
    }
    // SAFETY: the caller's promise; both structures are laid out alike.
    Ok(unsafe { slice::from_raw_parts(list.cast::<Sge>(), count) })
}

/// Posts each request of a list until one is refused, which is then left in `next`.
///
/// # Safety
/// `next` is NULL or a live list. Its arrays have the lengths in the list.
#[inline(always)]
unsafe fn post_each(
    next: &mut *mut ibv_recv_wr,
    mut post: impl FnMut(u64, &[Sge]) -> Result<(), Errno>,
) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    while let Some(wr) = unsafe { next.as_ref() } {
        // SAFETY: the caller's promise.
        post(wr.wr_id, unsafe { elements(wr.sg_list, wr.num_sge) }?)?;
        *next = wr.next;
    }
    Ok(())
}

pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    list: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the contract of verbs.
    let qp = unsafe { Qp::of(qp) };
    let mut next = list;
    let posted = match qp.process.lock_as_owner() {
        // SAFETY: the contract of verbs.
        Some(mut state) => unsafe { post_recv_locked(&mut state, qp, &mut next) },
        // SAFETY: as above.
        None => qp.process.locked_after_yield(|state| unsafe { post_recv_locked(state, qp, &mut next) }),
    };
    // SAFETY: the contract of verbs.
    unsafe { report(posted, next, bad) }
}

/// Posts a list under the lock, and handles the consequences. On an error `next` is the receive that was
/// not posted.
///
/// # Safety
/// `next` is NULL or a live list. Its arrays have the lengths in the list.
#[inline(always)]
unsafe fn post_recv_locked(state: &mut State, qp: &Qp, next: &mut *mut ibv_recv_wr) -> Result<(), Errno> {
    // SAFETY: the caller's promise is passed on.
    let posted = unsafe { post_each(next, |wr_id, sges| state.device.post_recv(qp.handle, wr_id, sges)) };
    qp.process.attend(state);
    posted
}

pub(crate) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    list: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the contract of verbs.
    let srq = unsafe { Srq::of(srq) };
    let mut next = list;
    let posted = srq.process.with(|state| {
        // SAFETY: the contract of verbs.
        unsafe { post_each(&mut next, |wr_id, sges| state.device.post_srq_recv(srq.handle, wr_id, sges)) }
    });
    // SAFETY: the contract of verbs.
    unsafe { report(posted, next, bad) }
}
