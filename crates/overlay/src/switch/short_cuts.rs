//! What may pass between two nodes without the switch: frames from a station that runs here for one of which the coordinator
//! says that it is on a node to which there is a link, and the other way round.
//!
//! Somebody else carries these, who knows no more than this module says: to both ends the frame's source and its destination
//! are where they should be. All other frames are the switch's, also those that the other node took for such a frame:
//! [`From::ShortCut`](super::From::ShortCut). A frame goes no further than to that node, so there is no loop.

use std::collections::HashSet;

use super::{Gate, Place, PortId, PortKind, Switch};
use crate::mac::Mac;
use crate::topology::NodeId;

/// So many changes are told apart.
const MOST: usize = 1024;

/// Where a managed MAC is, to one who only carries what needs no decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShortCut {
    /// It runs here, behind this port.
    Port(PortId),
    /// It is on this node, to which there is a link, and frames for it go by that.
    Node(NodeId),
}

/// The MACs whose [`Switch::short_cut`] may be another one than before.
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

    /// The MACs whose short cuts may have changed since this was called last. Whoever carries frames asks after each
    /// change, before anything else comes of that: before what the change sets free is sent, and before another learns of it.
    #[must_use]
    pub fn take_changes(&mut self) -> Changes {
        std::mem::take(&mut self.changes)
    }

    /// All MACs that the coordinator has told of.
    pub fn managed_macs(&self) -> impl Iterator<Item = Mac> {
        self.managed.iter().map(|(mac, ..)| mac)
    }

    /// A port's gate; what lives behind it may be another MAC than the one that moves.
    pub(super) fn set_gate(&mut self, port: PortId, gate: Gate) {
        if self.ports.get(port).is_some_and(|known| known.gate != gate) {
            self.ports.set_gate(port, gate);
            self.port_has_changed(port);
        }
    }

    /// The short cuts of MACs here behind `port` may have changed, or what their carrier makes of them has. Of others' nothing is said:
    /// frames wait for who looks through all of them.
    pub fn port_has_changed(&mut self, port: PortId) {
        let here = self.managed.iter().filter(|(_, home, _)| *home == Place::Port(port));
        here.for_each(|(mac, ..)| self.changes.add(mac));
    }
}
