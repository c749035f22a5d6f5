//! Frames that may pass between two nodes without the switch: from a station that runs here to one that the coordinator
//! has placed on a node with a direct link, and the other way round.
//!
//! The kernel carries these, and knows only the facts that this module reports: at both ends the frame's source and its destination
//! are in their places. All other frames go to the switch, also those that the other node took for such a frame:
//! [`From::ShortCut`](super::From::ShortCut). A frame goes no further than to that node, so there is no loop.

use std::collections::HashSet;

use super::{Gate, Place, PortId, PortKind, Switch};
use crate::mac::Mac;
use crate::topology::NodeId;

/// The number of changes that are kept apart.
const MOST: usize = 1024;

/// The place of a managed MAC, for a carrier of frames that need no decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShortCut {
    /// It runs here, behind this port.
    Port(PortId),
    /// It is on this node, to which there is a link, and frames for it go by that.
    Node(NodeId),
}

/// The MACs with a possibly changed [`Switch::short_cut`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Changes {
    /// These.
    Some(HashSet<Mac>),
    /// Any.
    All,
}

impl Default for Changes {
    fn default() -> Self {
        Self::Some(HashSet::new())
    }
}

impl Changes {
    pub(super) fn add(&mut self, mac: Mac) {
        match self {
            Self::Some(macs) if macs.len() < MOST => drop(macs.insert(mac)),
            _ => *self = Self::All,
        }
    }
}

impl Switch {
    /// Where `mac` is, if frames from and for it may pass without the switch.
    #[must_use]
    pub fn short_cut(&self, mac: Mac) -> Option<ShortCut> {
        match self.managed.get(mac)?.home? {
            Place::Port(id) => {
                let port = self.ports.get(id)?;
                let runs = port.kind == PortKind::Instance && port.gate == Gate::Open;
                let is_moving =
                    self.moves.leaving.contains_key(&mac) || self.moves.arriving.contains_key(&mac);
                (runs && !is_moving).then_some(ShortCut::Port(id))
            }
            Place::Node(node) => {
                let is_linked = self.versions.current()?.next_hop(node) == Some(node);
                is_linked.then_some(ShortCut::Node(node))
            }
        }
    }

    /// The MACs whose short cuts may have changed since the last call. A carrier of frames calls this after each
    /// change, before its effects: before released frames leave, and before another thread learns of it.
    #[must_use]
    pub fn take_changes(&mut self) -> Changes {
        std::mem::take(&mut self.changes)
    }

    /// All managed MACs.
    pub fn managed_macs(&self) -> impl Iterator<Item = Mac> {
        self.managed.iter().map(|(mac, ..)| mac)
    }

    /// A port's gate; the MAC behind it may be another than the one that moves.
    pub(super) fn set_gate(&mut self, port: PortId, gate: Gate) {
        if self.ports.get(port).is_some_and(|known| known.gate != gate) {
            self.ports.set_gate(port, gate);
            self.port_has_changed(port);
        }
    }

    /// The short cuts of MACs here behind `port`, or their use by the carrier, may have changed. Others are not reported:
    /// frames wait for a caller that looks through all of them.
    pub fn port_has_changed(&mut self, port: PortId) {
        let here = self.managed.iter().filter(|(_, home, _)| *home == Place::Port(port));
        here.for_each(|(mac, ..)| self.changes.add(mac));
    }
}
