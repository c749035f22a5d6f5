//! Stations on several hosts speak with each other across the overlay.

#[allow(dead_code, reason = "other tests need more of it")]
mod world;

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::fs;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fabric::Epoch;
use overlay::Mac;
use overlay::matrix::{Flow, LONGEST, Traffic, Volume};
use overlay::message::{Message, Report};
use overlay::switch::{PortId, PortKind};
use overlay::topology::{NodeId, Topology, Version};
use overlay::tunnel::header::{HEADER, Header, Protection};
use overlay_io::counters::Counter;
use overlay_io::offloads::Offloads;
use overlay_io::peer::{Path, PlainAgreement};
use overlay_io::plane::Plane;
use overlay_io::socket::{MOST, Socket};
use world::ground::pattern;
use world::{Host, LIMIT, Station, World, assert_no_mistakes, exchange};

/// An MTU of stations that leaves room for the overlay's overhead for each frame on a network of 1500.
const MTU: usize = 1400;

/// Says that it is over when it is dropped, also by a check that fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Waits until `plane` has counted.
fn await_count(plane: &Plane, counter: Counter) {
    await_more(plane, counter, 0);
}

/// Waits until `plane` has counted more than `before`.
fn await_more(plane: &Plane, counter: Counter, before: u64) {
    let begun = Instant::now();
    while plane.counter(counter) <= before {
        assert!(begun.elapsed() < LIMIT, "no {counter:?}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Sends a datagram of `length` bytes from `a` to `b` until it arrives there.
fn send_until_it_arrives(a: &Station, b: &Station, length: usize) {
    let (from, to) = (a.datagrams(6000), b.datagrams(6000));
    to.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let (sent, begun, mut buffer) = (pattern(length, 3), Instant::now(), vec![0; length + 1]);
    loop {
        // The first one may wait for an answer of ARP, and the path may not be known yet.
        let _ = from.send_to(&sent, (b.address.as_str(), 6000));
        if let Ok(received) = to.recv(&mut buffer) {
            return assert!(buffer[..received] == sent, "a byte is wrong");
        }
        assert!(begun.elapsed() < LIMIT, "nothing arrives");
    }
}

#[test]
fn a_stream_crosses_whole_both_ways() {
    let world = World::new(2, 1500);
    world.await_path(1472);
    let (a, b) = (world.station(1, 0, MTU), world.station(2, 1, MTU));
    exchange(&a.connect(&b, 5000), 20_000_000);
    assert_no_mistakes(&world);
}

#[test]
fn keys_change_during_a_stream() {
    let world = World::new(2, 1500);
    world.await_path(1472);
    let (a, b) = (world.station(1, 0, MTU), world.station(2, 1, MTU));
    let ends = a.connect(&b, 5000);
    let generation = || world.hosts[0].plane.peer(world.hosts[1].node).unwrap().generation;
    let begun = Instant::now();
    while generation() < 3 {
        assert!(begun.elapsed() < LIMIT, "{}", generation());
        exchange(&ends, 1_000_000);
    }
    assert_no_mistakes(&world);
}

#[test]
fn sessions_are_replaced_during_a_stream() {
    const TIMES: u8 = 50;
    let world = World::new(2, 1500);
    world.await_path(1472);
    let (a, b) = (world.station(1, 0, MTU), world.station(2, 1, MTU));
    let (ends, between) = (a.connect(&b, 5000), a.connect(&b, 5001));
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let _over = Over(&is_over);
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                exchange(&ends, 100_000);
            }
        });
        for time in 1..=TIMES {
            world.agree_anew(time);
            // After the datagrams that were sealed as the nodes had agreed on before.
            exchange(&between, 10_000);
        }
    });
    for host in &world.hosts {
        assert_eq!(host.plane.counter(Counter::Stranger), 0, "at {}", host.node);
    }
    assert_no_mistakes(&world);
}

#[test]
fn stations_of_one_host_need_no_peer() {
    let world = World::new(1, 1500);
    let (a, b) = (world.station(1, 0, MTU), world.station(2, 0, MTU));
    exchange(&a.connect(&b, 5000), 5_000_000);
}

#[test]
fn frames_longer_than_the_path_travel_in_parts() {
    let world = World::new(2, 1500);
    let (a, b) = (world.station(1, 0, 9000), world.station(2, 1, 9000));
    send_until_it_arrives(&a, &b, 8900);
    exchange(&a.connect(&b, 5000), 5_000_000);
    assert_no_mistakes(&world);
}

/// A host's sent traffic on its network: bytes, and pieces that it did not cut itself.
fn sent_by(host: &Host) -> (u64, u64) {
    let devices = host.network.enter(|| fs::read_to_string("/proc/thread-self/net/dev").unwrap());
    let eth0 = devices.lines().find_map(|line| line.trim_start().strip_prefix("eth0:")).unwrap();
    let numbers: Vec<u64> = eth0.split_whitespace().map(|number| number.parse().unwrap()).collect();
    (numbers[8], numbers[9])
}

#[test]
fn frames_take_several_hops() {
    let world = World::new(4, 1500);
    world.use_topology(|nodes| Topology::star(Version(2), nodes[3], nodes).unwrap());
    let (a, b) = (world.station(1, 0, MTU), world.station(2, 1, MTU));
    let ends = a.connect(&b, 5000);
    exchange(&ends, 5_000_000);
    // While the connection is there, and used.
    world.use_topology(|nodes| Topology::mesh(Version(3), nodes).unwrap());
    exchange(&ends, 5_000_000);
    assert_no_mistakes(&world);
}

#[test]
fn frames_that_came_together_leave_together() {
    let world = World::new(3, 1500);
    world.use_topology(|nodes| Topology::star(Version(2), nodes[2], nodes).unwrap());
    world.await_path(1472);
    let (a, b) = (world.station(1, 0, MTU), world.station(2, 1, MTU));
    let [from, to] = [&a, &b].map(|station| many_datagrams(station, 6000));
    let relay = &world.hosts[2];
    // Each burst reaches the relay in one piece, regardless of the merging and the load of its kernel.
    let before = sent_by(relay);
    for _ in 0..100 {
        send_together(&from.0, &to, 9500, 1000);
    }
    let (bytes, pieces) = sent_by(relay);
    let each = (bytes - before.0) / (pieces - before.1);
    assert!(each > 2 * 1500, "{each} bytes in each piece");
    assert_no_mistakes(&world);
}

#[test]
fn a_path_that_becomes_narrow_is_noticed() {
    let world = World::new(2, 9000);
    world.await_path(8972);
    let (a, b) = (world.station(1, 0, 8900), world.station(2, 1, 8900));
    let ends = a.connect(&b, 5000);
    exchange(&ends, 1_000_000);
    // A black hole: no error reports that frames are too long for the bridge's ports now.
    for port in ["host1", "host2"] {
        world.underlay.ip(&format!("link set {port} mtu 1500"));
    }
    let known = || world.hosts[0].plane.peer(world.hosts[1].node).unwrap().arrives;
    let begun = Instant::now();
    while known() > 1472 {
        assert!(begun.elapsed() < LIMIT, "{}", known());
        thread::sleep(Duration::from_millis(50));
    }
    exchange(&ends, 1_000_000);
    assert_no_mistakes(&world);
}

/// The counted traffic from `from` to `to` at `host`, when it is so many frames.
fn await_traffic(world: &World, host: usize, (from, to): (&Station, &Station), frames: u64) -> Traffic {
    let flow = Some(Flow { from: from.mac, to: to.mac });
    let begun = Instant::now();
    loop {
        let matrix = world.hosts[host].plane.matrix(LONGEST);
        assert!(matrix.is_sorted_by_key(|traffic| Reverse(traffic.volume.bytes)));
        let traffic = matrix.into_iter().find(|traffic| traffic.flow == flow);
        if let Some(traffic) = traffic.filter(|traffic| traffic.volume.frames >= frames) {
            return traffic;
        }
        assert!(begun.elapsed() < LIMIT, "{traffic:?}");
        thread::sleep(Duration::from_millis(100));
    }
}

/// A socket of `station`, and where it is.
fn many_datagrams(station: &Station, port: u16) -> (Socket, SocketAddr) {
    let address = SocketAddr::new(station.address.parse().unwrap(), port);
    (station.network.enter(|| Socket::bind(address).unwrap()), address)
}

/// Sends datagrams of `length` bytes, `bytes` in all, in one call, and waits until all have come.
fn send_together(from: &Socket, (to, address): &(Socket, SocketAddr), bytes: usize, length: usize) {
    from.send(*address, &pattern(bytes, 5), length).unwrap();
    let (begun, mut arrived, mut buffer) = (Instant::now(), Vec::new(), vec![0; MOST]);
    while arrived.len() < bytes {
        assert!(begun.elapsed() < LIMIT, "{} of {bytes} bytes came", arrived.len());
        let Ok(arrival) = to.receive(&mut buffer) else {
            thread::sleep(Duration::from_millis(1));
            continue;
        };
        assert!(arrival.length == length || arrival.bytes < length, "{arrival:?}");
        arrived.extend_from_slice(&buffer[..arrival.bytes]);
    }
    assert!(arrived == pattern(bytes, 5), "a byte is wrong");
}

/// Everything that offloads are about, between stations of hosts that have these.
fn assert_all_works(offloads: [Offloads; 2]) {
    let world = World::with(&offloads, 1500);
    world.await_path(1472);
    let (a, b, c) = (world.station(1, 0, MTU), world.station(2, 1, MTU), world.station(3, 0, MTU));
    let before = b.received_frames();
    exchange(&a.connect(&b, 5000), 2_000_000);
    let streamed = b.received_frames();
    assert!(offloads[1].tcp_segments || streamed - before > 2_000_000 / MTU as u64, "TCP comes in segments");
    exchange(&a.connect(&c, 5000), 2_000_000);
    let ends = [&a, &b, &c].map(|station| many_datagrams(station, 6000));
    let before = b.received_frames();
    send_together(&ends[0].0, &ends[1], 9500, 1000);
    let frames = b.received_frames() - before;
    assert!(offloads[1].udp_segments || frames >= 10, "UDP comes in segments");
    send_together(&ends[1].0, &ends[0], 9500, 1000);
    send_together(&ends[0].0, &ends[2], 9500, 1000);
    assert_no_mistakes(&world);
    assert_eq!(world.hosts.iter().map(|host| host.plane.counter(Counter::NotWritten)).sum::<u64>(), 0);
}

#[test]
fn everything_works_without_each_offload() {
    let off = [
        Offloads::NONE,
        Offloads { udp_segment: false, ..Offloads::ALL },
        Offloads { udp_gro: false, ..Offloads::ALL },
        Offloads { tcp_segments: false, ..Offloads::ALL },
        Offloads { udp_segments: false, ..Offloads::ALL },
    ];
    off.iter().for_each(|offloads| assert_all_works([*offloads; 2]));
    let no_segments = Offloads { tcp_segments: false, udp_segments: false, ..Offloads::ALL };
    assert_all_works([Offloads::ALL, Offloads::NONE]);
    assert_all_works([Offloads::ALL, no_segments]);
}

#[test]
fn stations_of_one_host_may_have_different_offloads() {
    let world = World::new(1, 1500);
    let a = world.station(1, 0, MTU);
    let b = Station::new(2);
    let tap = b.tap(MTU, Offloads::NONE);
    world.hosts[0].plane.plug(PortId(2), PortKind::Instance, tap).unwrap();
    world.announce(&b, world.hosts[0].node, PortId(2), 1);
    exchange(&a.connect(&b, 5000), 2_000_000);
    assert!(b.received_frames() > 2_000_000 / MTU as u64, "TCP comes in segments");
    let ends = [&a, &b].map(|station| many_datagrams(station, 6000));
    let before = b.received_frames();
    send_together(&ends[0].0, &ends[1], 9500, 1000);
    assert!(b.received_frames() >= before + 10, "UDP comes in segments");
}

#[test]
fn frames_are_counted_once_per_direction() {
    const HEADERS: u64 = 14 + 20 + 8;
    let world = World::new(2, 1500);
    world.await_path(1472);
    let (a, b, c) = (world.station(1, 0, MTU), world.station(2, 1, MTU), world.station(3, 0, MTU));
    let [from, to, near] = [&a, &b, &c].map(|station| many_datagrams(station, 6000));
    for _ in 0..100 {
        send_together(&from.0, &to, 200, 200);
    }
    // One segment for the device, and ten frames.
    send_together(&from.0, &to, 9500, 1000);
    send_together(&to.0, &from, 300, 300);
    send_together(&from.0, &near, 500, 500);

    let there = await_traffic(&world, 0, (&a, &b), 110);
    let volume = |payload, frames| Volume { bytes: payload + frames * HEADERS, frames };
    assert_eq!(there.volume, volume(100 * 200 + 9500, 110));
    assert_eq!(await_traffic(&world, 1, (&b, &a), 1).volume, volume(300, 1));
    assert_eq!(await_traffic(&world, 0, (&a, &c), 1).volume, volume(500, 1));
    let seconds = there.volume.bytes as f64 / there.bytes_per_second;
    assert!(seconds >= 5.0 && seconds <= LONGEST.as_secs_f64(), "{seconds}");
    let is_at = |host: usize, from: Mac| {
        let matrix = world.hosts[host].plane.matrix(LONGEST);
        matrix.iter().any(|traffic| traffic.flow.is_some_and(|flow| flow.from == from))
    };
    assert!(!is_at(1, a.mac) && !is_at(0, b.mac), "it is counted where it comes in");
}

/// Lets `host` lose one of ten datagrams of other nodes.
fn lose_some(host: &Host) {
    let nft = |line: &str| host.network.run("nft", line);
    nft("add table inet loss");
    nft("add counter inet loss lost");
    nft("add chain inet loss input { type filter hook input priority 0 ; }");
    nft("add rule inet loss input udp dport 7474 numgen inc mod 10 == 7 counter name lost drop");
}

/// Lets `host` lose no more. Returns how many it has lost.
fn lose_no_more(host: &Host) -> u64 {
    host.network.run("nft", "flush chain inet loss input");
    let counter = host.network.run("nft", "list counter inet loss lost");
    let packets = counter.split("packets ").nth(1).and_then(|rest| rest.split(' ').next());
    packets.unwrap().parse().unwrap()
}

#[test]
fn nodes_know_how_much_is_lost_and_how_long_it_takes() {
    const SENT: usize = 1000;
    let world = World::new(2, 1500);
    world.await_path(1472);
    let (a, b) = (world.station(1, 0, MTU), world.station(2, 1, MTU));
    send_until_it_arrives(&a, &b, 100);
    let [here, there] = &world.hosts[..] else { panic!("two hosts are there") };
    let known = || here.plane.peer(there.node).unwrap();
    let from = a.datagrams(6001);
    let send = || from.send_to(b"anybody?", (b.address.as_str(), 6001)).unwrap();

    lose_some(there);
    for _ in 0..SENT {
        send();
    }
    // All have come to the host, or are lost.
    let begun = Instant::now();
    while there.plane.peer(here.node).unwrap().received < SENT as u64 * 9 / 10 {
        assert!(begun.elapsed() < LIMIT, "{:?}", there.plane.peer(here.node));
        thread::sleep(Duration::from_millis(10));
    }
    let lost = lose_no_more(there);
    assert!(lost >= SENT as u64 / 20, "{lost}");
    while known().lost != lost || known().round_trip.is_none() {
        assert!(begun.elapsed() < LIMIT, "{lost} are lost: {:?}", known());
        // A loss is noticed by later datagrams.
        send();
        thread::sleep(Duration::from_millis(50));
    }
    let state = known();
    assert!(state.sent > SENT as u64 && state.lost * 11 < state.sent * 2, "{state:?}");
    assert!(state.least_round_trip <= state.round_trip && state.round_trip < Some(LIMIT), "{state:?}");
    let back = there.plane.peer(here.node).unwrap();
    assert!(back.received >= state.sent - state.lost && back.lost == 0, "{back:?}");
    world.agree_anew(1);
    assert!(known().lost >= lost && known().sent >= state.sent && known().round_trip.is_some());
    assert_no_mistakes(&world);
}

#[test]
fn the_rate_of_an_idle_path_is_known() {
    let _alone = test_support::machine::alone();
    const MEGABITS: u64 = 50;
    let world = World::new(2, 1500);
    world.await_path(1472);
    let [here, there] = &world.hosts[..] else { panic!("two hosts are there") };
    let rate = |from: &Host, to: &Host| {
        let begun = Instant::now();
        loop {
            if let Some(rate) = from.plane.peer(to.node).unwrap().rate {
                return rate * 8 / 1_000_000;
            }
            assert!(begun.elapsed() < LIMIT, "it is not known");
            thread::sleep(Duration::from_millis(50));
        }
    };
    rate(here, there);
    let narrow = World::new(2, 1500);
    let [here, there] = &narrow.hosts[..] else { panic!("two hosts are there") };
    here.network
        .run("tc", &format!("qdisc add dev eth0 root tbf rate {MEGABITS}mbit burst 4kb latency 200ms"));
    // A train may be delayed by sender or receiver, but never accelerated.
    let rate = rate(here, there);
    assert!((1..MEGABITS * 2).contains(&rate), "{rate}");
}

#[test]
fn datagrams_of_strangers_are_dropped() {
    let world = World::new(2, 1500);
    world.await_path(1472);
    let target = &world.hosts[0];
    let stranger = world.hosts[1].network.enter(|| UdpSocket::bind("10.1.0.2:0").unwrap());
    let say = |bytes: &[u8]| stranger.send_to(bytes, "10.1.0.1:7474").unwrap();
    say(b"");
    say(b"hello");
    say(&[0xa1; 2000][..1400]);
    await_count(&target.plane, Counter::Stranger);
    // The right session, and so the right key; but not the key's owner.
    let mut forged = [0; 100];
    forged[0] = 0xa1;
    forged[4..8].copy_from_slice(&0x0001_0002_u32.to_le_bytes());
    forged[8] = 200;
    say(&forged);
    await_count(&target.plane, Counter::Forged);
    forged[2] = 9;
    say(&forged);
    await_count(&target.plane, Counter::UnknownKey);
    let (a, b) = (world.station(1, 0, MTU), world.station(2, 1, MTU));
    exchange(&a.connect(&b, 5000), 100_000);
}

#[test]
fn a_stream_crosses_an_unencrypted_link() {
    let world = World::plain(2, 1500);
    world.await_path(1472);
    let (a, b) = (world.station(1, 0, MTU), world.station(2, 1, MTU));
    exchange(&a.connect(&b, 5000), 20_000_000);
    let state = world.hosts[0].plane.peer(world.hosts[1].node).unwrap();
    assert_eq!(state.protection, Protection::Plain);
    assert_no_mistakes(&world);
}

/// Waits until `is_it` accepts a plain datagram to `socket`.
fn await_words(socket: &UdpSocket, is_it: impl Fn(Message<'_>) -> bool) {
    let (begun, mut buffer) = (Instant::now(), [0; 2000]);
    loop {
        let length = socket.recv(&mut buffer).expect("a datagram arrives");
        let header = Header::decode(&buffer[..length]).unwrap();
        assert_eq!(header.protection, Protection::Plain);
        if is_it(Message::decode(&buffer[HEADER..length]).unwrap()) {
            return;
        }
        assert!(begun.elapsed() < LIMIT, "it is not said");
    }
}

#[test]
fn plain_datagrams_are_accepted_once_and_only_on_plain_links() {
    const SESSION: u32 = 99;
    let world = World::new(2, 1500);
    world.await_path(1472);
    let [here, there] = &world.hosts[..] else { panic!("two hosts are there") };
    let bind = || there.network.enter(|| UdpSocket::bind("10.1.0.2:0").unwrap());
    let (peer, elsewhere) = (bind(), bind());
    peer.set_read_timeout(Some(LIMIT)).unwrap();
    let agreed = PlainAgreement { own: SESSION, theirs: 7, kernel: false };
    let path = Path { address: peer.local_addr().unwrap(), longest: 1472, fallback: None };
    here.plane.connect(NodeId(9), path, agreed);
    let datagram = |protection, session, counter| {
        let header = Header { protection, lane: 0, generation: 0, session, counter };
        [&header.encode()[..], &Report { received: 0, lost: 0, stamp: 4711, rate: 0 }.encode()].concat()
    };
    let say = |from: &UdpSocket, bytes: &[u8]| from.send_to(bytes, here.address).unwrap();
    let refused = |from: &UdpSocket, bytes: &[u8], counter| {
        let before = here.plane.counter(counter);
        say(from, bytes);
        await_more(&here.plane, counter, before);
    };
    let good = datagram(Protection::Plain, SESSION, 5);
    say(&peer, &good);
    await_words(&peer, |words| words == Message::Echo(4711));
    refused(&peer, &good, Counter::Replayed);
    refused(&elsewhere, &datagram(Protection::Plain, SESSION, 6), Counter::WrongAddress);
    refused(&peer, &datagram(Protection::Sealed, SESSION, 6), Counter::WrongProtection);
    let state = here.plane.peer(NodeId(9)).unwrap();
    assert_eq!((state.received, state.address), (1, peer.local_addr().unwrap()));

    // The right session of the other node, and it is sealed.
    let sealed = here.plane.peer(there.node).unwrap();
    refused(&peer, &datagram(Protection::Plain, sealed.session, 1 << 40), Counter::WrongProtection);
    assert_eq!(here.plane.peer(there.node).unwrap().address, there.address);
    let (a, b) = (world.station(1, 0, MTU), world.station(2, 1, MTU));
    exchange(&a.connect(&b, 5000), 100_000);
}

#[test]
fn a_port_may_go_and_come_back() {
    let world = World::new(2, 1500);
    let (a, b) = (world.station(1, 0, MTU), world.station(2, 1, MTU));
    send_until_it_arrives(&a, &b, 100);
    world.hosts[1].plane.unplug(PortId(2));
    let from = a.datagrams(6001);
    from.send_to(b"anybody?", (b.address.as_str(), 6001)).unwrap();
    let again = world.station_at_epoch(b, 1, MTU, 2);
    send_until_it_arrives(&a, &again, 100);
}

/// Moves `station` from host `from` to host `to`, with its TAP, so that it has `epoch`.
fn move_station(world: &World, station: &Station, (from, to): (usize, usize), epoch: u64) {
    let port = PortId(station.mac.0[5].into());
    let (from, to) = (&world.hosts[from], &world.hosts[to]);
    from.plane.command(|switch, _, _| switch.pause(station.mac)).unwrap();
    let tap = from.plane.release(port).unwrap();
    to.plane.command(|switch, _, _| {
        switch.attach(port, PortKind::Instance);
        switch.prepare(station.mac, port, Epoch(epoch)).unwrap();
    });
    world.announce(station, to.node, port, epoch);
    to.plane.serve(port, tap).unwrap();
    to.plane.command(|switch, _, parcels| switch.resume(station.mac, parcels)).unwrap();
    from.plane.command(|switch, _, _| switch.detach(port));
}

#[test]
fn a_station_moves_under_load_without_loss_for_its_peers() {
    const MOVES: u64 = 1000;
    const PAUSE: Duration = Duration::from_millis(5);
    let world = World::new(3, 1500);
    world.await_path(1472);
    let (a, b) = (world.station(1, 0, MTU), world.station(2, 1, MTU));
    let ends = a.connect(&b, 5000);
    let (probes, target) = (a.datagrams(6000), b.datagrams(6000));
    target.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    // Probes and the stream go on until the last silence has ended, or was too long.
    let (has_moved, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        let (ends, has_moved, is_over, b) = (&ends, &has_moved, &is_over, &b);
        scope.spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                exchange(ends, 100_000);
            }
        });
        scope.spawn(move || {
            for number in 0_u64.. {
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
                let _ = probes.send_to(&number.to_le_bytes(), (b.address.as_str(), 6000));
                thread::sleep(Duration::from_micros(500));
            }
        });
        let seen = scope.spawn(move || longest_silence(&target, has_moved));
        for epoch in 2..2 + MOVES {
            let way = if epoch % 2 == 0 { (1, 2) } else { (2, 1) };
            move_station(&world, b, way, epoch);
            thread::sleep(PAUSE);
        }
        has_moved.store(true, Ordering::Relaxed);
        let silence = seen.join();
        is_over.store(true, Ordering::Relaxed);
        let silence = silence.unwrap();
        // Where processors are busy most of it is not the moves'; `make bench-net` tells these apart.
        println!("the longest silence in {MOVES} moves: {silence:?}");
        assert!(silence < Duration::from_secs(1), "{silence:?}");
    });
    assert_no_mistakes(&world);
}

/// The longest time without a probe, up to the first one after all moves. None comes twice.
fn longest_silence(target: &UdpSocket, has_moved: &AtomicBool) -> Duration {
    let (mut seen, mut last, mut longest) = (BTreeSet::new(), Instant::now(), Duration::ZERO);
    let mut buffer = [0; 8];
    while last.elapsed() < LIMIT {
        let is_last = has_moved.load(Ordering::Relaxed);
        let Ok(8) = target.recv(&mut buffer) else { continue };
        let number = u64::from_le_bytes(buffer);
        assert!(seen.insert(number), "{number} came twice");
        longest = longest.max(last.elapsed());
        last = Instant::now();
        if is_last {
            return longest;
        }
    }
    last.elapsed()
}
