//! Queue pairs: create, modify, destroy, and post work requests.

use fabric::ProcessId;
use verbs::Translation;

use crate::attr::{AddressVector, QpAttr, QpAttrMask, QpCaps, QpInit, QpKind, QpState};
use crate::device::{Device, require, require_room};
use crate::errno::Errno;
use crate::handle::{Cq, Pd, Qp};
use crate::limits::Limits;
use crate::qp::{QueuePair, transition};
use crate::work::{PlainSend, Posted, SendWr, Sge};

impl Device {
    /// Makes a queue pair. Returns its number as applications know it, and the capacities granted.
    ///
    /// # Errors
    /// `INVALID` for objects that are not there or capacities past the limits; `NO_MEMORY` past the
    /// number of queue pairs.
    pub fn create_qp(&mut self, init: &QpInit) -> Result<(Qp, u32, QpCaps), Errno> {
        let caps = granted(init, &self.core.limits)?;
        require_room(self.core.qps.len(), self.core.limits.max_qp)?;
        self.check_parts(init)?;
        let qpn = self.free_qpn().ok_or(Errno::NO_MEMORY)?;
        if init.kind != QpKind::XrcRecv {
            self.enter_domain(init.pd)?;
        }
        self.count_target(init.xrcd, 1);
        self.count_cq_users(init, 1);
        let incarnation = self.core.next_incarnation();
        let qp = Qp(self.core.qps.insert(QueuePair::new(QpInit { caps, ..*init }, qpn, incarnation)));
        let line = self.core.qp_names.insert_fixed(&mut *self.core.source, qpn, qp.0);
        if line.real != line.virtual_handle {
            self.links.announce(line, line.real);
        }
        Ok((qp, qpn, caps))
    }

    /// Whether the objects are there that a queue pair of this kind is made of, and no others.
    fn check_parts(&self, init: &QpInit) -> Result<(), Errno> {
        let has = |cq: Cq| self.core.cqs.get(cq.0).is_some();
        let is_target = init.kind == QpKind::XrcRecv;
        let sends = if is_target { init.send_cq == Cq::NONE } else { has(init.send_cq) };
        let receives = if init.kind.receives() { has(init.recv_cq) } else { init.recv_cq == Cq::NONE };
        let shared = init.srq.is_none_or(|srq| {
            let queue = self.core.srqs.get(srq.0);
            init.kind.receives() && queue.is_some_and(|queue| queue.xrc.is_none())
        });
        let domain = match init.xrcd {
            Some(xrcd) => is_target && init.pd == Pd::NONE && self.core.xrcds.get(xrcd.0).is_some(),
            None => !is_target,
        };
        require(sends && receives && shared && domain)
    }

    /// A virtual QPN that is free: numbers go round, so that one that was given back rests.
    fn free_qpn(&mut self) -> Option<u32> {
        for _ in 0..=u16::MAX {
            self.qp_numbers = self.qp_numbers.wrapping_add(1);
            let qpn = self.core.process.qpn(self.qp_numbers);
            if self.core.qp_names.is_free(qpn) {
                return Some(qpn);
            }
        }
        None
    }

    fn count_cq_users(&mut self, init: &QpInit, change: i32) {
        for cq in [init.send_cq, init.recv_cq] {
            if let Some(queue) = self.core.cqs.get_mut(cq.0) {
                queue.users = queue.users.saturating_add_signed(change);
            }
        }
    }

    /// Changes a queue pair's state or attributes.
    ///
    /// # Errors
    /// `INVALID` for changes that the table of transitions forbids, and for addresses of other fabrics;
    /// `UNSUPPORTED` for alternate paths and rate limits.
    pub fn modify_qp(&mut self, qp: Qp, attr: &QpAttr, mask: QpAttrMask) -> Result<(), Errno> {
        let entry = self.core.qps.get(qp.0).ok_or(Errno::INVALID)?;
        let mask = mask - transition::ignored(entry.init.kind);
        let from = entry.state();
        let to = entry.check(attr, mask, &self.core.limits)?;
        let peer = match mask.contains(QpAttrMask::AV) {
            true => self.resolve(&attr.address, attr.remote_qpn, entry, mask)?,
            false => entry.peer,
        };
        if from == QpState::Sqd && peer != entry.peer {
            return Err(Errno::INVALID);
        }
        match to {
            QpState::Reset => self.reset_qp(qp),
            QpState::Error => self.fail_qp(qp),
            _ => self.advance_qp(qp, attr, mask, to, peer),
        }
        self.settle();
        Ok(())
    }

    /// The process behind an address; `None` if no process can have that QPN.
    fn resolve(
        &self,
        address: &AddressVector,
        qpn: u32,
        entry: &QueuePair,
        mask: QpAttrMask,
    ) -> Result<Option<ProcessId>, Errno> {
        let vid = address.instance(self.core.fabric).ok_or(Errno::INVALID)?;
        let qpn = if mask.contains(QpAttrMask::DEST_QPN) { qpn } else { entry.attr.remote_qpn };
        Ok(ProcessId::of_qpn(vid, qpn))
    }

    fn advance_qp(
        &mut self,
        handle: Qp,
        attr: &QpAttr,
        mask: QpAttrMask,
        to: QpState,
        peer: Option<ProcessId>,
    ) {
        let Some(qp) = self.core.qps.get_mut(handle.0) else { return };
        let from = qp.state();
        qp.assign(attr, mask);
        qp.attr.state = to;
        let link = qp.link.filter(|_| mask.contains(QpAttrMask::ACCESS_FLAGS));
        if let Some(at) = link {
            self.close_gate(at);
        }
        let Some(qp) = self.core.qps.get_mut(handle.0) else { return };
        match (from, to) {
            (QpState::Init, QpState::Rtr) => {
                qp.peer = peer;
                qp.responder.start(u64::from(qp.attr.rq_psn));
                self.connect(handle, peer);
                self.begin_barrier(handle);
            }
            (QpState::Rtr, QpState::Rts) => {
                let first = u64::from(qp.attr.sq_psn);
                qp.sends.restart(first);
                qp.requester.start(first, qp.attr.pauses(), qp.attr.rnr_retry);
            }
            (QpState::Sqe, QpState::Rts) => qp.requester.start(qp.sends.head(), 0, 0),
            (QpState::Rts, QpState::Sqd) => {
                qp.attr.sq_draining = true;
                self.core.note_drained(handle);
            }
            (QpState::Sqd, QpState::Rts) => {
                qp.attr.sq_draining = false;
                self.ring_doorbell(handle);
            }
            _ => {}
        }
    }

    fn connect(&mut self, handle: Qp, peer: Option<ProcessId>) {
        if let Some(peer) = peer {
            self.registered.connect(peer);
            self.links.attach(&mut self.core, peer, handle);
        }
    }

    fn disconnect(&mut self, handle: Qp) {
        let Some(qp) = self.core.qps.get(handle.0) else { return };
        if let Some(at) = qp.link {
            self.close_gate(at);
        }
        let Some(peer) = self.core.qps.get(handle.0).and_then(|qp| qp.peer) else { return };
        self.links.copy_out(handle, u64::MAX);
        self.end_responder(handle, peer);
        self.links.detach(&mut self.core, peer, handle);
        if let Some(qp) = self.core.qps.get_mut(handle.0) {
            qp.scheduled = false;
        }
        self.registered.disconnect(peer);
    }

    fn fail_qp(&mut self, handle: Qp) {
        if let Some(peer) = self.core.qps.get(handle.0).and_then(|qp| qp.peer) {
            self.end_responder(handle, peer);
        }
        self.core.fail(handle);
    }

    fn reset_qp(&mut self, handle: Qp) {
        self.disconnect(handle);
        self.forget_completions(handle);
        let incarnation = self.core.next_incarnation();
        if let Some(qp) = self.core.qps.get_mut(handle.0) {
            qp.reset(incarnation);
        }
    }

    fn forget_completions(&mut self, handle: Qp) {
        let Some(qp) = self.core.qps.get(handle.0) else { return };
        for cq in [qp.init.send_cq, qp.init.recv_cq] {
            if let Some(queue) = self.core.cqs.get_mut(cq.0) {
                queue.forget(qp.qpn);
            }
        }
    }

    /// A queue pair's attributes and its objects.
    ///
    /// # Errors
    /// `INVALID` if there is no such queue pair.
    pub fn query_qp(&self, qp: Qp) -> Result<(QpAttr, QpInit), Errno> {
        let qp = self.core.qps.get(qp.0).ok_or(Errno::INVALID)?;
        Ok((QpAttr { current_state: qp.attr.state, ..qp.attr }, qp.init))
    }

    /// Ends a queue pair; forgets its queued requests without completions. Existing completions stay: a program may
    /// learn that the peer is gone, and end the queue pair, before it polls the last completions.
    ///
    /// # Errors
    /// `INVALID` if there is no such queue pair; `BUSY` while it receives from a multicast group.
    pub fn destroy_qp(&mut self, qp: Qp) -> Result<(), Errno> {
        let entry = self.core.qps.get(qp.0).ok_or(Errno::INVALID)?;
        let (init, qpn) = (entry.init, entry.qpn);
        if !self.core.groups.of(qp).is_empty() {
            return Err(Errno::BUSY);
        }
        self.disconnect(qp);
        self.core.qps.remove(qp.0);
        if let Some(known) = self.core.qp_names.remove(&mut *self.core.source, qpn) {
            self.links.announce(Translation { real: known.virtual_handle, ..known }, known.real);
        }
        self.count_cq_users(&init, -1);
        self.count_target(init.xrcd, -1);
        self.leave_domain(init.pd);
        Ok(())
    }

    /// Queues a send work request, copying inline data. Nothing leaves before [`Self::flush_doorbell`], but
    /// for requests that are executed at once in a neighbour's memory.
    ///
    /// # Errors
    /// `NO_MEMORY` when the queue is full; `INVALID` for a wrong state, operation, length or number of elements.
    ///
    /// # Safety
    /// Inline pieces are readable.
    #[inline]
    pub unsafe fn post_send(&mut self, qp: Qp, wr: &SendWr<'_>) -> Result<Posted, Errno> {
        if let Some(rdma) = wr.rdma()
            && self.post_rdma(qp, &rdma)
        {
            return Ok(Posted::Done);
        }
        // SAFETY: the caller's promise is passed on.
        if wr.send().is_some_and(|send| unsafe { self.send_express(qp, &send) }) {
            return Ok(Posted::Done);
        }
        // SAFETY: the caller's promise is passed on.
        unsafe { self.queue_send(qp, wr) }.map(|()| Posted::Queued)
    }

    /// Puts a short SEND that need not wait for anything straight into the ring of a neighbour. False if it is for
    /// [`Self::queue_send`].
    ///
    /// # Safety
    /// As for [`Self::post_send`].
    #[inline]
    pub unsafe fn send_express(&mut self, qp: Qp, send: &PlainSend<'_>) -> bool {
        let Some(at) = self.core.qps.get(qp.0).and_then(|entry| entry.link) else { return false };
        // SAFETY: the caller's promise is passed on.
        let has_left = unsafe { self.links.links[at].send_express(&mut self.core, qp, send) };
        self.links.unseen += u32::from(has_left);
        has_left
    }

    /// As [`Self::post_send`], for requests that [`Self::post_rdma`] or [`Self::send_express`] have declined.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// As there.
    pub unsafe fn queue_send(&mut self, qp: Qp, wr: &SendWr<'_>) -> Result<(), Errno> {
        let length = self.check_send(qp, wr)?;
        let entry = self.core.qps.get_mut(qp.0).ok_or(Errno::INVALID)?;
        let state = entry.attr.state;
        let signaled = wr.signaled || entry.init.sq_sig_all;
        // SAFETY: the caller's promise is passed on.
        unsafe { entry.sends.push(wr, signaled, length)? };
        if matches!(state, QpState::Error | QpState::Sqe) {
            self.core.flush_sends(qp);
        }
        Ok(())
    }

    /// The bytes of `wr`, if `qp` would take it, given room.
    ///
    /// # Errors
    /// `INVALID` as for [`Self::post_send`].
    pub fn check_send(&self, qp: Qp, wr: &SendWr<'_>) -> Result<u32, Errno> {
        let entry = self.core.qps.get(qp.0).ok_or(Errno::INVALID)?;
        let state = entry.attr.state;
        require(matches!(state, QpState::Rts | QpState::Sqd | QpState::Sqe | QpState::Error))?;
        require(entry.init.kind.does(&wr.op))?;
        wr.check(&entry.init.caps)
    }

    /// How many more send work requests `qp` takes now.
    #[must_use]
    pub fn send_room(&self, qp: Qp) -> usize {
        self.core.qps.get(qp.0).map_or(0, |entry| entry.sends.room())
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// `NO_MEMORY` when the queue is full; `INVALID` in RESET, with a shared queue, or for too many elements.
    #[inline]
    pub fn post_recv(&mut self, qp: Qp, wr_id: u64, sges: &[Sge]) -> Result<(), Errno> {
        let entry = self.core.qps.get_mut(qp.0).ok_or(Errno::INVALID)?;
        require(entry.attr.state != QpState::Reset && entry.init.srq.is_none())?;
        entry.receives.post(wr_id, sges)?;
        if entry.attr.state == QpState::Error {
            self.core.flush_receives(qp);
        }
        self.deliver_waiting();
        Ok(())
    }
}

/// Bytes of an element in a work request of hardware.
const ELEMENT: u32 = 16;

/// The capacities for a queue pair that asks for these.
fn granted(init: &QpInit, limits: &Limits) -> Result<QpCaps, Errno> {
    if init.kind == QpKind::XrcRecv {
        return Ok(QpCaps::default());
    }
    let (wanted, shared) = (&init.caps, init.srq.is_some() || !init.kind.receives());
    require(wanted.max_send_wr <= limits.max_qp_wr && wanted.max_inline <= limits.max_inline)?;
    require(wanted.max_send_sge <= limits.max_sge)?;
    require(shared || (wanted.max_recv_wr <= limits.max_qp_wr && wanted.max_recv_sge <= limits.max_sge))?;
    let max_send_sge = wanted.max_send_sge.max(1);
    Ok(QpCaps {
        max_send_wr: wanted.max_send_wr.max(1),
        max_send_sge,
        max_recv_wr: if shared { 0 } else { wanted.max_recv_wr },
        max_recv_sge: if shared { 0 } else { wanted.max_recv_sge.max(1) },
        // Hardware has the elements and the bytes in one place, and programs rely on that: rdma_xclient asks for none.
        max_inline: wanted.max_inline.max(max_send_sge * ELEMENT).min(limits.max_inline),
    })
}
