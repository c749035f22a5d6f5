//! Extended posting: `ibv_wr_start`, one call for each work request and its data, `ibv_wr_complete`.
//!
//! Requests are gathered in a [`Batch`], and posted together by `ibv_wr_complete`, or not at all if one
//! of them is refused, or the queue has no room for all. As in rdma-core a QP's lock is held in between, so that threads take turns.

use std::cell::UnsafeCell;
use std::ops::Range;

use libc::{c_int, c_void};
use softhca::{Errno, Payload, Posted, QpKind, SendOp, SendWr, Sge};
use verbs_abi::constants::send_flags;
use verbs_abi::{ibv_ah, ibv_data_buf, ibv_mw, ibv_mw_bind_info, ibv_qp_ex, ibv_sge};

use crate::address::Ah;
use crate::held_by_calls::HeldByCalls;
use crate::post::ring;
use crate::qp::Qp;
use crate::{errno, memory_window};

/// A work request without its data.
struct Request {
    wr_id: u64,
    flags: u32,
    op: SendOp,
    srq_number: u32,
    elements: Range<usize>,
    inline: bool,
}

/// Work requests between `wr_start` and `wr_complete`.
#[derive(Default)]
pub(crate) struct Batch {
    requests: Vec<Request>,
    elements: Vec<Sge>,
    /// Copies of inline data, which the program may change at once. An inline element's address is
    /// an offset here until the batch is posted.
    inline: Vec<u8>,
    /// The first mistake.
    mistake: Option<Errno>,
}

/// The state with which `ibv_wr_*` post.
#[derive(Default)]
pub(crate) struct Posting {
    /// Held from `wr_start` to `wr_complete` or `wr_abort`.
    lock: HeldByCalls,
    /// Work requests in between, used under the lock only.
    batch: UnsafeCell<Batch>,
}

impl Batch {
    fn clear(&mut self) {
        self.requests.clear();
        self.elements.clear();
        self.inline.clear();
        self.mistake = None;
    }

    fn begin(&mut self, wr_id: u64, flags: u32, op: SendOp) {
        let at = self.elements.len();
        self.requests.push(Request { wr_id, flags, op, srq_number: 0, elements: at..at, inline: false });
    }

    /// Adds to the data of the last request.
    fn add(&mut self, element: Sge, inline: bool) {
        let Some(request) = self.requests.last_mut() else {
            self.mistake.get_or_insert(Errno::INVALID);
            return;
        };
        self.elements.push(element);
        request.elements.end = self.elements.len();
        request.inline = inline;
    }

    /// The last request, a SEND, goes to `ah`.
    fn address(&mut self, ah: softhca::Ah, qpn: u32, qkey: u32) {
        let imm = match self.requests.last().map(|request| request.op) {
            Some(SendOp::Send) => None,
            Some(SendOp::SendImm(imm)) => Some(imm),
            _ => {
                self.mistake.get_or_insert(Errno::INVALID);
                return;
            }
        };
        if let Some(request) = self.requests.last_mut() {
            request.op = SendOp::Datagram { ah, qpn, qkey, imm };
        }
    }

    /// The last request is for this shared receive queue.
    fn name_srq(&mut self, number: u32) {
        match self.requests.last_mut() {
            Some(request) => request.srq_number = number,
            None => {
                self.mistake.get_or_insert(Errno::INVALID);
            }
        }
    }

    fn add_inline(&mut self, bytes: &[u8]) {
        let Ok(length) = u32::try_from(bytes.len()) else {
            self.mistake.get_or_insert(Errno::INVALID);
            return;
        };
        let addr = self.inline.len() as u64;
        self.inline.extend_from_slice(bytes);
        self.add(Sge { addr, length, lkey: 0 }, true);
    }

    /// Turns offsets of inline data into addresses: from here on it does not move.
    fn settle(&mut self) {
        let start = self.inline.as_ptr() as u64;
        for request in self.requests.iter().filter(|request| request.inline) {
            for element in &mut self.elements[request.elements.clone()] {
                element.addr += start;
            }
        }
    }

    fn work_request(&self, request: &Request) -> SendWr<'_> {
        let has = |flag: u32| request.flags & flag != 0;
        let elements = &self.elements[request.elements.clone()];
        SendWr {
            wr_id: request.wr_id,
            op: request.op,
            signaled: has(send_flags::IBV_SEND_SIGNALED),
            fence: has(send_flags::IBV_SEND_FENCE),
            solicited: has(send_flags::IBV_SEND_SOLICITED),
            srq_number: request.srq_number,
            payload: if request.inline { Payload::Inline(elements) } else { Payload::Sges(elements) },
        }
    }
}

/// `qp` with the functions for the operations of a QP of `kind`. Others stay NULL, as in every provider: a program
/// asks for operations when it creates the QP, and is refused there.
pub(crate) fn extended(mut qp: ibv_qp_ex, kind: QpKind) -> ibv_qp_ex {
    if kind == QpKind::XrcSend {
        qp.wr_set_xrc_srqn = Some(set_xrc_srqn);
    }
    if matches!(kind, QpKind::Rc | QpKind::XrcSend) {
        qp.wr_atomic_cmp_swp = Some(compare_swap);
        qp.wr_atomic_fetch_add = Some(fetch_add);
        qp.wr_rdma_read = Some(rdma_read);
        qp.wr_send_inv = Some(send_inv);
    }
    if kind == QpKind::Ud {
        qp.wr_set_ud_addr = Some(set_ud_addr);
    } else {
        qp.wr_bind_mw = Some(bind_mw);
        qp.wr_local_inv = Some(local_inv);
        qp.wr_rdma_write = Some(rdma_write);
        qp.wr_rdma_write_imm = Some(rdma_write_imm);
    }
    qp.wr_send = Some(send);
    qp.wr_send_imm = Some(send_imm);
    qp.wr_set_inline_data = Some(set_inline_data);
    qp.wr_set_inline_data_list = Some(set_inline_data_list);
    qp.wr_set_sge = Some(set_sge);
    qp.wr_set_sge_list = Some(set_sge_list);
    qp.wr_start = Some(start);
    qp.wr_complete = Some(complete);
    qp.wr_abort = Some(abort);
    qp
}

/// The batch of a QP.
///
/// # Safety
/// The caller is between `wr_start` and `wr_complete`, and so holds the QP's `posting`.
unsafe fn batch<'a>(qp: *mut ibv_qp_ex) -> &'a mut Batch {
    // SAFETY: the holder of `posting` has exclusive access to the batch.
    unsafe { &mut *Qp::of(qp.cast()).posting.get().batch.get() }
}

/// # Safety
/// As for [`batch`].
unsafe fn begin(qp: *mut ibv_qp_ex, op: SendOp) {
    // SAFETY: the caller's promise.
    unsafe { batch(qp).begin((*qp).wr_id, (*qp).wr_flags, op) };
}

unsafe extern "C" fn start(qp: *mut ibv_qp_ex) {
    // SAFETY: the contract of verbs.
    unsafe {
        Qp::of(qp.cast()).posting.get().lock.take();
        batch(qp).clear();
    }
}

unsafe extern "C" fn abort(qp: *mut ibv_qp_ex) {
    // SAFETY: the contract of verbs: `start` has taken it.
    unsafe {
        batch(qp).clear();
        Qp::of(qp.cast()).posting.get().lock.leave();
    }
}

unsafe extern "C" fn complete(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: the contract of verbs: after `start`.
    let (object, batch) = unsafe { (Qp::of(qp.cast()), batch(qp)) };
    batch.settle();
    let posted = post(object, batch);
    // SAFETY: `start` has taken it.
    unsafe { object.posting.get().lock.leave() };
    errno::code(posted)
}

fn post(qp: &Qp, batch: &Batch) -> Result<(), Errno> {
    batch.mistake.map_or(Ok(()), Err)?;
    qp.process.locked(|state| {
        if state.device.send_room(qp.handle) < batch.requests.len() {
            return Err(Errno::NO_MEMORY);
        }
        // Of one request, nothing is done that is refused.
        if batch.requests.len() > 1 {
            let mut requests = batch.requests.iter().map(|request| batch.work_request(request));
            requests.try_for_each(|request| state.device.check_send(qp.handle, &request).map(drop))?;
        }
        let mut queued = false;
        let posted = batch.requests.iter().try_for_each(|request| {
            // SAFETY: inline elements lie in the batch since `settle`.
            let posted = unsafe { state.device.post_send(qp.handle, &batch.work_request(request)) };
            queued |= posted? == Posted::Queued;
            Ok(())
        });
        ring(qp, state, queued);
        posted
    })
}

unsafe extern "C" fn send(qp: *mut ibv_qp_ex) {
    // SAFETY: the contract of verbs.
    unsafe { begin(qp, SendOp::Send) };
}

unsafe extern "C" fn send_imm(qp: *mut ibv_qp_ex, imm: u32) {
    // SAFETY: the contract of verbs.
    unsafe { begin(qp, SendOp::SendImm(imm)) };
}

unsafe extern "C" fn send_inv(qp: *mut ibv_qp_ex, rkey: u32) {
    // SAFETY: the contract of verbs.
    unsafe { begin(qp, SendOp::SendInvalidate(rkey)) };
}

unsafe extern "C" fn local_inv(qp: *mut ibv_qp_ex, rkey: u32) {
    // SAFETY: the contract of verbs.
    unsafe { begin(qp, SendOp::LocalInvalidate(rkey)) };
}

unsafe extern "C" fn bind_mw(qp: *mut ibv_qp_ex, mw: *mut ibv_mw, rkey: u32, info: *const ibv_mw_bind_info) {
    // SAFETY: the contract of verbs.
    match unsafe { memory_window::binding(mw, rkey, &*info) } {
        // SAFETY: as above.
        Ok(op) => unsafe { begin(qp, op) },
        Err(mistake) => {
            // SAFETY: as above.
            unsafe { batch(qp) }.mistake.get_or_insert(mistake);
        }
    }
}

unsafe extern "C" fn rdma_write(qp: *mut ibv_qp_ex, rkey: u32, va: u64) {
    // SAFETY: the contract of verbs.
    unsafe { begin(qp, SendOp::Write { va, rkey }) };
}

unsafe extern "C" fn rdma_write_imm(qp: *mut ibv_qp_ex, rkey: u32, va: u64, imm: u32) {
    // SAFETY: the contract of verbs.
    unsafe { begin(qp, SendOp::WriteImm { va, rkey, imm }) };
}

unsafe extern "C" fn rdma_read(qp: *mut ibv_qp_ex, rkey: u32, va: u64) {
    // SAFETY: the contract of verbs.
    unsafe { begin(qp, SendOp::Read { va, rkey }) };
}

unsafe extern "C" fn compare_swap(qp: *mut ibv_qp_ex, rkey: u32, va: u64, compare: u64, swap: u64) {
    // SAFETY: the contract of verbs.
    unsafe { begin(qp, SendOp::CompareSwap { va, rkey, compare, swap }) };
}

unsafe extern "C" fn fetch_add(qp: *mut ibv_qp_ex, rkey: u32, va: u64, add: u64) {
    // SAFETY: the contract of verbs.
    unsafe { begin(qp, SendOp::FetchAdd { va, rkey, add }) };
}

unsafe extern "C" fn set_ud_addr(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, qpn: u32, qkey: u32) {
    // SAFETY: the contract of verbs.
    unsafe { batch(qp).address(Ah::of(ah).handle, qpn, qkey) };
}

unsafe extern "C" fn set_xrc_srqn(qp: *mut ibv_qp_ex, number: u32) {
    // SAFETY: the contract of verbs.
    unsafe { batch(qp) }.name_srq(number);
}

unsafe extern "C" fn set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    // SAFETY: the contract of verbs.
    unsafe { batch(qp) }.add(Sge { addr, length, lkey }, false);
}

unsafe extern "C" fn set_sge_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    for at in 0..count {
        // SAFETY: the contract of verbs: the list has `count` elements.
        unsafe {
            let element = *list.add(at);
            set_sge(qp, element.lkey, element.addr, element.length);
        }
    }
}

unsafe extern "C" fn set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    if length > 0 {
        // SAFETY: the contract of verbs: `length` bytes at `addr` can be read.
        unsafe { batch(qp).add_inline(std::slice::from_raw_parts(addr.cast(), length)) };
    }
}

unsafe extern "C" fn set_inline_data_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_data_buf) {
    for at in 0..count {
        // SAFETY: the contract of verbs: the list has `count` elements, which can be read.
        unsafe {
            let piece = *list.add(at);
            set_inline_data(qp, piece.addr, piece.length);
        }
    }
}
