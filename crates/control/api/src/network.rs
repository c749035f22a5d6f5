//! The part of the protocol that is about the overlay.

use serde::{Deserialize, Serialize};

/// A change of the overlay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NetChange {
    /// Lays out a new topology over all connected hosts.
    Lay {
        /// Its shape.
        shape: Shape,
        /// The center, to which later hosts are linked, and all hosts of a star.
        center: Option<String>,
        /// Whether datagrams are not encrypted, because the network between the hosts is trusted.
        plain: bool,
    },
    /// Links two hosts.
    AddLink {
        /// The hosts.
        ends: [String; 2],
        /// The link's cost; at least 1.
        cost: u32,
        /// Whether datagrams are not encrypted, because the network between the hosts is trusted.
        plain: bool,
    },
    /// Removes the link between two hosts.
    RemoveLink {
        /// The hosts.
        ends: [String; 2],
    },
    /// Attaches a network device of a host.
    Attach {
        /// The host.
        host: String,
        /// The device's name.
        device: String,
        /// Its purpose.
        purpose: Purpose,
        /// Its MAC; generated if there is none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mac: Option<String>,
    },
    /// Detaches a device.
    Detach {
        /// The host.
        host: String,
        /// The device's name.
        device: String,
    },
    /// Moves a station's device to another host, with its MAC and address.
    Move {
        /// The source.
        host: String,
        /// The device's name.
        device: String,
        /// The destination.
        to: String,
    },
}

/// The default MTU of a station in bytes: the payload of a datagram on most paths.
pub const DEFAULT_MTU: u32 = 1400;

/// The purpose of a network device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Purpose {
    /// A station: the host itself, or an instance.
    Station {
        /// Its address with its prefix, as `10.88.0.1/24`.
        address: Option<String>,
        /// Its MTU in bytes; the default is [`DEFAULT_MTU`], or the MTU of an adopted device.
        mtu: Option<u32>,
        /// The network namespace for the device; the default is the node's own.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        netns: Option<String>,
    },
    /// A proxy, which connects the overlay to the LAN of a bridge.
    Proxy {
        /// The bridge.
        bridge: String,
    },
}

/// The shape of a topology.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shape {
    /// All hosts linked to one.
    Star,
    /// All hosts linked to all others.
    Mesh,
    /// Hosts linked as the corners of a hypercube.
    Hypercube,
}

/// The overlay as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Network {
    /// The version of the topology; 0 if none was ever laid out.
    pub version: u32,
    /// Hosts that have not yet installed it. Until they have, or a time limit has passed, the previous topology is in use.
    pub awaited: Vec<String>,
    /// The center, to which later hosts are linked.
    pub center: Option<String>,
}

/// The effect of a change of the layout.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetLaid {
    /// The version of the new topology.
    pub version: u32,
    /// The center, to which later hosts are linked.
    pub center: Option<String>,
    /// Number of hosts.
    pub hosts: usize,
    /// Number of links.
    pub links: usize,
    /// Number of new links.
    pub links_added: usize,
    /// Number of links with another cost or another setting of encryption.
    pub links_changed: usize,
    /// Number of removed links.
    pub links_removed: usize,
}

/// The overlay with all hosts and links, as `transhume net status --json` writes it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetStatus {
    /// The overlay as a whole.
    #[serde(flatten)]
    pub network: Network,
    /// In the order of names.
    pub hosts: Vec<NetHost>,
    /// In the order of names.
    pub links: Vec<NetLink>,
}

/// A host of the overlay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetHost {
    /// Its name.
    pub name: String,
    /// Whether its node is connected to the coordinator. A connected node may still fail to answer in time.
    pub connected: bool,
    /// Its state, if it has answered.
    pub state: Option<NetHostState>,
    /// Its devices as the coordinator has stored them, if it did not answer.
    pub noted: Vec<NetDevice>,
    /// Why it has not installed the topology, if it could not.
    pub failure: Option<String>,
}

/// Two hosts that send to each other directly.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetLink {
    /// The hosts.
    pub ends: [String; 2],
    /// The link's cost.
    pub cost: u32,
    /// Whether datagrams are not to be encrypted.
    pub plain: bool,
    /// Whether both hosts can send over it.
    pub up: bool,
    /// The carrier of datagrams, if the link is up: TLS if one of the hosts uses it.
    pub carrier: Option<Carrier>,
}

/// How datagrams travel between two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Carrier {
    /// As UDP datagrams.
    Udp,
    /// Over the TLS connection on which keys are agreed, because UDP is blocked.
    Tls,
}

impl Carrier {
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::Tls => "tls",
        }
    }
}

/// The state of the overlay on a host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetHostState {
    /// The topology in use.
    pub version: Option<u32>,
    /// The attached devices, in the order of names.
    pub devices: Vec<NetDevice>,
    /// The tunnels, in the order of names.
    pub tunnels: Vec<NetTunnel>,
    /// Number of known MACs.
    pub macs: usize,
    /// Offloads that the node found usable at its start.
    pub offloads: Vec<String>,
    /// Offloads that were switched off since then.
    pub switched_off: Vec<NetSwitchedOff>,
    /// Dropped frames and datagrams by reason; only nonzero counters, in the order of names.
    pub dropped: Vec<(String, u64)>,
}

/// An offload that was switched off on a link, at a device, or, without either, on the whole host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetSwitchedOff {
    /// The offload.
    pub offload: String,
    /// The host at the other end of the link.
    pub link: Option<String>,
    /// The device's name.
    pub device: Option<String>,
    /// Why.
    pub reason: String,
}

impl NetSwitchedOff {
    /// The place and the reason, as text.
    #[must_use]
    pub fn in_words(&self) -> String {
        let Self { offload, link, device, reason } = self;
        let place = match (link, device) {
            (Some(link), _) => format!(" on the link to {link}"),
            (_, Some(device)) => format!(" at {device}"),
            (None, None) => String::new(),
        };
        format!("{offload}{place}: {reason}")
    }
}

/// An attached network device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetDevice {
    /// Its name.
    pub name: String,
    /// Its MAC.
    pub mac: String,
    /// Its purpose.
    pub kind: NetDeviceKind,
    /// The bridge of a proxy's LAN.
    pub bridge: Option<String>,
    /// The network namespace of the device, if it is not the node's own.
    pub netns: Option<String>,
    /// Whether it is an adopted TAP, which remains when it is detached.
    pub adopted: bool,
    /// Its address with its prefix, if it was attached with one.
    pub address: Option<String>,
    /// Its MTU in bytes. A proxy has its bridge's MTU, which is known once the device exists.
    pub mtu_bytes: Option<u32>,
    /// Why it cannot be made at present; the node tries again.
    pub failure: Option<String>,
    /// Whether it carries frames; false while its station moves.
    pub open: bool,
    /// For how many seconds it remains blocked because of a loop; 0 if it is not blocked.
    pub blocked_s: u64,
    /// Number of detected loops.
    pub loops: u64,
}

/// A network device of a host that can be attached, and is not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetAvailable {
    /// Its name.
    pub name: String,
    /// How it is attached.
    pub kind: NetAvailableKind,
    /// Its MAC.
    pub mac: String,
    /// Its MTU in bytes.
    pub mtu_bytes: u32,
}

/// How a network device is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NetAvailableKind {
    /// A TAP, as a station.
    Tap,
    /// A TAP that another program has open, such as an emulator, as a station.
    OpenTap,
    /// A bridge, whose LAN a proxy joins.
    Bridge,
}

/// The kind of a network device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NetDeviceKind {
    /// A station.
    Station,
    /// A proxy.
    Proxy,
    /// The device of an instance, which moves with it.
    Instance,
}

impl NetDeviceKind {
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Station => "station",
            Self::Proxy => "proxy",
            Self::Instance => "instance",
        }
    }
}

/// A tunnel to another host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetTunnel {
    /// The other host.
    pub host: String,
    /// The source address of its datagrams, as `address:port`; none before it was reached.
    pub address: Option<String>,
    /// Whether the connection for the key agreement is up, or datagrams travel both ways without it.
    pub connected: bool,
    /// Whether datagrams are not encrypted.
    pub plain: bool,
    /// The carrier of datagrams; none before the host was reached.
    pub carrier: Option<Carrier>,
    /// Whether the kernels of both hosts forward frames between stations.
    pub by_kernel: bool,
    /// Frames, and segments of several frames, that this host's kernel has forwarded; the datagram counters do not include them.
    pub kernel_frames: u64,
    /// The known path MTU, as bytes of a datagram.
    pub datagram_bytes: usize,
    /// The highest rate of the last minute, in bits per second.
    pub carries_bits_per_second: Option<u64>,
    /// The recent round trip time of a datagram, in microseconds.
    pub round_trip_us: Option<u64>,
    /// Datagrams sent, as far as the other host has reported.
    pub sent: u64,
    /// Datagrams lost.
    pub lost: u64,
}

/// A flow from one MAC to another, counted on the ingress host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetFlow {
    /// The sender's and the receiver's MAC; none for the sum of all flows that are not listed.
    pub macs: Option<[String; 2]>,
    /// Bytes of frames.
    pub bytes: u64,
    /// Frames, as they would be on a wire.
    pub frames: u64,
    /// Bytes per second, on average.
    pub bytes_per_second: u64,
    /// Frames per second, on average.
    pub frames_per_second: u64,
}

/// The location of a MAC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetMac {
    /// The MAC.
    pub mac: String,
    /// The host.
    pub host: String,
    /// The device, if the MAC is on this host.
    pub device: Option<String>,
    /// Whether the coordinator manages it; otherwise the switch has learned it.
    pub managed: bool,
    /// Its VLAN; 0 without one.
    pub vlan: u16,
}
