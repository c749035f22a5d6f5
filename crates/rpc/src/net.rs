//! What the coordinator and the nodes say to each other of the overlay, and nodes among themselves.
//!
//! ```text
//! coordinator                 node          node that dials ══ TLS ══ node that listens
//!  │ Install{topology} ────────▶│             │ Hello{session, port} ──────▶│ opens by the new keys
//!  │◀───────── Installed ───────│             │◀────── Hello{session, port} │
//!  │ (when all have it)         │             │ seals by the new keys ─────▶│ does, too
//!  │ Use{version} ─────────────▶│
//!  │ Devices, Stations ────────▶│
//!  │◀─────────── Own{device} ───│
//! ```

use api::{NetDevice, NetDeviceKind, NetSwitchedOff};
use fabric::Epoch;
use instance::{InstanceName, Network};
use moves::HostName;
use overlay::Mac;
use overlay::switch::Entry;
use overlay::topology::{NodeId, Topology, Version};
use serde::{Deserialize, Serialize};

/// From the coordinator to a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToNode {
    /// Take this topology, make its tunnels, and say when it is installed.
    Install {
        /// Which overlay it is of: a number that no other one has. What is known of another one is void.
        overlay: u64,
        /// The topology.
        topology: Topology,
        /// Links on which datagrams are not sealed: their ends, the lower number first.
        plain: Vec<(NodeId, NodeId)>,
        /// What its nodes are called.
        hosts: Vec<(NodeId, HostName)>,
    },
    /// Send by this one from now on.
    Use {
        /// Which.
        version: Version,
    },
    /// What is to be plugged in, and nothing else.
    Devices {
        /// All of it, but for what moves.
        devices: Vec<Device>,
        /// Stations that are moving to the node or away from it: they stay as they are.
        moving: Vec<Mac>,
    },
    /// The device that the node has asked for cannot be plugged in.
    NotPlugged {
        /// Why, as [`reason`](crate::wire::reason) makes it.
        reason: String,
    },
    /// Where all stations are, in parts.
    Stations {
        /// At most [`MOST_STATIONS`] of them.
        entries: Vec<Entry>,
        /// Said with the last part: what a node knows with an earlier epoch, and was in no part, is gone.
        all_until: Option<Epoch>,
    },
    /// Where a new station is.
    Station(Entry),
    /// A station is no more.
    Withdraw {
        /// Which.
        mac: Mac,
        /// Higher than all that it had.
        epoch: Epoch,
    },
}

/// The most stations in one message.
pub const MOST_STATIONS: usize = 1000;

/// A network device that a node makes and plugs in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// Its name.
    pub name: String,
    /// Its MAC.
    pub mac: Mac,
    /// What it is for.
    pub kind: DeviceKind,
}

impl Device {
    /// The same for people, as long as nothing is known of how it is.
    #[must_use]
    pub fn describe(&self) -> NetDevice {
        let (kind, bridge, address, mtu_bytes) = match self.kind.clone() {
            DeviceKind::Station { address, mtu } | DeviceKind::Contained { address, mtu, .. } => {
                (NetDeviceKind::Station, None, address, Some(mtu))
            }
            DeviceKind::Proxy { bridge } => (NetDeviceKind::Proxy, Some(bridge), None, None),
            DeviceKind::Adopted { mtu, .. } => (NetDeviceKind::Station, None, None, Some(mtu)),
        };
        NetDevice {
            name: self.name.clone(),
            mac: self.mac.to_string(),
            kind,
            bridge,
            netns: self.kind.netns().map(str::to_owned),
            adopted: matches!(self.kind, DeviceKind::Adopted { .. }),
            address,
            mtu_bytes,
            failure: None,
            open: false,
            blocked_s: 0,
            loops: 0,
        }
    }
}

/// An instance's network device for people, as long as nothing is known of how it is.
#[must_use]
pub fn describe_nic(name: &InstanceName, network: &Network) -> NetDevice {
    NetDevice {
        name: name.to_string(),
        mac: Mac(network.mac).to_string(),
        kind: NetDeviceKind::Instance,
        bridge: None,
        netns: None,
        adopted: false,
        address: Some(format!("{}/{}", network.address, network.prefix)),
        mtu_bytes: Some(network.mtu),
        failure: None,
        open: false,
        blocked_s: 0,
        loops: 0,
    }
}

/// What a device is for. The coordinator notes it so in its store, in which what was noted before has to stay readable: what is
/// new comes last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeviceKind {
    /// A station's: its MAC is one.
    Station {
        /// Its address with its prefix.
        address: Option<String>,
        /// Its MTU, in bytes.
        mtu: u32,
    },
    /// It puts the overlay on the LAN of a bridge.
    Proxy {
        /// The bridge.
        bridge: String,
    },
    /// A station's, in a network namespace of the host.
    Contained {
        /// The namespace's name, as `ip netns` knows it.
        netns: String,
        /// Its address with its prefix.
        address: Option<String>,
        /// Its MTU, in bytes.
        mtu: u32,
    },
    /// A station's: a persistent TAP of the host, which has its MAC already, and keeps what else it has.
    Adopted {
        /// The network namespace in which it is, as [`Self::Contained`] has it.
        netns: Option<String>,
        /// The MTU, in bytes, that it had when it was plugged in.
        mtu: u32,
    },
}

/// A persistent TAP of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FoundTap {
    /// Its MAC.
    pub mac: Mac,
    /// Its MTU, in bytes.
    pub mtu: u32,
}

impl DeviceKind {
    /// The name of the network namespace in which the device is, if that is not the node's own.
    #[must_use]
    pub fn netns(&self) -> Option<&str> {
        match self {
            Self::Contained { netns, .. } => Some(netns),
            Self::Adopted { netns, .. } => netns.as_deref(),
            Self::Station { .. } | Self::Proxy { .. } => None,
        }
    }
}

/// From a node to the coordinator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromNode {
    /// It can forward what others send by this topology.
    Installed {
        /// Which.
        version: Version,
    },
    /// It cannot, and tries again.
    NotInstalled {
        /// Which.
        version: Version,
        /// Why, as [`reason`](crate::wire::reason) makes it.
        reason: String,
    },
    /// It is to have this station's device, and no longer one by its former name. Said each time that it is connected.
    Own {
        /// The device's name.
        device: String,
        /// Its address with its prefix.
        address: Option<String>,
        /// Its MTU, in bytes.
        mtu: u32,
        /// What it was called before, if it was.
        former: Option<String>,
    },
    /// It uses an offload no more, which misbehaves.
    SwitchedOff(NetSwitchedOff),
}

/// What the coordinator asks of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Question {
    /// How is the overlay?
    State,
    /// Where are MACs? At most [`MOST_MACS`](Self::MOST_MACS) are said.
    Macs {
        /// The number of the first that is to be said.
        first: usize,
    },
    /// Where is this MAC? It is said as an answer to [`Self::Macs`], once for each VLAN.
    Find {
        /// Which.
        mac: Mac,
    },
    /// Who has sent how much to whom? At most [`MOST_FLOWS`](Self::MOST_FLOWS) are said, and the rest as one.
    Matrix {
        /// In how many seconds.
        window_s: u64,
    },
    /// Is there a persistent TAP already?
    Look {
        /// By this name.
        device: String,
        /// In the network namespace of this name, or in the node's own.
        netns: Option<String>,
    },
    /// Is all done that was said before?
    UpToDate,
    /// Make this device, and plug it in.
    Attach(Device),
    /// Make this station's device, which is to run only when the station has moved here.
    Prepare {
        /// The device.
        device: Device,
        /// The epoch that the station is to have here.
        epoch: Epoch,
    },
    /// A station that moves away says nothing more, and what comes for it is kept.
    Pause {
        /// Which.
        mac: Mac,
    },
    /// A station has another place from now on.
    Commit(Entry),
    /// A station that has moved here runs from now on.
    Resume {
        /// Which.
        mac: Mac,
    },
}

impl Question {
    /// How many MACs are said: they fit into a frame.
    pub const MOST_MACS: usize = 10_000;

    /// How many pairs of MACs are said.
    pub const MOST_FLOWS: usize = 4096;

    /// Whether it asks how things are, and no more.
    #[must_use]
    pub fn is_about_the_present(&self) -> bool {
        matches!(self, Self::State | Self::Macs { .. } | Self::Find { .. } | Self::Matrix { .. })
    }
}

/// What the ends of a tunnel's connection say first, the one that has dialled before the other. What follows are
/// [`datagrams`](crate::datagrams).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The number by which the sender knows the session.
    pub session: u32,
    /// Where the sender receives datagrams, at the address at which it is known.
    pub port: u16,
    /// Whether the coordinator says that datagrams need not be sealed. They are unless both ends say so.
    pub plain: bool,
    /// Whether the sender's kernel can carry frames on a link that is not sealed. It does if both ends say so.
    pub kernel: bool,
}
