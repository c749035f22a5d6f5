//! The registered list: the peers to notify when this process' handles change.
//!
//! A peer registers by connecting. It is *active* once a connection to it has carried traffic since
//! it connected or since the peer last moved: active peers are notified at once after a move, the
//! others learn of it when they next send.

use std::collections::BTreeMap;

use fabric::{Epoch, ProcessId};

/// The state of one registered peer.
#[derive(Clone, Copy, Debug, Default)]
struct Registration {
    connections: u32,
    active: bool,
    epoch: Epoch,
}

/// The peers that use handles of this process.
#[derive(Debug, Default)]
pub struct RegisteredList {
    peers: BTreeMap<ProcessId, Registration>,
    /// The peer that was marked active last; it still is.
    recent: Option<ProcessId>,
}

impl RegisteredList {
    /// A QP has been connected to `peer`.
    pub fn connect(&mut self, peer: ProcessId) {
        self.peers.entry(peer).or_default().connections += 1;
    }

    /// A QP that was connected to `peer` is gone; with the last one the peer is unregistered.
    pub fn disconnect(&mut self, peer: ProcessId) {
        self.recent = None;
        if let Some(registration) = self.peers.get_mut(&peer) {
            registration.connections = registration.connections.saturating_sub(1);
            if registration.connections == 0 {
                self.peers.remove(&peer);
            }
        }
    }

    /// Traffic has gone from or to `peer`.
    #[inline]
    pub fn mark_active(&mut self, peer: ProcessId) {
        if self.recent != Some(peer) {
            self.activate(peer);
        }
    }

    fn activate(&mut self, peer: ProcessId) {
        if let Some(registration) = self.peers.get_mut(&peer) {
            registration.active = true;
            self.recent = Some(peer);
        }
    }

    /// `peer` reports its `epoch`. False if it is not newer.
    pub fn note_epoch(&mut self, peer: ProcessId, epoch: Epoch) -> bool {
        self.recent = None;
        let Some(registration) = self.peers.get_mut(&peer) else { return true };
        if epoch > registration.epoch {
            *registration = Registration { active: false, epoch, ..*registration };
        }
        epoch == registration.epoch
    }

    /// Peers to tell at once.
    pub fn active(&self) -> impl Iterator<Item = ProcessId> + '_ {
        self.peers.iter().filter(|(_, registration)| registration.active).map(|(peer, _)| *peer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fabric::Vid;

    #[test]
    fn a_peer_is_active_by_traffic_until_it_moves() {
        let peer = ProcessId { vid: Vid::new(4).unwrap(), index: 1 };
        let mut list = RegisteredList::default();
        list.mark_active(peer);
        assert_eq!(list.active().count(), 0, "not registered");
        list.connect(peer);
        list.mark_active(peer);
        assert_eq!(list.active().collect::<Vec<_>>(), [peer]);
        assert!(list.note_epoch(peer, Epoch(2)));
        assert_eq!(list.active().count(), 0);
        assert!(!list.note_epoch(peer, Epoch(1)), "the higher epoch wins");
        list.mark_active(peer);
        list.disconnect(peer);
        assert_eq!(list.active().count(), 0);
    }
}
