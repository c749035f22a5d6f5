//! Messages about the overlay, between the coordinator and the nodes, and between nodes.
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

/// A message from the coordinator to a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToNode {
    /// Install this topology and its tunnels, and confirm the installation.
    Install {
        /// The id of the overlay. Knowledge about another overlay is void.
        overlay: u64,
        /// The topology.
        topology: Topology,
        /// Links whose datagrams are not encrypted: their ends, the lower number first.
        plain: Vec<(NodeId, NodeId)>,
        /// The names of its nodes.
        hosts: Vec<(NodeId, HostName)>,
    },
    /// Use this topology from now on.
    Use {
        /// Its version.
        version: Version,
    },
    /// The complete list of devices to attach.
    Devices {
        /// All devices except those that are moving.
        devices: Vec<Device>,
        /// Stations that are moving to the node or away from it; their devices stay unchanged.
        moving: Vec<Mac>,
    },
    /// The device that the node has requested cannot be attached.
    NotPlugged {
        /// The reason, as [`reason`](crate::wire::reason) makes it.
        reason: String,
    },
    /// The locations of all stations, in several messages.
    Stations {
        /// At most [`MOST_STATIONS`] of them.
        entries: Vec<Entry>,
        /// Set in the last message: known stations with an earlier epoch that were in none of the messages are gone.
        all_until: Option<Epoch>,
    },
    /// The location of a new station.
    Station(Entry),
    /// A station was removed.
    Withdraw {
        /// Which.
        mac: Mac,
        /// Higher than all its epochs.
        epoch: Epoch,
    },
}

/// The most stations in one message.
pub const MOST_STATIONS: usize = 1000;

/// A network device that a node makes and attaches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// Its name.
    pub name: String,
    /// Its MAC.
    pub mac: Mac,
    /// Its kind.
    pub kind: DeviceKind,
}

impl Device {
    /// The device as users see it, without its state.
    #[must_use]
    pub fn describe(&self) -> NetDevice {
        let (kind, bridge, address, mtu_bytes) = match self.kind.clone() {
            DeviceKind::Station { address, mtu } | DeviceKind::Contained { address, mtu, .. } => {
                (NetDeviceKind::Station, None, address, Some(mtu))
            }
            DeviceKind::Proxy { bridge } => (NetDeviceKind::Proxy, Some(bridge), None, None),
            DeviceKind::Adopted { mtu, .. } | DeviceKind::Redirected { mtu, .. } => {
                (NetDeviceKind::Station, None, None, Some(mtu))
            }
        };
        NetDevice {
            name: self.name.clone(),
            mac: self.mac.to_string(),
            kind,
            bridge,
            netns: self.kind.netns().map(str::to_owned),
            adopted: self.kind.is_adopted(),
            address,
            mtu_bytes,
            failure: None,
            open: false,
            blocked_s: 0,
            loops: 0,
        }
    }
}

/// An instance's network device as users see it, without its state.
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

/// The kind of a device. The coordinator stores it, and must be able to read old values: new
/// variants are added at the end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeviceKind {
    /// A station, with its MAC.
    Station {
        /// Its address with its prefix.
        address: Option<String>,
        /// Its MTU, in bytes.
        mtu: u32,
    },
    /// A proxy, which connects the overlay to the LAN of a bridge.
    Proxy {
        /// The bridge.
        bridge: String,
    },
    /// A station in a network namespace of the host.
    Contained {
        /// The namespace's name, as in `ip netns`.
        netns: String,
        /// Its address with its prefix.
        address: Option<String>,
        /// Its MTU, in bytes.
        mtu: u32,
    },
    /// A station on an existing persistent TAP of the host, which keeps its MAC and its configuration.
    Adopted {
        /// The network namespace of the TAP, as in [`Self::Contained`].
        netns: Option<String>,
        /// Its MTU in bytes when it was attached.
        mtu: u32,
    },
    /// A station behind a TAP that another program has open, such as a virtual machine. Its frames are redirected.
    Redirected {
        /// The network namespace of the TAP, as in [`Self::Contained`].
        netns: Option<String>,
        /// The TAP's MTU in bytes when it was attached.
        mtu: u32,
    },
}

/// A TAP of a host that exists already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FoundTap {
    /// Its MAC.
    pub mac: Mac,
    /// Its MTU, in bytes.
    pub mtu: u32,
    /// Whether another program has it open.
    pub is_open: bool,
}

impl DeviceKind {
    /// Whether the TAP existed before it was attached, and stays when it is detached.
    #[must_use]
    pub fn is_adopted(&self) -> bool {
        matches!(self, Self::Adopted { .. } | Self::Redirected { .. })
    }

    /// The bridge of a proxy.
    #[must_use]
    pub fn bridge(&self) -> Option<&str> {
        match self {
            Self::Proxy { bridge } => Some(bridge),
            _ => None,
        }
    }

    /// The network namespace of the device, if it is not the node's own.
    #[must_use]
    pub fn netns(&self) -> Option<&str> {
        match self {
            Self::Contained { netns, .. } => Some(netns),
            Self::Adopted { netns, .. } | Self::Redirected { netns, .. } => netns.as_deref(),
            Self::Station { .. } | Self::Proxy { .. } => None,
        }
    }
}

/// A message from a node to the coordinator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromNode {
    /// The node has installed the topology and can forward frames with it.
    Installed {
        /// Its version.
        version: Version,
    },
    /// The installation failed; the node tries again.
    NotInstalled {
        /// Its version.
        version: Version,
        /// The reason, as [`reason`](crate::wire::reason) makes it.
        reason: String,
    },
    /// The node requests this station's device, in place of one with its former name. Repeated at each connection.
    Own {
        /// The device's name.
        device: String,
        /// Its address with its prefix.
        address: Option<String>,
        /// Its MTU, in bytes.
        mtu: u32,
        /// Its former name, if any.
        former: Option<String>,
    },
    /// The node has switched off a failing offload.
    SwitchedOff(NetSwitchedOff),
}

/// A question of the coordinator to a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Question {
    /// The state of the overlay.
    State,
    /// The locations of MACs; at most [`MOST_MACS`](Self::MOST_MACS) per answer.
    Macs {
        /// The index of the first one.
        first: usize,
    },
    /// The location of a MAC. Answered like [`Self::Macs`], once per VLAN.
    Find {
        /// The MAC.
        mac: Mac,
    },
    /// The traffic matrix; at most [`MOST_FLOWS`](Self::MOST_FLOWS) flows, and the rest as one.
    Matrix {
        /// The time window in seconds.
        window_s: u64,
    },
    /// The devices in the node's own namespace that can be attached, and are not.
    Available,
    /// Whether a persistent TAP exists.
    Look {
        /// Its name.
        device: String,
        /// Its network namespace; none means the node's own.
        netns: Option<String>,
    },
    /// Whether all earlier messages have been processed.
    UpToDate,
    /// Make this device and attach it.
    Attach(Device),
    /// Make this station's device, but keep it muted until the station has moved here.
    Prepare {
        /// The device.
        device: Device,
        /// The epoch of the station here.
        epoch: Epoch,
    },
    /// Mute a station that moves away, and buffer frames for it.
    Pause {
        /// Its MAC.
        mac: Mac,
    },
    /// A station has a new location.
    Commit(Entry),
    /// Unmute a station that has moved here.
    Resume {
        /// Its MAC.
        mac: Mac,
    },
}

impl Question {
    /// The most MACs per answer; they fit into a frame.
    pub const MOST_MACS: usize = 10_000;

    /// The most pairs of MACs per answer.
    pub const MOST_FLOWS: usize = 4096;

    /// Whether the question only reads the present state.
    #[must_use]
    pub fn is_about_the_present(&self) -> bool {
        matches!(self, Self::State | Self::Macs { .. } | Self::Find { .. } | Self::Matrix { .. })
    }
}

/// The first message on a tunnel's connection, from the dialling end first. It is followed by
/// [`datagrams`](crate::datagrams).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The sender's number of the session.
    pub session: u32,
    /// The port at which the sender receives datagrams, at its known address.
    pub port: u16,
    /// Whether the coordinator allows datagrams without encryption. Both ends must agree.
    pub plain: bool,
    /// Whether the sender's kernel can forward frames on an unencrypted link. Both ends must agree.
    pub kernel: bool,
}
