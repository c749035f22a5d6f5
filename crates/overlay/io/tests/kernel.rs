//! Frames that the kernel carries between two nodes, and frames that it leaves to them. Hosts as in `world`, but
//! stations are the hosts themselves: needs the right to make network namespaces.

#[path = "world/ground.rs"]
mod ground;

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use fabric::Epoch;
use ground::{LIMIT, Namespace, exchange, pattern, read};
use overlay::Mac;
use overlay::matrix::Traffic;
use overlay::switch::{self, Entry, PortId, PortKind, Reason, Switch};
use overlay::topology::{NodeId, Topology, Version};
use overlay_io::counters::Counter;
use overlay_io::kernel::{self, Kernel};
use overlay_io::offloads::Offloads;
use overlay_io::peer::{Path, PlainAgreement};
use overlay_io::plane::Plane;
use overlay_io::socket::Socket;
use overlay_io::tap::Tap;
use rustix::net::sockopt;

const MTU: usize = 1500;
const PORT: PortId = PortId(1);

/// A host with one station, which is itself.
struct Host {
    network: Namespace,
    plane: Plane,
    node: NodeId,
}

struct World {
    _underlay: Namespace,
    hosts: Vec<Host>,
}

impl World {
    /// So many hosts, each linked to each other one by links that are not sealed.
    fn new(hosts: u16) -> Self {
        let underlay = Namespace::new();
        underlay.ip("link add bridge type bridge");
        underlay.ip("link set bridge up");
        let hosts: Vec<_> = (1..=hosts).map(|number| Host::new(&underlay, number)).collect();
        let nodes: Vec<_> = hosts.iter().map(|host| host.node).collect();
        let world = Self { _underlay: underlay, hosts };
        world.use_topology(&Topology::mesh(Version(1), &nodes).unwrap());
        for host in &world.hosts {
            for other in world.hosts.iter().filter(|other| other.node != host.node) {
                let (own, theirs) = (session(host.node, other.node), session(other.node, host.node));
                let path = Path { address: underlay_address(other.node), longest: MTU - 28, fallback: None };
                host.plane.connect(other.node, path, PlainAgreement { own, theirs, kernel: true });
            }
            world.tell(host.node, host.node, PORT);
        }
        world
    }

    fn use_topology(&self, topology: &Topology) {
        for host in &self.hosts {
            let routes = topology.routes(host.node).unwrap();
            host.plane.command(|switch, _, _| switch.install(routes)).unwrap();
            host.plane.command(|switch, _, _| switch.use_version(topology.version())).unwrap();
        }
    }

    /// Tells all nodes that station `of` is on `node`, and which port that has for it.
    fn tell(&self, of: NodeId, node: NodeId, port: PortId) {
        let addresses = Vec::new();
        let entry = Entry { mac: mac(of), node, port: Some(port), epoch: Epoch(1), addresses };
        for host in &self.hosts {
            host.plane.command(|switch, now, parcels| switch.commit(&entry, now, parcels)).unwrap();
        }
    }

    fn pair(&self) -> (&Host, &Host) {
        (&self.hosts[0], &self.hosts[1])
    }

    /// Waits until the kernel carries frames both ways between the first two, or does not.
    fn await_kernel(&self, carries: bool) {
        let (a, b) = self.pair();
        let is_so = |from: &Host, to: &Host| {
            let before = from.sent_by_kernel(to);
            // Whether nodes know it is one thing, whether it is done another.
            let is_known = from.plane.peer(to.node).unwrap().by_kernel == carries;
            is_known && Datagrams::new(from, to).pass() && (from.sent_by_kernel(to) > before) == carries
        };
        eventually("the kernel carries frames", || is_so(a, b) && is_so(b, a));
    }
}

impl Host {
    fn new(underlay: &Namespace, number: u16) -> Self {
        let (network, node) = (Namespace::new(), NodeId(number));
        network.connect("eth0", underlay, &format!("host{number}"));
        underlay.ip(&format!("link set host{number} master bridge"));
        network.ip(&format!("addr add {}/24 dev eth0", underlay_address(node).ip()));
        let switch = Switch::new(node, number.into(), switch::Limits::default());
        let plane = network.enter(|| {
            let kernel = Kernel::new(Offloads::ALL.of_taps()).expect("clang is there, and a kernel that can");
            Plane::start(switch, Socket::bind(underlay_address(node)).unwrap(), Some(kernel)).unwrap()
        });
        let host = Self { network, plane, node };
        host.plug("st0", PORT, host.node, MTU - 100);
        host.network.ip(&format!("addr add {}/24 dev st0", address(host.node)));
        host
    }

    /// Gives station `of` a device.
    fn plug(&self, name: &str, port: PortId, of: NodeId, mtu: usize) {
        let mut tap = self.network.enter(|| Tap::new(name)).unwrap();
        tap.set_offloads(Offloads::ALL.of_taps()).unwrap();
        self.network.ip(&format!("link set {name} address {} mtu {mtu} up", mac(of)));
        self.network.enter(|| self.plane.plug(port, PortKind::Instance, tap)).unwrap();
    }

    /// Frames that the kernel has sent to `other`.
    fn sent_by_kernel(&self, other: &Self) -> u64 {
        self.plane.peer(other.node).unwrap().kernel_frames
    }

    fn connect(&self, other: &Self, port: u16) -> (TcpStream, TcpStream) {
        let there = SocketAddr::new(address(other.node).parse().unwrap(), port);
        let listener = other.network.enter(|| TcpListener::bind(there).unwrap());
        let here = self.network.enter(|| TcpStream::connect_timeout(&there, LIMIT).unwrap());
        let (there, _) = listener.accept().unwrap();
        for end in [&here, &there] {
            end.set_read_timeout(Some(LIMIT)).unwrap();
            end.set_write_timeout(Some(LIMIT)).unwrap();
        }
        (here, there)
    }

    /// All frames that its station sends and receives.
    fn frames(&self) -> OwnedFd {
        const ALL: u16 = (libc::ETH_P_ALL as u16).to_be();
        self.network.enter(|| {
            // SAFETY: the call takes no memory, and the descriptor is new.
            let socket = unsafe {
                let socket = libc::socket(libc::AF_PACKET, libc::SOCK_RAW, ALL.into());
                assert!(socket != -1);
                OwnedFd::from_raw_fd(socket)
            };
            // SAFETY: zeroes are a value of the structure.
            let mut place: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
            (place.sll_family, place.sll_protocol) = (libc::AF_PACKET as u16, ALL);
            place.sll_ifindex = rustix::net::netdevice::name_to_index(&socket, "st0").unwrap().cast_signed();
            let length = size_of_val(&place) as libc::socklen_t;
            // SAFETY: the address is live, and of the length that is given.
            let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const place).cast(), length) };
            assert_eq!(bound, 0);
            sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(Duration::from_secs(1)))
                .unwrap();
            socket
        })
    }

    fn datagrams(&self, port: u16) -> UdpSocket {
        let here = SocketAddr::new(address(self.node).parse().unwrap(), port);
        let socket = self.network.enter(|| UdpSocket::bind(here).unwrap());
        socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        socket
    }
}

/// The number by which a node knows its session with another.
fn session(of: NodeId, with: NodeId) -> u32 {
    u32::from(of.0) << 8 | u32::from(with.0)
}

fn mac(of: NodeId) -> Mac {
    Mac([2, 0, 0, 0, 0, of.0 as u8])
}

fn address(of: NodeId) -> String {
    format!("10.2.0.{of}")
}

fn underlay_address(of: NodeId) -> SocketAddr {
    format!("10.1.0.{of}:7474").parse().unwrap()
}

fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < LIMIT, "timed out waiting for: {what}");
        sleep(Duration::from_millis(10));
    }
}

/// A socket that has sent something to another one, which waits for it.
struct Datagrams {
    from: UdpSocket,
    to: UdpSocket,
}

impl Datagrams {
    fn new(from: &Host, to: &Host) -> Self {
        let (from, to) = (from.datagrams(7700), to.datagrams(7700));
        from.connect(to.local_addr().unwrap()).unwrap();
        Self { from, to }
    }

    fn send(&self, length: usize) {
        // A frame that the device refuses, as it may be down, is lost.
        let _ = self.from.send(&vec![7; length]);
    }

    /// The lengths of the frames that come until none does for a while.
    fn received(&self) -> Vec<usize> {
        let mut buffer = vec![0; 65_536];
        std::iter::from_fn(|| self.to.recv(&mut buffer).ok()).collect()
    }

    /// True if one arrives. Both ends learn each other's MAC with it.
    fn pass(&self) -> bool {
        self.send(100);
        !self.received().is_empty()
    }
}

#[test]
fn frames_between_stations_pass_in_the_kernel() {
    let world = World::new(2);
    let (a, b) = world.pair();
    world.await_kernel(true);
    let before = [a.sent_by_kernel(b), b.sent_by_kernel(a)];
    exchange(&a.connect(b, 7600), 8 << 20);
    let after = [a.sent_by_kernel(b), b.sent_by_kernel(a)];
    assert!(after[0] > before[0] + 100 && after[1] > before[1] + 100, "{before:?} {after:?}");
    let datagrams = Datagrams::new(a, b);
    assert!(datagrams.pass());
    let before = a.sent_by_kernel(b);
    (0..50).for_each(|_| datagrams.send(1000));
    assert_eq!(datagrams.received(), [1000; 50]);
    assert_eq!(a.sent_by_kernel(b), before + 50);
}

#[test]
fn the_matrix_counts_frames_carried_by_the_kernel() {
    const LENGTH: u64 = 1000;
    let world = World::new(2);
    let (a, b) = world.pair();
    world.await_kernel(true);
    let datagrams = Datagrams::new(a, b);
    assert!(datagrams.pass());
    (0..100).for_each(|_| datagrams.send(LENGTH as usize));
    let ends = exchange_one_way(a, b, 4 << 20);
    // All that was sent is in the slots of the next minute.
    let volume = |host: &Host| {
        let flows = host.plane.matrix(Duration::from_secs(60)).into_iter();
        let wanted = |traffic: &Traffic| {
            traffic.flow.is_some_and(|flow| flow.from == mac(a.node) && flow.to == mac(b.node))
        };
        flows
            .filter(wanted)
            .fold((0, 0), |sum, traffic| (sum.0 + traffic.volume.bytes, sum.1 + traffic.volume.frames))
    };
    let headers = 14 + 20 + 32;
    let segments = (4 << 20) / (1400 - 20 - 32);
    let least = (100 * (LENGTH + 42) + (4 << 20) + segments * headers, 100 + segments);
    eventually("all is in the matrix", || volume(a).0 >= least.0);
    let (bytes, frames) = volume(a);
    assert!(
        bytes < least.0 * 11 / 10 && (least.1..least.1 * 11 / 10).contains(&frames),
        "{bytes} {frames} {least:?}"
    );
    assert_eq!(volume(b), (0, 0), "it is counted where it comes in");
    drop(ends);
}

/// Sends so many bytes from one host to the other.
fn exchange_one_way(from: &Host, to: &Host, length: usize) -> (TcpStream, TcpStream) {
    let (mut here, there) = from.connect(to, 7601);
    let sent = pattern(length, 1);
    std::thread::scope(|scope| {
        scope.spawn(|| here.write_all(&sent).unwrap());
        assert!(read(&there, length) == sent, "a byte is wrong");
    });
    (here, there)
}

#[test]
fn the_plane_takes_over_when_kernel_frames_are_lost() {
    let world = World::new(2);
    let (a, b) = world.pair();
    world.await_kernel(true);
    let ends = a.connect(b, 7600);
    exchange(&ends, 1 << 20);
    b.network.run("nft", "add table inet blocked");
    let blocked = "add chain inet blocked input { type filter hook input priority 0; }";
    b.network.run("nft", blocked);
    b.network.run("nft", &format!("add rule inet blocked input udp dport {} drop", kernel::PORT));
    let begun = Instant::now();
    exchange(&ends, 1 << 20);
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    world.await_kernel(false);
    let before = a.sent_by_kernel(b);
    exchange(&ends, 1 << 20);
    assert_eq!(a.sent_by_kernel(b), before);
    b.network.run("nft", "delete table inet blocked");
    world.await_kernel(true);
    exchange(&ends, 1 << 20);
    assert!(a.sent_by_kernel(b) > before);
}

#[test]
fn strangers_are_dropped() {
    let world = World::new(3);
    let [a, b, c] = &world.hosts[..] else { panic!("three hosts") };
    world.await_kernel(true);
    let to = b.datagrams(7700);
    let count = || {
        let mut buffer = [0; 100];
        std::iter::from_fn(|| to.recv(&mut buffer).ok()).count()
    };
    let strangers = || {
        // The programs' counts are read at the next call.
        let _ = b.plane.matrix(Duration::from_secs(5));
        b.plane.counter(Counter::Stranger)
    };
    let vni = session(b.node, a.node);
    forge(a, b, vni);
    assert_eq!((count(), strangers()), (1, 0), "frames of the link's node are accepted");
    forge(c, b, vni);
    assert_eq!((count(), strangers()), (0, 1), "another address");
    forge(a, b, vni + 1);
    assert_eq!((count(), strangers()), (0, 2), "another number");
    forge(c, b, session(b.node, c.node));
    assert_eq!((count(), strangers()), (0, 2), "a station that is elsewhere");
    let spoofed = b.plane.command(|switch, _, _| switch.counters().dropped(Reason::Spoofed));
    assert_eq!(spoofed, 1);
}

/// Sends a frame in VXLAN from the host `by` to `to`: a datagram of a's station for b's.
fn forge(by: &Host, to: &Host, vni: u32) {
    let (a, b) = (NodeId(1), NodeId(2));
    let payload = b"forged";
    let udp_length = 8 + payload.len() as u16;
    let [high, low] = (20 + udp_length).to_be_bytes();
    let mut ip = vec![0x45, 0, high, low, 0, 1, 0, 0, 64, 17, 0, 0, 10, 2, 0, 1, 10, 2, 0, 2];
    let sum = ip.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum::<u32>();
    let sum = !((sum >> 16) + (sum & 0xffff)) as u16;
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    let [high, low] = udp_length.to_be_bytes();
    let udp = [[7699_u16, 7700].map(u16::to_be_bytes).concat(), vec![high, low, 0, 0]].concat();
    let ethernet = [&mac(b).0[..], &mac(a).0, &[8, 0]].concat();
    let vxlan = [&[8, 0, 0, 0][..], &(vni << 8).to_be_bytes()].concat();
    let datagram = [vxlan, ethernet, ip, udp, payload.to_vec()].concat();
    let from = SocketAddr::new(underlay_address(by.node).ip(), 0);
    let socket = by.network.enter(|| UdpSocket::bind(from).unwrap());
    socket.send_to(&datagram, (underlay_address(to.node).ip(), kernel::PORT)).unwrap();
}

#[test]
fn frames_with_a_foreign_source_address_go_to_the_switch() {
    const BESIDE: NodeId = NodeId(9);
    let world = World::new(3);
    let (a, b) = world.pair();
    a.plug("st1", PortId(2), BESIDE, MTU);
    world.tell(BESIDE, a.node, PortId(2));
    world.await_kernel(true);
    let datagrams = Datagrams::new(a, b);
    assert!(datagrams.pass());
    let before = a.sent_by_kernel(b);
    let spoofed = || a.plane.command(|switch, _, _| switch.counters().dropped(Reason::Spoofed));
    for other in [NodeId(3), BESIDE] {
        let refused = spoofed();
        a.network.ip(&format!("link set st0 address {}", mac(other)));
        // With another address it does not know any more where others are.
        a.network.ip(&format!("neigh replace {} lladdr {} dev st0", address(b.node), mac(b.node)));
        assert!(!datagrams.pass(), "that of station {other}");
        assert!(spoofed() > refused);
        assert_eq!(a.sent_by_kernel(b), before);
    }
}

#[test]
fn a_paused_station_sends_nothing_and_its_frames_are_kept() {
    let world = World::new(2);
    let (a, b) = world.pair();
    world.await_kernel(true);
    let datagrams = Datagrams::new(a, b);
    assert!(datagrams.pass());
    b.plane.command(|switch, _, _| switch.pause(mac(b.node))).unwrap();
    let before = [a.sent_by_kernel(b), b.sent_by_kernel(a)];
    (1..=50).for_each(|length| datagrams.send(length));
    assert_eq!(datagrams.received(), [0; 0]);
    assert_eq!(a.sent_by_kernel(b), before[0] + 50, "others need not know");
    let back = Datagrams { from: datagrams.to.try_clone().unwrap(), to: datagrams.from.try_clone().unwrap() };
    back.from.connect(back.to.local_addr().unwrap()).unwrap();
    assert!(!back.pass());
    assert_eq!(b.sent_by_kernel(a), before[1]);
    b.plane.command(|switch, now, parcels| switch.unpause(mac(b.node), now, parcels)).unwrap();
    let kept: Vec<usize> = (1..=50).collect();
    assert_eq!(datagrams.received(), kept, "each once, and in order");
    assert!(back.pass() && b.sent_by_kernel(a) > before[1]);
}

#[test]
fn stations_with_frames_too_long_for_the_path_use_the_plane() {
    // Behind Ethernet's header and VXLAN's in a datagram.
    const MOST: usize = MTU - 28 - 8 - 14;
    let world = World::new(2);
    let (a, b) = world.pair();
    world.await_kernel(true);
    let datagrams = Datagrams::new(a, b);
    assert!(datagrams.pass());
    let by_kernel = |length| {
        let before = a.sent_by_kernel(b);
        datagrams.send(length);
        assert_eq!(datagrams.received(), [length]);
        a.sent_by_kernel(b) > before
    };
    [a, b].iter().for_each(|host| host.network.ip(&format!("link set st0 mtu {MOST}")));
    // So long is known to arrive, and the next look shows the device's MTU.
    eventually("the longest frames pass in the kernel", || by_kernel(MOST - 28));
    assert!(by_kernel(100));
    [a, b].iter().for_each(|host| host.network.ip(&format!("link set st0 mtu {}", MOST + 1)));
    eventually("short ones do not overtake long ones", || !by_kernel(100));
    assert!(!by_kernel(MOST - 27));
    let before = a.sent_by_kernel(b);
    exchange(&a.connect(b, 7600), 2 << 20);
    assert_eq!(a.sent_by_kernel(b), before);
    // A device takes frames beyond its MTU from the plane alone.
    b.network.ip("link set st0 mtu 600");
    sleep(Duration::from_millis(1500));
    datagrams.send(1000);
    assert_eq!(datagrams.received(), [1000]);
}

#[test]
fn segments_that_may_be_tunnels_go_by_the_plane_if_their_pieces_might_not_fit() {
    let world = World::new(2);
    let (a, b) = world.pair();
    world.await_kernel(true);
    let datagrams = Datagrams::new(a, b);
    assert!(datagrams.pass());
    // A piece has 42 bytes of headers, and may have 160 more inside.
    let most = MTU - 28 - 8 - 42 - 160;
    let by_kernel = |size: usize| {
        let (before, value) = (a.sent_by_kernel(b), size as libc::c_int);
        let (socket, length) = (datagrams.from.as_raw_fd(), size_of_val(&value) as libc::socklen_t);
        // SAFETY: the value is live, and of the length that is given.
        let set = unsafe {
            libc::setsockopt(socket, libc::SOL_UDP, libc::UDP_SEGMENT, (&raw const value).cast(), length)
        };
        assert_eq!(set, 0);
        datagrams.send(3 * size + 1);
        assert_eq!(datagrams.received(), [size, size, size, 1]);
        a.sent_by_kernel(b) > before
    };
    eventually("segments pass in the kernel", || by_kernel(most));
    assert!(!by_kernel(most + 1));
}

/// A stream goes on though the way swallows long frames of the kernel, and all goes by the plane.
fn assert_that_the_plane_takes_over(world: &World, obstruct: impl FnOnce()) {
    let (a, b) = world.pair();
    world.await_kernel(true);
    let ends = a.connect(b, 7600);
    let is_carried = || {
        let before = a.sent_by_kernel(b);
        exchange(&ends, 1 << 20);
        a.sent_by_kernel(b) > before + 10
    };
    eventually("long frames pass in the kernel", is_carried);
    obstruct();
    let begun = Instant::now();
    exchange(&ends, 1 << 20);
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    eventually("the kernel is not used", || !a.plane.peer(b.node).unwrap().by_kernel);
    sleep(Duration::from_secs(2));
    assert!(!a.plane.peer(b.node).unwrap().by_kernel, "that short ones would arrive is not enough");
}

#[test]
fn the_plane_takes_over_when_long_kernel_frames_are_lost() {
    let world = World::new(2);
    let (_, b) = world.pair();
    assert_that_the_plane_takes_over(&world, || {
        b.network.run("nft", "add table inet blocked");
        b.network.run("nft", "add chain inet blocked input { type filter hook input priority 0; }");
        let rule = format!("add rule inet blocked input udp dport {} udp length > 1300 drop", kernel::PORT);
        b.network.run("nft", &rule);
    });
    b.network.run("nft", "delete table inet blocked");
    world.await_kernel(true);
}

#[test]
fn the_plane_takes_over_when_the_kernel_has_a_smaller_route_mtu() {
    let world = World::new(2);
    let (a, b) = world.pair();
    let address = underlay_address(b.node).ip();
    // That may be no more true, or forged: the plane's socket finds out by itself.
    assert_that_the_plane_takes_over(&world, || {
        a.network.ip(&format!("route add {address}/32 dev eth0 mtu 1300"));
    });
    a.network.ip(&format!("route del {address}/32"));
    world.await_kernel(true);
}

#[test]
fn tagged_frames_and_frames_of_other_links_go_by_the_plane() {
    let world = World::new(3);
    let [a, b, c] = &world.hosts[..] else { panic!("three hosts") };
    world.await_kernel(true);
    let (from, to) = (a.frames(), b.frames());
    let before = a.sent_by_kernel(b);
    let tagged = |tag: &[u8]| [&mac(b.node).0[..], &mac(a.node).0, tag, &[0x88, 0xb5], &[7; 60]].concat();
    for (tag, by_kernel) in [(&[0x81, 0, 0, 5][..], 0), (&[0x88, 0xa8, 0, 5], 0), (&[], 1)] {
        let before = a.sent_by_kernel(b);
        rustix::io::write(&from, &tagged(tag)).unwrap();
        let mut buffer = [0; 2000];
        // The kernel puts the tag elsewhere before it shows the frame.
        eventually("the frame arrives", || {
            let length = rustix::io::read(&to, &mut buffer).unwrap_or(0);
            buffer[..length].ends_with(&[7; 60])
        });
        assert_eq!(a.sent_by_kernel(b) - before, by_kernel, "{tag:x?}");
    }
    assert!(a.sent_by_kernel(b) > before);
    let nodes = world.hosts.iter().map(|host| host.node).collect::<Vec<_>>();
    world.use_topology(&Topology::star(Version(2), b.node, &nodes).unwrap());
    let (far, near) = (Datagrams::new(a, c), Datagrams { from: c.datagrams(7701), to: b.datagrams(7701) });
    near.from.connect(near.to.local_addr().unwrap()).unwrap();
    let before = [a.sent_by_kernel(b), a.sent_by_kernel(c)];
    assert!(far.pass());
    assert_eq!([a.sent_by_kernel(b), a.sent_by_kernel(c)], before, "it goes over another node");
    let before = c.sent_by_kernel(b);
    assert!(near.pass() && c.sent_by_kernel(b) > before);
}

#[test]
fn a_device_moved_to_another_namespace_uses_the_plane() {
    let world = World::new(2);
    let (a, b) = world.pair();
    world.await_kernel(true);
    let elsewhere = Namespace::new();
    b.network.ip(&format!("link set st0 netns {}", elsewhere.path()));
    elsewhere.ip("link set st0 up");
    elsewhere.ip(&format!("addr add {}/24 dev st0", address(b.node)));
    let there = SocketAddr::new(address(b.node).parse().unwrap(), 7700);
    let to = elsewhere.enter(|| UdpSocket::bind(there).unwrap());
    to.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    let from = a.datagrams(7700);
    from.connect(there).unwrap();
    let datagrams = Datagrams { from, to };
    eventually("its frames arrive", || datagrams.pass());
}

#[test]
fn one_node_after_the_other_uses_the_kernel() {
    let namespace = Namespace::new();
    let new = || namespace.enter(|| Kernel::new(Offloads::ALL.of_taps()));
    let devices = || namespace.run("ip", "-o link").matches("transhume-").count();
    // One that was killed leaves this.
    namespace.ip("link add transhume-vxlan type vxlan external dstport 7789");
    let first = new().unwrap();
    assert!(new().is_err(), "the programs are loaded already");
    assert_eq!(devices(), 2, "and is left alone");
    drop(first);
    assert_eq!(devices(), 0);
    let second = new().unwrap();
    assert_eq!(devices(), 2);
    drop(second);
}

/// The environment variable that makes this program the node that is killed.
const KILLED: &str = "TRANSHUME_TEST_KILLED";

#[test]
fn the_host_ignores_tunnel_frames_after_the_node_was_killed() {
    if std::env::var_os(KILLED).is_some() {
        let _kernel = Kernel::new(Offloads::ALL.of_taps()).unwrap();
        println!("{KILLED}");
        loop {
            std::thread::park();
        }
    }
    let (host, other) = (Namespace::new(), Namespace::new());
    host.connect("eth0", &other, "eth0");
    host.ip("addr add 10.1.0.1/24 dev eth0");
    other.ip("addr add 10.1.0.2/24 dev eth0");
    let mut program = Command::new(std::env::current_exe().unwrap());
    program.args(["--exact", "the_host_ignores_tunnel_frames_after_the_node_was_killed", "--nocapture"]);
    program.env(KILLED, "").stdout(Stdio::piped());
    let mut node = host.enter(|| program.spawn().unwrap());
    let said = BufReader::new(node.stdout.take().unwrap()).lines();
    assert!(said.map_while(Result::ok).any(|line| line.contains(KILLED)), "it carries frames");
    node.kill().unwrap();
    node.wait().unwrap();
    assert!(host.run("ip", "-o link show transhume-vxlan").contains(",UP"), "it is left");
    let socket = other.enter(|| UdpSocket::bind(("10.1.0.2", kernel::PORT)).unwrap());
    socket.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    // A question for the host's address (RFC 826), which it would answer from any device.
    let sender = [2, 0, 0, 0, 0, 9];
    let question = [&[0, 1, 8, 0, 6, 4, 0, 1][..], &sender, &[10, 1, 0, 2], &[0; 6], &[10, 1, 0, 1]].concat();
    let frame = [&[0xff; 6][..], &sender, &[8, 6], &question, &[0; 18]].concat();
    let ask =
        || socket.send_to(&[&[8, 0, 0, 0, 0, 0, 9, 0][..], &frame].concat(), ("10.1.0.1", kernel::PORT));
    let is_answered = || {
        (0..3).for_each(|_| assert!(ask().is_ok()));
        socket.recv(&mut [0; 2000]).is_ok()
    };
    assert!(!is_answered());
    host.ip("link del transhume-vxlan");
    host.ip("link add transhume-vxlan type vxlan external dstport 7789");
    host.ip("link set transhume-vxlan up");
    assert!(is_answered(), "it does from an unguarded device");
}

#[test]
fn the_plane_takes_over_when_the_kernel_device_is_deleted() {
    let world = World::new(2);
    let (a, _) = world.pair();
    world.await_kernel(true);
    a.network.ip("link del transhume-vxlan");
    eventually("it is noticed", || a.plane.counter(Counter::PortGone) > 0);
    world.await_kernel(false);
    sleep(Duration::from_millis(1500));
    assert_eq!(a.plane.counter(Counter::PortGone), 1, "once");
}
