//! What the command line and the coordinator say to each other of the overlay.

use serde::{Deserialize, Serialize};

/// What the command line changes of the overlay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NetChange {
    /// Lays links anew between all hosts that are connected.
    Lay {
        /// How.
        shape: Shape,
        /// The host to which others are linked that come later, and all of them in a star.
        center: Option<String>,
        /// Whether datagrams are not sealed, since nobody else has access to the ways.
        plain: bool,
    },
    /// Links two hosts.
    AddLink {
        /// The hosts.
        ends: [String; 2],
        /// What the way over the link costs; 1 is the least.
        cost: u32,
        /// Whether datagrams are not sealed, since nobody else has access to the way.
        plain: bool,
    },
    /// Takes the link between two hosts away.
    RemoveLink {
        /// The hosts.
        ends: [String; 2],
    },
    /// Makes a network device on a host, and plugs it in.
    Attach {
        /// The host.
        host: String,
        /// The device's name.
        device: String,
        /// What it is for.
        purpose: Purpose,
        /// Its MAC; one is made up if there is none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mac: Option<String>,
    },
    /// Takes such a device away.
    Detach {
        /// The host.
        host: String,
        /// The device's name.
        device: String,
    },
    /// Moves a station's device to another host, with its MAC and address.
    Move {
        /// The host where it is.
        host: String,
        /// The device's name.
        device: String,
        /// The host where it is to be.
        to: String,
    },
}

/// A station's MTU in bytes, if nothing else is said: what a datagram carries on most paths.
pub const DEFAULT_MTU: u32 = 1400;

/// What a network device is for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Purpose {
    /// It is a station's: the host's own, or an instance's.
    Station {
        /// Its address with its prefix, as `10.88.0.1/24`.
        address: Option<String>,
        /// Its MTU, in bytes; else it is [`DEFAULT_MTU`], or that of a device that was there before.
        mtu: Option<u32>,
        /// The network namespace of the host, by its name, in which the device is to be; else it is in the node's own.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        netns: Option<String>,
    },
    /// It puts the overlay on the LAN of a bridge.
    Proxy {
        /// The bridge.
        bridge: String,
    },
}

/// How links are laid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shape {
    /// All hosts to one.
    Star,
    /// All hosts to all others.
    Mesh,
    /// Hosts as the corners of a hypercube.
    Hypercube,
}

/// The overlay as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Network {
    /// Which topology it is; 0 if none was ever laid.
    pub version: u32,
    /// Hosts that have not yet taken it. Until they have, or are waited for no more, the one before it is in use.
    pub awaited: Vec<String>,
    /// The host to which others are linked that come later.
    pub center: Option<String>,
}

/// What a change of the layout has changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetLaid {
    /// Which topology it has made.
    pub version: u32,
    /// The host to which others are linked that come later.
    pub center: Option<String>,
    /// Hosts that are joined by it.
    pub hosts: usize,
    /// Links in it.
    pub links: usize,
    /// Those of them that were not there before.
    pub links_added: usize,
    /// Those that were there before with another cost, or sealed if they are not now, or the other way round.
    pub links_changed: usize,
    /// Links that are no more.
    pub links_removed: usize,
}

/// The overlay with all hosts and links, as `transhume net status --json` writes it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetStatus {
    /// The whole.
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
    /// Whether its node is connected to the coordinator. One that is may all the same not answer in time.
    pub connected: bool,
    /// How it is, unless it did not answer.
    pub state: Option<NetHostState>,
    /// What is to be plugged in, as the coordinator has noted it, if the host did not answer.
    pub noted: Vec<NetDevice>,
    /// Why it has not installed the topology, if it could not.
    pub failure: Option<String>,
}

/// Two hosts that send to each other directly.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetLink {
    /// The hosts.
    pub ends: [String; 2],
    /// What the way over it costs.
    pub cost: u32,
    /// Whether datagrams are not to be sealed.
    pub plain: bool,
    /// Whether both hosts can send over it.
    pub up: bool,
    /// How datagrams travel over it if it is up: by TLS if one of the hosts sends so.
    pub carrier: Option<Carrier>,
}

/// How datagrams travel between two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Carrier {
    /// One by one.
    Udp,
    /// Over the connection on which keys are agreed, because UDP does not get through.
    Tls,
}

impl Carrier {
    /// How it is called.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::Tls => "tls",
        }
    }
}

/// How the overlay is on a host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetHostState {
    /// The topology by which it sends.
    pub version: Option<u32>,
    /// What is plugged in, in the order of names.
    pub devices: Vec<NetDevice>,
    /// Where it sends directly, in the order of names.
    pub tunnels: Vec<NetTunnel>,
    /// How many MACs are known.
    pub macs: usize,
    /// What is left to its kernel, as was found when its node began.
    pub offloads: Vec<String>,
    /// What of it was found to misbehave since then.
    pub switched_off: Vec<NetSwitchedOff>,
    /// How many frames and datagrams went nowhere, by reason, where there are any; each reason once, in the order of names.
    pub dropped: Vec<(String, u64)>,
}

/// An offload that is used no more on a link, at a device, or, without either, on the whole host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetSwitchedOff {
    /// Which.
    pub offload: String,
    /// The host at the other end of the link.
    pub link: Option<String>,
    /// The device's name.
    pub device: Option<String>,
    /// Why.
    pub reason: String,
}

impl NetSwitchedOff {
    /// Where it is used no more, and why.
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

/// A network device that is plugged in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetDevice {
    /// Its name.
    pub name: String,
    /// Its MAC.
    pub mac: String,
    /// What it is for.
    pub kind: NetDeviceKind,
    /// The bridge of the LAN: a proxy's.
    pub bridge: Option<String>,
    /// The network namespace of the host in which it is, by its name, if that is not the node's own.
    pub netns: Option<String>,
    /// Whether it is a TAP that was there before, and stays when it is plugged out.
    pub adopted: bool,
    /// Its address with its prefix, if it was plugged in with one.
    pub address: Option<String>,
    /// Its MTU, in bytes. That of a proxy is its bridge's, and known when it is made.
    pub mtu_bytes: Option<u32>,
    /// Why it cannot be made at present, if that is so; it is tried again.
    pub failure: Option<String>,
    /// Whether it carries frames: not while its station moves.
    pub open: bool,
    /// For how many seconds it stays blocked because it is on a loop; 0 if it is not.
    pub blocked_s: u64,
    /// How many loops were found there.
    pub loops: u64,
}

/// What a network device is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NetDeviceKind {
    /// A station: the host itself, or what uses the device there.
    Station,
    /// The overlay on the LAN of a bridge.
    Proxy,
    /// An instance's: it is where the instance is.
    Instance,
}

impl NetDeviceKind {
    /// How it is called.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Station => "station",
            Self::Proxy => "proxy",
            Self::Instance => "instance",
        }
    }
}

/// A host to which another one sends directly.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetTunnel {
    /// The other host.
    pub host: String,
    /// Where its datagrams come from, as `address:port`; none before it has been reached.
    pub address: Option<String>,
    /// Whether the connection stands on which keys are agreed, or datagrams get there and back without.
    pub connected: bool,
    /// Whether datagrams are not sealed.
    pub plain: bool,
    /// How datagrams are sent there; none before it has been reached.
    pub carrier: Option<Carrier>,
    /// Whether the kernels of both hosts carry what one station sends to another.
    pub by_kernel: bool,
    /// Frames, and segments of several, that this host's kernel has sent there. They are no datagrams, as counted below.
    pub kernel_frames: u64,
    /// Bytes of a datagram that arrives there, as far as is known.
    pub datagram_bytes: usize,
    /// Bits per second that have come there at the best in the last minute: what the way had to give at that moment.
    pub carries_bits_per_second: Option<u64>,
    /// How long a datagram and its answer take of late, in microseconds.
    pub round_trip_us: Option<u64>,
    /// Datagrams that were sent there, as far as the other host has reported.
    pub sent: u64,
    /// Those of them that have not arrived.
    pub lost: u64,
}

/// What one MAC has sent to another, as counted where it came in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetFlow {
    /// Who has sent, and to whom; none for the sum of all that are not listed.
    pub macs: Option<[String; 2]>,
    /// Bytes of frames.
    pub bytes: u64,
    /// Frames, as they would be on a wire.
    pub frames: u64,
    /// Bytes in a second, on the average.
    pub bytes_per_second: u64,
    /// Frames in a second, on the average.
    pub frames_per_second: u64,
}

/// Where a MAC is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetMac {
    /// The MAC.
    pub mac: String,
    /// The host.
    pub host: String,
    /// The device, if it is this host's.
    pub device: Option<String>,
    /// Whether the coordinator says so; else it was seen there.
    pub managed: bool,
    /// Its VLAN; 0 without one.
    pub vlan: u16,
}
