//! The two ends of a datagram: how its sender's queue pair lets it go, and its receiver's takes it in.
//! In between it belongs to the link ([`crate::link::datagrams`]).

use fabric::{ProcessId, Vid};

use crate::attr::{Access, QpKind, QpState};
use crate::core::Core;
use crate::handle::Qp;
use crate::limits::MTU;
use crate::memory;
use crate::qp::QueuePair;
use crate::requester::check_locally;
use crate::scatter;
use crate::wire::{Header, Opcode, flag};
use crate::work::{SendOp, Sge, Wc, WcOpcode, WcStatus};

/// Bytes at the start of every receive that are kept for a global route header.
const GRH: u32 = 40;

/// A Q_Key with this bit stands for that of the sending queue pair.
const OWN_QKEY: u32 = 1 << 31;

/// What became of a datagram at its receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// It was received, or dropped.
    Over,
    /// Nothing is posted that could receive it.
    Waits,
}

impl Core {
    /// The datagram that `handle` sends next, without its bytes and its number, and to whom, if anybody can be there.
    pub fn next_datagram(&mut self, handle: Qp) -> Option<(Option<ProcessId>, Header)> {
        let qp = self.qps.get(handle.0).filter(|qp| qp.state() == QpState::Rts)?;
        let msn = qp.sends.head();
        let request = qp.sends.get(msn)?;
        let SendOp::Datagram { ah, qpn, qkey, imm } = request.op else { return None };
        let status = check_locally(qp, request, &self.regions, MTU);
        if status != WcStatus::Success {
            self.end_request_with(handle, msn, status);
            return None;
        }
        let address = self.addresses.get(ah.0).filter(|address| address.pd == qp.init.pd);
        let route = if address.is_some_and(|address| address.has_route) { flag::ROUTED } else { 0 };
        let header = Header {
            flags: route | if request.solicited { flag::SOLICITED } else { 0 },
            dst_qpn: qpn,
            src_qpn: qp.qpn,
            rkey: if qkey & OWN_QKEY != 0 { qp.attr.qkey } else { qkey },
            imm: imm.unwrap_or(0),
            length: request.length,
            total: request.length,
            ..Header::new(if imm.is_some() { Opcode::DatagramImm } else { Opcode::Datagram })
        };
        Some((address.and_then(|address| ProcessId::of_qpn(address.vid, qpn)), header))
    }

    /// Appends the bytes of the datagram that [`Self::next_datagram`] found to `bytes`.
    pub fn gather_datagram(&self, handle: Qp, bytes: &mut Vec<u8>) {
        let Some(qp) = self.qps.get(handle.0) else { return };
        let Some(request) = qp.sends.get(qp.sends.head()) else { return };
        if let Some(inline) = &request.inline {
            return bytes.extend_from_slice(inline);
        }
        for sge in &request.sges {
            if let Some(address) = self.regions.local(qp.init.pd, sge, Access::empty()) {
                // SAFETY: the region was just found to hold these bytes.
                unsafe { memory::load(address, sge.length as usize, bytes) };
            }
        }
    }

    /// The datagram that [`Self::next_datagram`] found has been sent, as far as its sender is concerned.
    pub fn finish_datagram(&mut self, handle: Qp) {
        let Some(qp) = self.qps.get_mut(handle.0) else { return };
        let msn = qp.sends.head();
        qp.requester.stop(msn + 1);
        self.end_request_with(handle, msn, WcStatus::Success);
    }

    /// Receives `bytes`, which `peer` has sent under `header`.
    pub fn deliver_datagram(&mut self, peer: ProcessId, header: &Header, bytes: &[u8]) -> Delivery {
        let Some(handle) = self.receiver_of(header) else { return Delivery::Over };
        if !self.hold_receive(handle) {
            let is_dry = self.qps.get(handle.0).is_some_and(|qp| qp.is_dry);
            return if is_dry { Delivery::Over } else { Delivery::Waits };
        }
        let status = self.place_datagram(handle, peer.vid, header, bytes);
        let Some(qp) = self.qps.get_mut(handle.0) else { return Delivery::Over };
        qp.is_dry = false;
        let Some(wr_id) = qp.responder.give_receive() else { return Delivery::Over };
        let completion = Wc {
            wr_id,
            status,
            opcode: WcOpcode::Receive,
            byte_len: GRH + header.length,
            imm: (header.opcode == Opcode::DatagramImm).then_some(header.imm),
            qpn: qp.qpn,
            src_qp: header.src_qpn,
            slid: peer.vid.lid(),
            solicited: status != WcStatus::Success || header.flags & flag::SOLICITED != 0,
            has_route: header.flags & flag::ROUTED != 0,
            ..Wc::default()
        };
        let cq = qp.init.recv_cq;
        self.complete(cq, completion);
        if status != WcStatus::Success {
            self.fail(handle);
        }
        Delivery::Over
    }

    /// Datagrams for the receiver of `header` are dropped from now on, until it posts a receive.
    pub fn run_dry(&mut self, header: &Header) {
        let receiver = self.receiver_of(header);
        if let Some(qp) = receiver.and_then(|handle| self.qps.get_mut(handle.0)) {
            qp.is_dry = true;
        }
    }

    fn receiver_of(&self, header: &Header) -> Option<Qp> {
        let index = self.qp_names.by_virtual(header.dst_qpn)?;
        let qp = self.qps.get(index)?;
        let takes = qp.init.kind == QpKind::Ud && qp.executes() && qp.attr.qkey == header.rkey;
        takes.then_some(Qp(index))
    }

    /// Puts a datagram into the receive that `handle` holds.
    fn place_datagram(&self, handle: Qp, from: Vid, header: &Header, bytes: &[u8]) -> WcStatus {
        let Some(qp) = self.qps.get(handle.0) else { return WcStatus::LocalQpOperation };
        if u64::from(GRH + header.length) > qp.responder.receive.room() {
            return WcStatus::LocalLength;
        }
        let has_route = header.flags & flag::ROUTED != 0;
        let route = self.route_header(from, header.length);
        let is_there = (!has_route || self.scatter_into_receive(qp, 0, &route))
            && self.scatter_into_receive(qp, GRH, bytes);
        if is_there { WcStatus::Success } else { WcStatus::LocalProtection }
    }

    /// Stores `bytes` in the receive of `qp` from `offset` on. False if memory is not there.
    fn scatter_into_receive(&self, qp: &QueuePair, offset: u32, mut bytes: &[u8]) -> bool {
        let pd = self.receive_domain(qp);
        let length = bytes.len() as u32;
        let mut store = |sge: Sge| {
            let Some(address) = self.regions.local(pd, &sge, Access::LOCAL_WRITE) else { return false };
            let (piece, rest) = bytes.split_at(sge.length as usize);
            bytes = rest;
            // SAFETY: the region was just found to hold these bytes, writable.
            unsafe { memory::store(address, piece) };
            true
        };
        scatter::pieces(&qp.responder.receive.sges, offset, length).all(&mut store)
    }

    /// The global route header of a datagram of `length` bytes that came from `from` (InfiniBand, section 8.3).
    fn route_header(&self, from: Vid, length: u32) -> [u8; GRH as usize] {
        const IP_VERSION_6: u8 = 0x60;
        const NEXT_IS_TRANSPORT: u8 = 0x1b;
        /// Base and datagram headers, and the checksum.
        const AROUND_PAYLOAD: u32 = 12 + 8 + 4;
        let mut route = [0; GRH as usize];
        let payload = (length + AROUND_PAYLOAD) as u16;
        route[0] = IP_VERSION_6;
        route[4..6].copy_from_slice(&payload.to_be_bytes());
        route[6] = NEXT_IS_TRANSPORT;
        route[7] = u8::MAX;
        route[8..24].copy_from_slice(&from.gid(self.fabric));
        route[24..40].copy_from_slice(&self.process.vid.gid(self.fabric));
        route
    }
}
