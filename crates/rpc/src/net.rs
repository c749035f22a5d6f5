//! What the coordinator and the nodes say to each other of the overlay, and nodes among themselves.
//!
//! ```text
//! coordinator                 node          node that dials ══ TLS ══ node that listens
//!  │ Install{topology} ────────▶│             │ Hello{session, port} ──────▶│ opens by the new keys
//!  │◀───────── Installed ───────│             │◀────── Hello{session, port} │
//!  │ (when all have it)         │             │ seals by the new keys ─────▶│ does, too
//!  │ Use{version} ─────────────▶│
//! ```

use api::Purpose;
use moves::HostName;
use overlay::topology::{NodeId, Topology, Version};
use serde::{Deserialize, Serialize};

/// From the coordinator to a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToNode {
    /// Take this topology, make its tunnels, and say when it is installed.
    Install {
        /// The topology.
        topology: Topology,
        /// What its nodes are called.
        hosts: Vec<(NodeId, HostName)>,
    },
    /// Send by this one from now on.
    Use {
        /// Which.
        version: Version,
    },
}

/// From a node to the coordinator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromNode {
    /// It can forward what others send by this topology.
    Installed {
        /// Which.
        version: Version,
    },
}

/// What the coordinator asks of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Question {
    /// How is the overlay?
    State,
    /// Where are MACs? At most [`MOST_MACS`](Self::MOST_MACS) are said.
    Macs,
    /// Who has sent how much to whom? At most [`MOST_FLOWS`](Self::MOST_FLOWS) are said, and the rest as one.
    Matrix {
        /// In how many seconds.
        window_s: u64,
    },
    /// Make a network device, and plug it in.
    Attach {
        /// Its name.
        device: String,
        /// What it is for.
        purpose: Purpose,
    },
    /// Take a network device away.
    Detach {
        /// Its name.
        device: String,
    },
}

impl Question {
    /// How many MACs are said: they fit into a frame.
    pub const MOST_MACS: usize = 10_000;

    /// How many pairs of MACs are said.
    pub const MOST_FLOWS: usize = 4096;
}

/// What the ends of a tunnel's connection say first, the one that has dialled before the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The number by which the sender knows the session.
    pub session: u32,
    /// Where the sender receives datagrams, at the address at which it is known.
    pub port: u16,
}

/// What follows, to show that the connection stands: nothing yet but its keep-alives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Tunnel {}
