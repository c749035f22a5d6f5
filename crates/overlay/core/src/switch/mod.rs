//! The learning layer-2 switch that each node runs.
//!
//! ```text
//!  station ─ port ─▶ switch ─ label, frame ─▶ switch ─ label, frame ─▶ switch ─ port ─▶ station
//!                   (ingress)                (transit)                (egress)
//! ```
//!
//! The ingress node decides: it knows the place of the MAC, and stamps a [`Label`] with the node and the version of the
//! topology. Transit nodes look at labels alone. The egress node finds the port. Broadcasts, and frames to a MAC
//! with an unknown place, go down the tree of the ingress node ([`topology`](crate::topology)).
//!
//! * [`Label`]: the header before a frame between nodes. `versions`: topologies, changed in two phases.
//! * `ports`: local attachments, and their blocking when a loop is found. `probe`: loop detection. `change`: notices
//!   when a LAN port is blocked or opened.
//! * `managed`, `learned`: places of MACs, set by the coordinator or learned from frames.
//! * `path`: the processing of a frame from a port (`ingress`) and from a node (`egress`). `resolution`: ARP and neighbour discovery,
//!   answered on behalf of instances; `answered`: recent answers.
//! * `short_cuts`: frames that bypass the switch. `moves`: moves of MACs between nodes. `kept`: frames kept meanwhile.
//!   `bucket`: rate limits. `counters`, `state`: for display.

mod answered;
mod bucket;
mod change;
mod counters;
mod egress;
mod ingress;
mod kept;
mod label;
mod learned;
mod managed;
mod moves;
mod path;
mod ports;
mod probe;
mod resolution;
mod short_cuts;
mod state;
mod versions;

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use foldhash::fast::RandomState;
use serde::{Deserialize, Serialize};

use crate::mac::Mac;
use crate::topology::{NodeId, Routes, Version};
use answered::Answered;
use bucket::FloodLimits;
use change::LanChanges;
use kept::Moves;
use learned::LearnedMacs;
use managed::ManagedMacs;
use ports::Ports;
use probe::Probe;
use versions::Versions;

pub use bucket::{FloodRates, Rate};
pub use counters::{Counters, Reason};
pub use label::{Destination, InvalidLabel, Label};
pub use managed::{Entry, MAX_ADDRESSES};
pub use moves::{Parcel, Refused};
pub use path::Frame;
pub use ports::{Gate, PortKind};
pub use short_cuts::{Changes, ShortCut};
pub use state::{MacState, Origin, PortState, State};
pub use versions::{InvalidVersion, KEPT_VERSIONS};

/// How often old entries are removed.
const SWEEP_INTERVAL: Duration = Duration::from_secs(10);

/// A local attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PortId(pub u16);

impl fmt::Display for PortId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Where a frame came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum From {
    /// A local port.
    Port(PortId),
    /// Another node.
    Link {
        /// The sender, as authenticated by the tunnel.
        neighbour: NodeId,
        /// Its label.
        label: Label,
    },
    /// This node, by a short cut from a node with a link to it: the frame is from a station there, and for one here, by
    /// that node's knowledge.
    ShortCut(NodeId),
}

/// Where a frame goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    /// A local port.
    Port(PortId),
    /// Another node.
    Link {
        /// The destination of the frame.
        neighbour: NodeId,
        /// Its label.
        label: Label,
    },
}

/// The outcome of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It goes to one place.
    Forwarded,
    /// It goes to several places, or to none because no others exist.
    Flooded,
    /// It is kept for a MAC that is on its way.
    Held,
    /// This frame goes back to the port from which it came.
    Answered(Vec<u8>),
    /// It goes nowhere.
    Dropped(Reason),
}

/// Where a MAC is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Place {
    Port(PortId),
    Node(NodeId),
}

/// How much a switch may grow, and how long it remembers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// MACs learned, in all VLANs together.
    pub learned: usize,
    /// How long one is remembered that is silent.
    pub age: Duration,
    /// MACs managed.
    pub managed: usize,
    /// How long after a move stragglers are believed and sent on: longer than a frame or a message of the coordinator
    /// may take.
    pub grace: Duration,
    /// Frames kept for one MAC that is on its way.
    pub kept_frames: usize,
    /// Bytes of these: as much as a TCP connection has on its way, since it waits for its timer to repeat lost data.
    pub kept_bytes: usize,
    /// Bytes kept for all MACs that are on their way.
    pub kept_bytes_in_all: usize,
    /// The limit of flooded frames from one port.
    pub port_flood: FloodRates,
    /// The limit of flooded frames from one node.
    pub node_flood: FloodRates,
}

impl Default for Limits {
    fn default() -> Self {
        let rate = |frames, bytes| Rate { frames, bytes };
        Self {
            learned: 64 * 1024,
            age: Duration::from_secs(300),
            managed: 64 * 1024,
            grace: Duration::from_secs(5),
            kept_frames: 4096,
            kept_bytes: 8 << 20,
            kept_bytes_in_all: 64 << 20,
            port_flood: FloodRates { unknown: rate(10_000, 16 << 20), broadcast: rate(10_000, 16 << 20) },
            node_flood: FloodRates { unknown: rate(40_000, 64 << 20), broadcast: rate(40_000, 64 << 20) },
        }
    }
}

/// The switch of one node.
pub struct Switch {
    me: NodeId,
    /// Marks the loop probes of this switch.
    nonce: u64,
    limits: Limits,
    versions: Versions,
    ports: Ports,
    managed: ManagedMacs,
    learned: LearnedMacs,
    moves: Moves,
    answered: Answered,
    lan_changes: LanChanges,
    /// Of the nodes from which something came for many.
    node_flood: HashMap<NodeId, FloodLimits, RandomState>,
    counters: Counters,
    changes: Changes,
    swept: Duration,
}

impl Switch {
    /// The switch of the node `me`, without ports and topology. `nonce` is random, so that no other switch has it.
    #[must_use]
    pub fn new(me: NodeId, nonce: u64, limits: Limits) -> Self {
        Self {
            me,
            nonce,
            limits,
            versions: Versions::default(),
            ports: Ports::default(),
            managed: ManagedMacs::new(me, limits.grace),
            learned: LearnedMacs::new(limits.learned, limits.age),
            moves: Moves::default(),
            answered: Answered::default(),
            lan_changes: LanChanges::default(),
            node_flood: HashMap::default(),
            counters: Counters::default(),
            changes: Changes::default(),
            swept: Duration::ZERO,
        }
    }

    /// Adds a port; one with the same number is replaced.
    pub fn attach(&mut self, port: PortId, kind: PortKind) {
        self.detach(port);
        self.ports.attach(port, kind, self.limits.port_flood);
        self.port_has_changed(port);
    }

    /// A port is not there any more, nor are its kept frames.
    pub fn detach(&mut self, port: PortId) {
        let was_lan = self.ports.get(port).is_some_and(|port| port.kind == PortKind::Lan);
        if was_lan {
            self.lan_has_changed(Duration::ZERO);
        }
        if self.ports.detach(port) {
            self.learned.forget_port(port);
            self.moves.forget_port(port);
            self.port_has_changed(port);
        }
    }

    /// Installs routes, to forward frames that others stamp with their version. A known version stays as it is.
    ///
    /// # Errors
    /// If they are another node's, or too old.
    pub fn install(&mut self, routes: Routes) -> Result<(), InvalidVersion> {
        if routes.me() != self.me {
            return Err(InvalidVersion::OtherNode(routes.me()));
        }
        self.versions.install(routes)?;
        let versions = &self.versions;
        self.node_flood.retain(|node, _| versions.knows(*node));
        Ok(())
    }

    /// Stamps own frames with `version` from now on. All nodes must have it installed.
    ///
    /// # Errors
    /// If it is not installed here, or a newer one is in use.
    pub fn use_version(&mut self, version: Version) -> Result<(), InvalidVersion> {
        self.versions.use_version(version)?;
        self.changes = Changes::All;
        Ok(())
    }

    /// Does the periodic work, about ten times a second: probes and other due frames are added to `out`, and old entries
    /// are removed.
    pub fn tick(&mut self, now: Duration, out: &mut Vec<Parcel>) {
        let due: Vec<_> = self.ports.due_probes(now).collect();
        out.extend(due.into_iter().map(|port| {
            let probe = Probe { node: self.me, port, nonce: self.probe_nonce(port) };
            Parcel::whole(To::Port(port), probe.encode())
        }));
        self.announce_changes(now, out);
        if now >= self.swept + SWEEP_INTERVAL {
            self.swept = now;
            self.learned.sweep(now);
            self.managed.sweep(self.limits.age, now);
            self.answered.sweep(now);
        }
    }

    /// The frames that announce the managed `mac` to a LAN: one reverse ARP, and one for each of its addresses.
    /// The caller passes them to [`Switch::forward`] as if its port had sent them. Empty if it is not managed.
    #[must_use]
    pub fn announcements(&self, mac: Mac) -> Vec<Vec<u8>> {
        let Some(managed) = self.managed.get(mac) else { return Vec::new() };
        resolution::announcements(managed.station(mac), managed.addresses())
    }

    /// The counters of frames.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }
}
