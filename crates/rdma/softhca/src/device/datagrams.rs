//! Address handles, and the path of datagrams from queue pairs to links.

use crate::address::{Address, AddressHandle};
use crate::attr::{AddressVector, QpKind};
use crate::datagram::Destination;
use crate::device::{Device, require, require_room};
use crate::errno::Errno;
use crate::groups::GroupId;
use crate::handle::{Ah, Pd, Qp};
use crate::link::State;
use crate::wire::Header;

impl Device {
    /// Makes an address handle.
    ///
    /// # Errors
    /// `INVALID` for an address that no instance of the fabric can have; `NO_MEMORY` past the device's limit.
    pub fn create_ah(&mut self, pd: Pd, address: &AddressVector) -> Result<Ah, Errno> {
        require(address.port == 1 && address.has_known_source())?;
        let instance = || address.instance(self.core.fabric).map(Address::Instance);
        let to = address.group().map(Address::Group).or_else(instance).ok_or(Errno::INVALID)?;
        require_room(self.core.addresses.len(), self.core.limits.max_ah)?;
        self.enter_domain(pd)?;
        if let Address::Group(group) = to {
            self.core.groups.prepare(group);
        }
        let handle = AddressHandle { pd, to, has_route: address.global.is_some(), way: address.way() };
        Ok(Ah(self.core.addresses.insert(handle)))
    }

    /// Ends an address handle. Datagrams that are still to be sent to it are dropped.
    ///
    /// # Errors
    /// `INVALID` if there is no such handle.
    pub fn destroy_ah(&mut self, ah: Ah) -> Result<(), Errno> {
        let address = self.core.addresses.remove(ah.0).ok_or(Errno::INVALID)?;
        self.leave_domain(address.pd);
        Ok(())
    }

    /// How many datagrams were dropped because their sender did not know the key of the queue pair that they were for.
    #[must_use]
    pub fn wrong_keys(&self) -> u32 {
        self.core.wrong_keys
    }

    /// True while datagrams that have completed are not known to have been taken.
    #[must_use]
    pub fn has_datagrams(&self) -> bool {
        self.links.links.iter().any(|link| link.datagrams.is_waiting())
    }

    /// Hands the posted datagrams of the queue pair `qp` to its links, until one has no room.
    pub(super) fn send_datagrams(&mut self, qp: Qp) {
        let mut busy: Option<usize> = None;
        while let Some((to, header)) = self.core.next_datagram(qp) {
            let (own, most) = (self.core.process, self.core.limits.max_peers);
            let peer = match to {
                Destination::Nobody => None,
                Destination::Process(peer) => Some(peer),
                Destination::Group(group) if self.send_to_group(qp, group, &header) => continue,
                Destination::Group(_) => break,
            };
            let at = peer.and_then(|peer| self.links.reach(own, peer, most));
            if let Some(at) = at {
                if busy.is_some_and(|before| before != at) {
                    self.push_datagrams(busy);
                }
                busy = Some(at);
                if !self.links.links[at].datagrams.has_room() {
                    self.links.wait_for_room(at, qp);
                    break;
                }
                let datagrams = &mut self.links.links[at].datagrams;
                datagrams.send(header, |bytes| self.core.gather_datagram(qp, bytes));
            }
            self.core.finish_datagram(qp);
        }
        self.push_datagrams(busy);
    }

    /// Sends a copy to each process with receivers. False if some link has no room, or if they are not known yet.
    fn send_to_group(&mut self, qp: Qp, group: GroupId, header: &Header) -> bool {
        let Some(members) = self.core.groups.members(group, qp) else { return false };
        let links = self.links.reach_all(self.core.process, members, self.core.limits.max_peers);
        if let Some(full) = links.iter().copied().find(|at| !self.links.links[*at].datagrams.has_room()) {
            self.links.wait_for_room(full, qp);
            self.push_datagrams(Some(full));
            return false;
        }
        for at in links {
            let datagrams = &mut self.links.links[at].datagrams;
            datagrams.send(*header, |bytes| {
                bytes.extend_from_slice(&group);
                self.core.gather_datagram(qp, bytes);
            });
            self.push_datagrams(Some(at));
        }
        self.core.finish_datagram(qp);
        true
    }

    /// All datagram queue pairs go on with the datagrams that were posted on them meanwhile.
    pub(super) fn unblock_all(&mut self) {
        let queue_pairs = self.core.qps.indices().map(Qp);
        let datagram = |qp: &Qp| self.core.qps.get(qp.0).is_some_and(|qp| qp.init.kind == QpKind::Ud);
        self.core.unblocked = queue_pairs.filter(datagram).collect();
    }

    fn push_datagrams(&mut self, link: Option<usize>) {
        let Some(at) = link else { return };
        if self.links.links[at].state == State::Up {
            self.transmit(at);
        } else {
            self.need_link(at);
        }
    }

    /// A receive was posted: datagrams may have waited for it.
    #[inline]
    pub(super) fn deliver_waiting(&mut self) {
        if std::mem::take(&mut self.core.datagrams_wait) {
            self.deliver_all();
        }
    }

    #[cold]
    fn deliver_all(&mut self) {
        let mut turn = 0;
        while let Some(&at) = self.links.live.get(turn) {
            self.deliver_from(at);
            // If it was lost, another one is in its place.
            turn += usize::from(self.links.live.get(turn) == Some(&at));
        }
        self.settle();
    }

    fn deliver_from(&mut self, at: usize) {
        let link = &mut self.links.links[at];
        let waits = link.datagrams.deliver(&mut self.core, &mut link.out, link.peer);
        self.core.datagrams_wait |= waits;
        if link.has_work() {
            self.transmit(at);
        }
    }

    /// Datagrams on link `at` have waited for a receive for too long.
    pub(super) fn drop_after_timeout(&mut self, at: usize) {
        self.links.links[at].datagrams.drop_after_timeout(&mut self.core);
        self.deliver_from(at);
    }
}
