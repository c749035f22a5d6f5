//! What a switch knows, to be shown.

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
    /// The coordinator says so.
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

/// A port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PortState {
    /// Which.
    pub port: PortId,
    /// What is behind it.
    pub kind: PortKind,
    /// Whether its instance runs.
    pub gate: Gate,
    /// For how long it stays blocked because of a loop; 0 if it is not.
    pub blocked: Duration,
    /// How many loops were found there.
    pub loops: u64,
}

/// A node's switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct State {
    /// Whose it is.
    pub node: NodeId,
    /// The topology with which own frames are stamped.
    pub version: Option<Version>,
    /// Those that are known.
    pub versions: Vec<Version>,
    /// In ascending order.
    pub ports: Vec<PortState>,
    /// In ascending order.
    pub macs: Vec<MacState>,
    /// Dropped frames by reason, where there are any.
    pub dropped: Vec<(Reason, u64)>,
}

impl Switch {
    /// What the switch knows now.
    #[must_use]
    pub fn state(&self, now: Duration) -> State {
        let counted = Reason::ALL.map(|reason| (reason, self.counters.dropped(reason)));
        State {
            node: self.me,
            version: self.versions.current().map(|routes| routes.version()),
            versions: self.versions.list(),
            ports: self.port_states(now),
            macs: self.mac_states(now),
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

    fn mac_states(&self, now: Duration) -> Vec<MacState> {
        let managed = self.managed.iter().map(|(mac, place, managed)| {
            let origin = Origin::Managed { epoch: managed.epoch(), kept: self.moves.kept(mac) };
            self.mac_state(mac, place, origin, now.saturating_sub(managed.since()))
        });
        let learned = self.learned.iter().map(|(key, learned)| {
            let origin = Origin::Learned { vlan: key.vlan() };
            self.mac_state(key.mac(), learned.place, origin, now.saturating_sub(learned.seen))
        });
        let mut macs: Vec<_> = managed.chain(learned).collect();
        macs.sort_by_key(|state| {
            (state.mac, matches!(state.origin, Origin::Learned { .. }), vlan(state.origin))
        });
        macs
    }

    fn mac_state(&self, mac: Mac, place: Place, origin: Origin, age: Duration) -> MacState {
        let (node, port) = match place {
            Place::Port(port) => (self.me, Some(port)),
            Place::Node(node) => (node, None),
        };
        MacState { mac, node, port, origin, age }
    }
}

fn vlan(origin: Origin) -> u16 {
    match origin {
        Origin::Managed { .. } => 0,
        Origin::Learned { vlan } => vlan,
    }
}
