//! Frames by which two neighbours request, export and revoke direct mappings.

use std::sync::Arc;

use crate::attr::Access;
use crate::core::Core;
use crate::handle::Qp;
use crate::link::{Link, MAX_STAGED, State};
use crate::requester::addressed;
use crate::share::direct_mapping::{DirectMapping, Mapped};
use crate::stream::Neighbour;
use crate::wire::{Export, Header, Opcode};

/// Requests for direct mappings that may wait; more are not answered, and stay on the ring.
const MAX_ASKED: usize = 4096;

/// Memories of one neighbour that are mapped.
const MAX_TAKEN: usize = 4096;

/// Their bytes. More would leave the program itself no addresses.
const MAX_TAKEN_BYTES: u64 = 1 << 40;

impl Link {
    /// The peer as a neighbour, while the link is up.
    #[inline]
    pub fn neighbour(&self) -> Option<&dyn Neighbour> {
        let stream = self.stream.as_ref().filter(|_| self.state == State::Up)?;
        stream.neighbour()
    }

    /// Asks for a direct mapping to the memory that the application calls `rkey`, for `handle`.
    pub fn ask_for_direct_mapping(&mut self, core: &Core, handle: Qp, rkey: u32) {
        let Some(qp) = core.qps.get(handle.0) else { return };
        let real = self.out.lookup.real(verbs::HandleKind::MemoryKey, rkey);
        let request = addressed(qp, &self.out.lookup, Opcode::MapRequest);
        self.out.control(Header { rkey: real, imm: rkey, ..request });
    }

    pub(super) fn on_map_request(&mut self, header: &Header) {
        if self.sharing.asked.len() < MAX_ASKED {
            self.sharing.asked.push_back(*header);
        }
    }

    /// The next request for a direct mapping that can be answered: a peer that asks for many and does not read the answers waits.
    pub fn next_map_request(&mut self) -> Option<Header> {
        if self.blocked || self.tx.left() >= MAX_STAGED {
            return None;
        }
        self.sharing.asked.pop_front()
    }

    /// Answers `request` of queue pair `handle` with `export`. Its first byte has the virtual address `va`.
    pub fn export(&mut self, core: &Core, handle: Qp, request: &Header, va: u64, export: &Export) {
        let Some(qp) = core.qps.get(handle.0) else { return };
        let payload = export.encode();
        let header = addressed(qp, &self.out.lookup, Opcode::Export);
        self.tx.frame(&Header { imm: request.imm, va, length: payload.len() as u32, ..header });
        self.tx.copy(&payload);
        self.sharing.exports = true;
    }

    pub(super) fn on_export(&mut self, core: &mut Core, header: &Header, export: &Export) {
        // A stranger does not make us map anything.
        if self.qps.is_empty() {
            return;
        }
        let Some(memory) = self.taken(export.memory, export.count) else { return };
        let Some(address) = memory.address(export.offset, export.length) else { return };
        let Some(gate) = self.neighbour().map(Neighbour::peer_gate) else { return };
        let Some(index) = core.qp_names.by_real(header.dst_qpn) else { return };
        let Some(qp) = core.qps.get_mut(index) else { return };
        if qp.peer != Some(self.peer) || qp.attr.remote_qpn != header.src_qpn {
            return;
        }
        let granted = Access::from_bits_truncate(export.rights);
        // A read-only memfd grants no writes, regardless of its owner's claims.
        let forbidden = if memory.writable { Access::empty() } else { Access::REMOTE_WRITE };
        qp.direct_mappings.add(DirectMapping {
            rkey: header.imm,
            va: header.va,
            length: export.length,
            rights: granted - forbidden,
            address,
            count: export.count,
            gate,
            _memory: memory,
        });
    }

    /// The memory of sending `number`, mapped if it was not yet, under the peer's gate's `count`.
    fn taken(&mut self, number: u64, count: u32) -> Option<Arc<Mapped>> {
        while !self.sharing.taken.contains_key(&number) {
            let (sending, memory) = self.neighbour()?.receive_memory().ok()?;
            if self.sharing.taken.len() >= MAX_TAKEN {
                return None;
            }
            let taken: u64 = self.sharing.taken.values().map(|(mapped, _)| mapped.length()).sum();
            let mapped = Mapped::new(&memory, MAX_TAKEN_BYTES.saturating_sub(taken)).ok()?;
            self.sharing.taken.insert(sending, (Arc::new(mapped), count));
        }
        self.sharing.taken.get(&number).map(|(memory, _)| Arc::clone(memory))
    }

    /// Forgets the direct mappings that the peer's gate has made void. The peer exports them again on request; exports
    /// since then stay.
    pub fn close_stale_direct_mappings(&mut self, core: &mut Core) {
        let Some(now) = self.neighbour().map(|neighbour| neighbour.peer_gate().count()) else { return };
        for handle in &self.qps {
            if let Some(qp) = core.qps.get_mut(handle.0) {
                qp.direct_mappings.close_stale(now);
            }
        }
        self.sharing.taken.retain(|_, (_, count)| *count == now);
    }

    /// Forgets all direct mappings to the peer's memory.
    pub fn close_direct_mappings(&mut self, core: &mut Core) {
        for handle in &self.qps {
            if let Some(qp) = core.qps.get_mut(handle.0) {
                qp.direct_mappings.clear();
            }
        }
        self.sharing.taken.clear();
    }

    /// Closes our gate, if the peer has direct mappings. False if the peer stays inside too long.
    pub fn close_gate(&mut self) -> bool {
        if !std::mem::take(&mut self.sharing.exports) {
            return true;
        }
        self.sharing.given.clear();
        let neighbour = self.stream.as_ref().and_then(|stream| stream.neighbour());
        let has_left = neighbour.is_none_or(|neighbour| neighbour.close_gate());
        self.overstayed |= !has_left;
        has_left
    }
}
