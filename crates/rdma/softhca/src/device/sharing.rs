//! Direct mappings: memory shared with neighbours on the same host.

use std::os::fd::AsFd;

use waiting::Uncancelled;

use crate::attr::Access;
use crate::device::Device;
use crate::handle::Qp;
use crate::share::direct_mapping::{Copied, Direct};
use crate::share::owner::{Answer, whole_pages};
use crate::wire::{Export, Header};
use crate::work::Rdma;

impl Device {
    /// Allows or forbids to share registered memory with neighbours on the same host. Forbidden at first.
    pub fn allow_sharing(&mut self, allowed: bool) {
        self.sharing.allowed = allowed;
    }

    /// Makes all memory private again, so that a child that is about to be forked gets copies. Call it with
    /// the device locked until the fork is over.
    pub fn before_fork(&mut self) {
        self.close_gates();
        self.sharing.make_all_private();
    }

    /// Does a WRITE of one piece at once by copying, if nothing stands in its way. False if it is for [`Self::post_rdma`].
    #[inline(always)]
    pub fn write_plainly(&mut self, qp: Qp, rdma: &Rdma<'_>) -> bool {
        let Some((at, copied)) = self.core.write_plainly(qp, rdma) else { return false };
        copied.count_in(&mut self.links.links[at].tx.traffic);
        true
    }

    /// Does a WRITE or READ at once by copying, where that is possible. False if it has to be posted.
    #[inline(always)]
    pub fn post_rdma(&mut self, qp: Qp, rdma: &Rdma<'_>) -> bool {
        match self.core.direct(qp, rdma) {
            Direct::Done(copied) => {
                self.count_copied(qp, copied);
                return true;
            }
            Direct::Declined => {}
            Direct::Unknown(rkey) => self.want_direct_mapping(qp, rkey),
            Direct::Closed => self.close_stale_direct_mappings(qp),
        }
        false
    }

    #[inline(always)]
    fn count_copied(&mut self, qp: Qp, copied: Copied) {
        if let Some(at) = self.core.qps.get(qp.0).and_then(|qp| qp.link) {
            copied.count_in(&mut self.links.links[at].tx.traffic);
        }
    }

    /// Forgets the direct mappings of `qp`'s neighbour that are closed.
    pub(super) fn close_stale_direct_mappings(&mut self, qp: Qp) {
        if let Some(at) = self.core.qps.get(qp.0).and_then(|qp| qp.link) {
            self.links.links[at].close_stale_direct_mappings(&mut self.core);
        }
    }

    /// Asks the neighbour of `qp` once for a direct mapping to the memory that `rkey` names.
    fn want_direct_mapping(&mut self, qp: Qp, rkey: u32) {
        let Some(entry) = self.core.qps.get_mut(qp.0) else { return };
        let Some(link) = entry.link.map(|at| &mut self.links.links[at]) else { return };
        if link.neighbour().is_some() && entry.may_ask() && entry.direct_mappings.ask(rkey) {
            link.ask_for_direct_mapping(&self.core, qp, rkey);
            self.registered.mark_active(link.peer);
        }
    }

    /// Converts a little more memory, and answers neighbours. Returns whether more remains.
    pub(super) fn run_sharing(&mut self) -> bool {
        let _whole = Uncancelled::new();
        let mut waiting = false;
        for turn in 0..self.links.live.len() {
            let at = self.links.live[turn];
            for _ in 0..self.links.links[at].sharing.asked.len() {
                let Some(request) = self.links.links[at].next_map_request() else { break };
                if !self.answer_map_request(at, &request) {
                    self.links.links[at].sharing.asked.push_back(request);
                    waiting = true;
                }
            }
        }
        if waiting {
            self.sharing.turn_some();
        }
        waiting
    }

    /// True if the neighbour waits for a direct mapping, and listens.
    #[inline]
    pub(super) fn is_asked_for_memory(&self, at: usize) -> bool {
        let link = &self.links.links[at];
        !link.sharing.asked.is_empty() && !link.blocked
    }

    /// Exports the memory that `request` asks for, if its rights allow that. False if it has to wait.
    fn answer_map_request(&mut self, at: usize, request: &Header) -> bool {
        let link = &mut self.links.links[at];
        let Some(qp) = self.core.qp_names.by_real(request.dst_qpn).map(Qp) else { return true };
        let Some(entry) = self.core.qps.get(qp.0) else { return true };
        let connected = entry.peer == Some(link.peer) && entry.attr.remote_qpn == request.src_qpn;
        if !connected || !entry.executes() || entry.responder.peer_has_restarted || link.overstayed {
            return true;
        }
        let Some((mr, region)) = self.core.regions.named(entry.init.pd, request.rkey) else { return true };
        let rights = region.access & entry.attr.access & (Access::REMOTE_READ | Access::REMOTE_WRITE);
        if rights.is_empty() {
            return true;
        }
        let shared = match self.sharing.want(mr, region) {
            Answer::Ready(shared) => shared,
            Answer::NotYet => return false,
            Answer::Never => return true,
        };
        // A process with the descriptor can do all that it allows, beyond the rights of the queue pair.
        if shared.writable != rights.contains(Access::REMOTE_WRITE) {
            return true;
        }
        let Some(neighbour) = link.neighbour() else { return true };
        let sending = match link.sharing.given.get(&shared.id) {
            Some(sending) => *sending,
            None => {
                let next = link.sharing.sent + 1;
                let sent = shared.memory().and_then(|memory| neighbour.send_memory(next, memory.as_fd()));
                if sent.is_err() {
                    return true;
                }
                next
            }
        };
        let pages = whole_pages(region);
        let export = Export {
            memory: sending,
            offset: pages.start - shared.range.start,
            length: pages.end - pages.start,
            rights: rights.bits(),
            count: neighbour.gate(),
        };
        let va = region.iova + (pages.start - region.addr);
        link.sharing.given.insert(shared.id, sending);
        link.sharing.sent = link.sharing.sent.max(sending);
        link.export(&self.core, qp, request, va, &export);
        self.registered.mark_active(link.peer);
        true
    }

    /// Voids all direct mappings to our memory.
    pub(super) fn close_gates(&mut self) {
        let mut all_left = true;
        for turn in 0..self.links.live.len() {
            all_left &= self.links.links[self.links.live[turn]].close_gate();
        }
        if !all_left {
            // A peer that stays inside keeps memory that is not ours any more.
            self.sharing.make_all_private();
        }
    }

    /// Voids the direct mappings of one peer. If it stays inside, the memory is revoked from all peers, so that no other is
    /// inside either.
    pub(super) fn close_gate(&mut self, at: usize) {
        if !self.links.links[at].close_gate() {
            self.close_gates();
            self.sharing.make_all_private();
        }
    }
}
