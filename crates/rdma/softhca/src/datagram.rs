//! The two ends of a datagram: the sender's queue pair hands it to a link, and the receiver's queue pair takes it.
//! In between it belongs to the link ([`crate::link::datagrams`]).

use fabric::ProcessId;

use crate::address::{Address, Way};
use crate::attr::{Access, QpKind, QpState};
use crate::core::Core;
use crate::groups::GroupId;
use crate::handle::Qp;
use crate::limits::MTU;
use crate::memory;
use crate::qp::QueuePair;
use crate::requester::check_locally;
use crate::scatter;
use crate::wire::{GROUP_ID, Header, Opcode, flag};
use crate::work::{SendOp, Sge, Wc, WcOpcode, WcStatus};

/// Bytes at the start of every receive that are kept for a global route header.
const GRH: u32 = 40;

type RouteHeader = [u8; GRH as usize];

/// A Q_Key with this bit stands for that of the sending queue pair.
const OWN_QKEY: u32 = 1 << 31;

/// The receivers of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Destination {
    /// None: no queue pair can have that address.
    Nobody,
    Process(ProcessId),
    /// All that receive from this group.
    Group(GroupId),
}

/// The outcome of a datagram at its receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// It was received, or dropped.
    Over,
    /// Nothing is posted that could receive it.
    Waits,
}

impl Core {
    /// The header of the datagram that `handle` sends next, without its number, and its receivers. There are none if its address
    /// has been destroyed meanwhile.
    pub fn next_datagram(&mut self, handle: Qp) -> Option<(Destination, Header)> {
        let qp = self.qps.get(handle.0).filter(|qp| qp.state() == QpState::Rts)?;
        let msn = qp.sends.head();
        let request = qp.sends.get(msn)?;
        let SendOp::Datagram { ah, qpn, qkey, imm } = request.op else { return None };
        let address = self.addresses.get(ah.0);
        let status = match address.is_some_and(|address| address.pd != qp.init.pd) {
            true => WcStatus::LocalQpOperation,
            false => check_locally(qp, request, &self.regions, MTU),
        };
        if status != WcStatus::Success {
            self.end_request_with(handle, msn, status);
            return None;
        }
        let to = match address.map(|address| address.to) {
            Some(Address::Instance(vid)) => {
                ProcessId::of_qpn(vid, qpn).map_or(Destination::Nobody, Destination::Process)
            }
            Some(Address::Group(group)) => Destination::Group(group),
            None => Destination::Nobody,
        };
        let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
        let is_group = matches!(to, Destination::Group(_));
        let length = request.length + if is_group { GROUP_ID } else { 0 };
        let way = address.map(|address| address.way).unwrap_or_default();
        let header = Header {
            flags: flag(address.is_some_and(|address| address.has_route), flag::ROUTED)
                | flag(is_group, flag::GROUP)
                | flag(request.solicited, flag::SOLICITED),
            dst_qpn: qpn,
            src_qpn: qp.qpn,
            rkey: if qkey & OWN_QKEY != 0 { qp.attr.qkey } else { qkey },
            imm: imm.unwrap_or(0),
            length,
            offset: way.hop_limit.into(),
            total: way.word(),
            ..Header::new(if imm.is_some() { Opcode::DatagramImm } else { Opcode::Datagram })
        };
        Some((to, header))
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

    /// The datagram that [`Self::next_datagram`] found has been sent, from the sender's point of view.
    pub fn finish_datagram(&mut self, handle: Qp) {
        let Some(qp) = self.qps.get_mut(handle.0) else { return };
        let msn = qp.sends.head();
        qp.requester.stop(msn + 1);
        self.end_request_with(handle, msn, WcStatus::Success);
    }

    /// Receives `bytes`, which `peer` has sent under `header`.
    pub fn deliver_datagram(&mut self, peer: ProcessId, header: &Header, bytes: &[u8]) -> Delivery {
        if header.flags & flag::GROUP != 0 {
            self.deliver_to_group(peer, header, bytes);
            return Delivery::Over;
        }
        let receiver = self.qp_names.by_virtual(header.dst_qpn).map(Qp);
        let Some(handle) = receiver.filter(|handle| self.takes(*handle, header)) else {
            self.note_wrong_key(header);
            return Delivery::Over;
        };
        if !self.hold_receive(handle) {
            let is_dry = self.qps.get(handle.0).is_some_and(|qp| qp.is_dry);
            return if is_dry { Delivery::Over } else { Delivery::Waits };
        }
        let own_gid = self.process.vid.gid(self.fabric);
        self.receive_datagram(handle, peer, header, own_gid, bytes);
        Delivery::Over
    }

    /// Gives a copy to each queue pair that receives from the group and has a receive posted. The others lose it: a group
    /// does not wait for one of its members.
    fn deliver_to_group(&mut self, peer: ProcessId, header: &Header, bytes: &[u8]) {
        let Some((group, bytes)) = bytes.split_first_chunk::<{ GROUP_ID as usize }>() else { return };
        for handle in self.groups.receivers(*group) {
            if self.takes(handle, header) && self.hold_receive(handle) {
                self.receive_datagram(handle, peer, header, *group, bytes);
            }
        }
    }

    /// Puts `bytes`, sent to the GID `to`, into the receive that `handle` holds, and completes it. If they are too long for
    /// it they are lost: any process may send datagrams, and must not be able to stop this queue pair for others.
    fn receive_datagram(&mut self, handle: Qp, peer: ProcessId, header: &Header, to: [u8; 16], bytes: &[u8]) {
        if !self.has_room(handle, bytes) {
            return;
        }
        let way = Way::of_word(header.total, header.offset as u8);
        let route = (header.flags & flag::ROUTED != 0)
            .then(|| route_header(peer.vid.gid(self.fabric), to, way, bytes.len()));
        let status = self.place_datagram(handle, route.as_ref(), bytes);
        let Some(qp) = self.qps.get_mut(handle.0) else { return };
        qp.is_dry = false;
        let Some(wr_id) = qp.responder.give_receive() else { return };
        let completion = Wc {
            wr_id,
            status,
            opcode: WcOpcode::Receive,
            byte_len: GRH + bytes.len() as u32,
            imm: (header.opcode == Opcode::DatagramImm).then_some(header.imm),
            qpn: qp.qpn,
            src_qp: header.src_qpn,
            slid: peer.vid.lid(),
            sl: way.sl,
            solicited: status != WcStatus::Success || header.flags & flag::SOLICITED != 0,
            has_route: route.is_some(),
            ..Wc::default()
        };
        let cq = qp.init.recv_cq;
        self.complete(cq, completion);
        if status != WcStatus::Success {
            self.fail(handle);
        }
    }

    /// Datagrams for the receiver of `header` are dropped from now on, until it posts a receive.
    pub fn run_dry(&mut self, header: &Header) {
        let receiver = self.qp_names.by_virtual(header.dst_qpn);
        if let Some(qp) = receiver.and_then(|index| self.qps.get_mut(index)) {
            qp.is_dry = true;
        }
    }

    fn takes(&self, handle: Qp, header: &Header) -> bool {
        let qp = self.qps.get(handle.0);
        qp.is_some_and(|qp| qp.init.kind == QpKind::Ud && qp.executes() && qp.attr.qkey == header.rkey)
    }

    /// Counts a datagram that is dropped, if that is because its sender does not know the key.
    fn note_wrong_key(&mut self, header: &Header) {
        let receiver = self.qp_names.by_virtual(header.dst_qpn).and_then(|index| self.qps.get(index));
        if receiver.is_some_and(|qp| qp.init.kind == QpKind::Ud && qp.executes()) {
            self.wrong_keys = self.wrong_keys.saturating_add(1);
        }
    }

    /// Whether a datagram of `bytes` fits the receive that `handle` holds.
    fn has_room(&self, handle: Qp, bytes: &[u8]) -> bool {
        let room = self.qps.get(handle.0).map_or(0, |qp| qp.responder.receive.room());
        u64::from(GRH) + bytes.len() as u64 <= room
    }

    /// Puts a datagram into the receive that `handle` holds.
    fn place_datagram(&self, handle: Qp, route: Option<&RouteHeader>, bytes: &[u8]) -> WcStatus {
        let Some(qp) = self.qps.get(handle.0) else { return WcStatus::LocalQpOperation };
        let is_there = route.is_none_or(|route| self.scatter_into_receive(qp, 0, route))
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
}

/// The global route header of a datagram of `length` bytes (InfiniBand, section 8.3).
fn route_header(from: [u8; 16], to: [u8; 16], way: Way, length: usize) -> RouteHeader {
    const IP_VERSION: u32 = 6;
    const NEXT_IS_TRANSPORT: u8 = 0x1b;
    /// Base and datagram headers, and the checksum.
    const AROUND_PAYLOAD: usize = 12 + 8 + 4;
    let mut route = [0; GRH as usize];
    let payload = (length + AROUND_PAYLOAD) as u16;
    let first = IP_VERSION << 28 | u32::from(way.traffic_class) << 20 | way.flow_label;
    route[..4].copy_from_slice(&first.to_be_bytes());
    route[4..6].copy_from_slice(&payload.to_be_bytes());
    route[6] = NEXT_IS_TRANSPORT;
    route[7] = way.hop_limit;
    route[8..24].copy_from_slice(&from);
    route[24..40].copy_from_slice(&to);
    route
}
