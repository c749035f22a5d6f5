//! Hosts and stations in network namespaces of their own: needs the right to make them.
//!
//! ```text
//!   station ─ TAP ─ plane ─ socket ─ host's veth ─┐
//!                                                 bridge, in a namespace of its own
//!   station ─ TAP ─ plane ─ socket ─ host's veth ─┘
//! ```

pub mod ground;

use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use fabric::Epoch;
use overlay::Mac;
use overlay::switch::{self, Entry, PortId, PortKind, Switch};
use overlay::topology::{NodeId, Topology, Version};
use overlay::tunnel::keys::Direction;
use overlay::tunnel::lane::Limits;
use overlay_io::counters::Counter;
use overlay_io::offloads::Offloads;
use overlay_io::peer::{Agreement, Path, PlainAgreement};
use overlay_io::plane::Plane;
use overlay_io::socket::Socket;
use overlay_io::tap::Tap;

pub use ground::{LIMIT, Namespace, exchange};

/// Where nodes receive.
const PORT: u16 = 7474;

/// When keys change, much sooner than they do elsewhere.
const KEY_AGE: Duration = Duration::from_millis(200);

/// A host with one node of the overlay.
pub struct Host {
    pub network: Namespace,
    pub plane: Plane,
    pub node: NodeId,
    pub address: SocketAddr,
    /// The plane's socket, for tests that change its options.
    pub socket: OwnedFd,
}

/// A station behind a port of a node.
pub struct Station {
    pub network: Namespace,
    pub mac: Mac,
    pub address: String,
}

/// Hosts on one network.
pub struct World {
    pub underlay: Namespace,
    pub mtu: usize,
    /// Of each host.
    offloads: Vec<Offloads>,
    pub hosts: Vec<Host>,
}

impl World {
    /// So many hosts on a network with this MTU. Each speaks with each other one.
    pub fn new(hosts: u16, mtu: usize) -> Self {
        Self::with(&vec![Offloads::ALL; hosts.into()], mtu)
    }

    /// The same for hosts with these offloads.
    pub fn with(offloads: &[Offloads], mtu: usize) -> Self {
        let world = Self::apart(offloads, mtu);
        world.for_each_link(|plane, own, other| {
            plane.connect(other.node, other.path(mtu), agreement(own, other.node, 0));
        });
        world
    }

    /// The same, but nothing is sealed.
    pub fn plain(hosts: u16, mtu: usize) -> Self {
        let world = Self::apart(&vec![Offloads::ALL; hosts.into()], mtu);
        world.for_each_link(|plane, own, other| {
            let Agreement { own, theirs, .. } = agreement(own, other.node, 0);
            plane.connect(other.node, other.path(mtu), PlainAgreement { own, theirs, kernel: false });
        });
        world
    }

    /// Hosts that do not speak yet.
    pub fn apart(offloads: &[Offloads], mtu: usize) -> Self {
        let underlay = Namespace::new();
        underlay.ip("link add bridge type bridge");
        underlay.ip(&format!("link set bridge mtu {mtu} up"));
        let numbers = (1..).zip(offloads);
        let hosts = numbers.map(|(number, offloads)| Host::new(&underlay, number, mtu, *offloads)).collect();
        let world = Self { underlay, mtu, offloads: offloads.to_vec(), hosts };
        world.use_topology(|nodes| Topology::mesh(Version(1), nodes).unwrap());
        world
    }

    fn for_each_link(&self, connect: impl Fn(&Plane, NodeId, &Host)) {
        for host in &self.hosts {
            for other in self.hosts.iter().filter(|other| other.node != host.node) {
                connect(&host.plane, host.node, other);
            }
        }
    }

    pub fn use_topology(&self, make: impl Fn(&[NodeId]) -> Topology) {
        let nodes: Vec<NodeId> = self.hosts.iter().map(|host| host.node).collect();
        let topology = make(&nodes);
        for host in &self.hosts {
            let routes = topology.routes(host.node).unwrap();
            host.plane.command(|switch, _, _| switch.install(routes)).unwrap();
        }
        for host in &self.hosts {
            host.plane.command(|switch, _, _| switch.use_version(topology.version())).unwrap();
        }
    }

    /// Makes the first two hosts agree on keys once more, and waits until both seal with them.
    pub fn agree_anew(&self, time: u8) {
        let [a, b, ..] = &self.hosts[..] else { panic!("two hosts are there") };
        let agreed = agreement(b.node, a.node, time);
        let session = agreed.own;
        b.plane.expect(a.node, a.path(self.mtu), agreed);
        a.plane.connect(b.node, b.path(self.mtu), agreement(a.node, b.node, time));
        let begun = Instant::now();
        while b.plane.peer(a.node).unwrap().session != session {
            assert!(begun.elapsed() < LIMIT, "nothing came");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// A station on host `host` that all nodes know. Its TAP has this MTU.
    pub fn station(&self, number: u8, host: usize, mtu: usize) -> Station {
        self.station_at_epoch(Station::new(number), host, mtu, 1)
    }

    /// The same, which has been somewhere else before.
    pub fn station_at_epoch(&self, station: Station, host: usize, mtu: usize, epoch: u64) -> Station {
        let (host, offloads) = (&self.hosts[host], self.offloads[host]);
        let port = PortId(station.mac.0[5].into());
        host.plane.plug(port, PortKind::Instance, station.tap(mtu, offloads)).unwrap();
        self.announce(&station, host.node, port, epoch);
        station
    }

    /// Tells all nodes where `station` is.
    pub fn announce(&self, station: &Station, node: NodeId, port: PortId, epoch: u64) {
        let addresses = vec![station.address.parse().unwrap()];
        let entry = Entry { mac: station.mac, node, port: Some(port), epoch: Epoch(epoch), addresses };
        for host in &self.hosts {
            host.plane.command(|switch, now, parcels| switch.commit(&entry, now, parcels)).unwrap();
        }
    }

    /// Waits until each node knows that datagrams of this length arrive at each other one.
    pub fn await_path(&self, length: usize) {
        let begun = Instant::now();
        let arrives = |host: &Host| {
            let others = self.hosts.iter().filter(|other| other.node != host.node);
            others.map(|other| host.plane.peer(other.node).unwrap().arrives).min().unwrap_or(usize::MAX)
        };
        while self.hosts.iter().any(|host| arrives(host) < length) {
            assert!(begun.elapsed() < LIMIT, "{:?}", self.hosts.iter().map(arrives).collect::<Vec<_>>());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Host {
    fn new(underlay: &Namespace, number: u16, mtu: usize, offloads: Offloads) -> Self {
        let network = Namespace::new();
        let port = format!("host{number}");
        network.connect("eth0", underlay, &port);
        underlay.ip(&format!("link set {port} mtu {mtu} master bridge"));
        network.ip(&format!("link set eth0 mtu {mtu}"));
        network.ip(&format!("addr add 10.1.0.{number}/24 dev eth0"));
        let address = SocketAddr::new(format!("10.1.0.{number}").parse().unwrap(), PORT);
        let mut socket = network.enter(|| Socket::bind(address).unwrap());
        socket.set_offloads(offloads).unwrap();
        let node = NodeId(number);
        let switch = Switch::new(node, number.into(), switch::Limits::default());
        let same = socket.as_fd().try_clone_to_owned().unwrap();
        Self { network, plane: Plane::start(switch, socket, None).unwrap(), node, address, socket: same }
    }
}

impl Host {
    /// How it is reached on a network with this MTU.
    pub fn path(&self, mtu: usize) -> Path {
        Path { address: self.address, longest: mtu - 28, fallback: None }
    }
}

/// The keys on which two nodes have agreed the so many-th time.
pub fn agreement(own: NodeId, theirs: NodeId, time: u8) -> Agreement {
    let session =
        |of: NodeId, with: NodeId| u32::from(time) << 24 | u32::from(of.0) << 16 | u32::from(with.0);
    let (low, high) = (own.min(theirs).0 as u8, own.max(theirs).0 as u8);
    let mut secret = [7; 32];
    [secret[0], secret[1], secret[2]] = [low, high, time];
    let direction = if own < theirs { Direction::FromDialer } else { Direction::FromListener };
    let limits = Limits { age: KEY_AGE, ..Limits::default() };
    Agreement { secret, direction, own: session(own, theirs), theirs: session(theirs, own), limits }
}

impl Station {
    pub fn new(number: u8) -> Self {
        let mac = Mac([2, 0, 0, 0, 0, number]);
        Self { network: Namespace::new(), mac, address: format!("10.2.0.{number}") }
    }

    /// A TAP of its own, up and with its address.
    pub fn tap(&self, mtu: usize, offloads: Offloads) -> Tap {
        let mut tap = self.network.enter(|| Tap::new("eth0")).unwrap();
        tap.set_offloads(offloads.of_taps()).unwrap();
        self.network.ip(&format!("link set eth0 address {} mtu {mtu} up", self.mac));
        self.network.ip(&format!("addr add {}/24 dev eth0", self.address));
        tap
    }

    /// How often its TAP has been given a frame, or a segment.
    pub fn received_frames(&self) -> u64 {
        let devices = self.network.enter(|| std::fs::read_to_string("/proc/thread-self/net/dev").unwrap());
        let numbers = devices.lines().find_map(|line| line.trim().strip_prefix("eth0:")).unwrap();
        numbers.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    pub fn listen(&self, port: u16) -> TcpListener {
        self.network.enter(|| TcpListener::bind((self.address.as_str(), port)).unwrap())
    }

    /// A connection to `other`, and how it ends there.
    pub fn connect(&self, other: &Self, port: u16) -> (TcpStream, TcpStream) {
        let listener = other.listen(port);
        let address = SocketAddr::new(other.address.parse().unwrap(), port);
        let here = self.network.enter(|| TcpStream::connect_timeout(&address, LIMIT).unwrap());
        let (there, _) = listener.accept().unwrap();
        for end in [&here, &there] {
            end.set_read_timeout(Some(LIMIT)).unwrap();
            end.set_write_timeout(Some(LIMIT)).unwrap();
        }
        (here, there)
    }

    /// A socket that waits for no longer than it may.
    pub fn datagrams(&self, port: u16) -> UdpSocket {
        let socket = self.network.enter(|| UdpSocket::bind((self.address.as_str(), port)).unwrap());
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        socket
    }
}

/// Events that never happen among honest nodes.
const MISTAKES: [Counter; 8] = [
    Counter::WrongProtection,
    Counter::WrongAddress,
    Counter::Forged,
    Counter::Malformed,
    Counter::Replayed,
    Counter::Unsplittable,
    Counter::UnknownKey,
    Counter::Exhausted,
];

pub fn assert_no_mistakes(world: &World) {
    for (host, counter) in world.hosts.iter().flat_map(|host| MISTAKES.map(|counter| (host, counter))) {
        assert_eq!(host.plane.counter(counter), 0, "{counter:?} at {}", host.node);
    }
}
