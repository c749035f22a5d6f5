//! The state of a switch, for display.

use std::time::Duration;

use fabric::Epoch;
use serde::Serialize;

use super::{Gate, Place, PortId, PortKind, Reason, Switch};
use crate::mac::Mac;
use crate::topology::{NodeId, Version};

/// How the place of a MAC is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// Set by the coordinator.
    Managed {
        /// How often it has moved.
        epoch: Epoch,
        /// Frames that are kept for it, while it is on its way.
        kept: usize,
    },
    /// It was seen there.
    Learned {
        /// In which VLAN; 0 without one.
        vlan: u16,
    },
}

/// A MAC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct MacState {
    /// The MAC.
    pub mac: Mac,
    /// The node where it is.
    pub node: NodeId,
    /// The port where it is, if that is this node.
    pub port: Option<PortId>,
    /// How this is known.
    pub origin: Origin,
    /// Since when, or, if it was learned, since when it has been silent.
    pub age: Duration,
}

impl MacState {
    /// The sort key: the MAC, managed entries before learned ones, and the VLAN.
    #[must_use]
    pub fn place_in_order(&self) -> (Mac, Option<u16>) {
        let vlan = match self.origin {
            Origin::Managed { .. } => None,
            Origin::Learned { vlan } => Some(vlan),
        };
        (self.mac, vlan)
    }
}

/// A port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PortState {
    /// Which.
    pub port: PortId,
    /// The kind of the port.
    pub kind: PortKind,
    /// Whether its instance runs.
    pub gate: Gate,
    /// How long it stays blocked because of a loop, unless that is seen again; 0 if it is not.
    pub blocked: Duration,
    /// How many loops were found there.
    pub loops: u64,
}

/// A node's switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct State {
    /// The owner.
    pub node: NodeId,
    /// The topology with which own frames are stamped.
    pub version: Option<Version>,
    /// The known ones.
    pub versions: Vec<Version>,
    /// In ascending order.
    pub ports: Vec<PortState>,
    /// How many MACs are known.
    pub macs: usize,
    /// Dropped frames by reason, where there are any.
    pub dropped: Vec<(Reason, u64)>,
}

impl Switch {
    /// The present state of the switch.
    #[must_use]
    pub fn state(&self, now: Duration) -> State {
        let counted = Reason::ALL.map(|reason| (reason, self.counters.dropped(reason)));
        State {
            node: self.me,
            version: self.versions.current().map(|routes| routes.version()),
            versions: self.versions.list(),
            ports: self.port_states(now),
            macs: self.managed.iter().count() + self.learned.iter().count(),
            dropped: counted.into_iter().filter(|(_, count)| *count > 0).collect(),
        }
    }

    fn port_states(&self, now: Duration) -> Vec<PortState> {
        let state = |(id, port): (PortId, &super::ports::Port)| PortState {
            port: id,
            kind: port.kind,
            gate: port.gate,
            blocked: port.blocked_for(now),
            loops: port.loops,
        };
        self.ports.iter().map(state).collect()
    }

    /// The MACs that are known, in any order: the switch does nothing else meanwhile.
    #[must_use]
    pub fn macs(&self, now: Duration) -> Vec<MacState> {
        let managed = self.managed.iter().map(|(mac, place, managed)| {
            let origin = Origin::Managed { epoch: managed.epoch(), kept: self.moves.kept(mac) };
            self.mac_state(mac, place, origin, now.saturating_sub(managed.since()))
        });
        let learned = self.learned.iter().map(|(key, learned)| {
            let origin = Origin::Learned { vlan: key.vlan() };
            self.mac_state(key.mac(), learned.place, origin, now.saturating_sub(learned.seen))
        });
        managed.chain(learned).collect()
    }

    fn mac_state(&self, mac: Mac, place: Place, origin: Origin, age: Duration) -> MacState {
        let (node, port) = match place {
            Place::Port(port) => (self.me, Some(port)),
            Place::Node(node) => (node, None),
        };
        MacState { mac, node, port, origin, age }
    }
}
