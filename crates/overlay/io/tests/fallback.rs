//! Where datagrams do not get through, a connection carries them.

#[allow(dead_code, reason = "other tests need more of it")]
mod world;

use std::io;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, SyncSender};
use std::thread;
use std::time::{Duration, Instant};

use overlay_io::carrier::{Carrier, Fallback};
use overlay_io::counters::Counter;
use overlay_io::offloads::Offloads;
use overlay_io::peer::{Path, PeerState, PlainAgreement};
use world::{Host, LIMIT, World, agreement, assert_no_mistakes, exchange};

/// Leaves room for the overlay's overhead for each frame on a network of 1500.
const MTU: usize = 1400;

/// Longer than a way is silent until it is asked, and is on probation for.
const WHILE: Duration = Duration::from_secs(4);

/// A connection, in one direction.
struct Connection {
    queue: SyncSender<(Vec<u8>, usize)>,
    stands: Arc<AtomicBool>,
}

impl Connection {
    /// So many trains wait at most.
    const ROOM: usize = 16;

    /// To `host`, which knows the session by this number.
    fn to(host: &Host, session: u32, stands: &Arc<AtomicBool>) -> Arc<dyn Fallback> {
        let (queue, waiting) = mpsc::sync_channel::<(Vec<u8>, usize)>(Self::ROOM);
        let inlet = host.plane.inlet(session);
        thread::spawn(move || {
            waiting.iter().for_each(|(mut datagrams, each)| inlet.take(&mut datagrams, each));
        });
        Arc::new(Self { queue, stands: stands.clone() })
    }
}

impl Fallback for Connection {
    fn send(&self, datagrams: &[u8], length: usize) -> io::Result<()> {
        let sent = self.queue.try_send((datagrams.to_vec(), length));
        sent.map_err(|_| io::ErrorKind::WouldBlock.into())
    }

    fn stands(&self) -> bool {
        self.stands.load(Ordering::Relaxed)
    }
}

/// Two hosts that have a connection, which is whole as long as it `stands`. `block` acts on them before they speak.
fn connected(stands: &Arc<AtomicBool>, block: impl FnOnce(&[Host])) -> World {
    let world = World::apart(&[Offloads::ALL; 2], 1500);
    block(&world.hosts);
    agree(&world, 0, stands);
    world
}

/// How `to` is reached, which knows the session by this number.
fn path(world: &World, to: &Host, session: u32, stands: &Arc<AtomicBool>) -> Path {
    Path { fallback: Some(Connection::to(to, session, stands)), ..to.path(world.mtu) }
}

/// Lets two hosts agree over a new connection for the so many-th time.
fn agree(world: &World, time: u8, stands: &Arc<AtomicBool>) {
    let [a, b] = &world.hosts[..] else { panic!("two hosts are there") };
    let (here, there) = (agreement(a.node, b.node, time), agreement(b.node, a.node, time));
    b.plane.expect(a.node, path(world, a, here.own, stands), there);
    a.plane.connect(b.node, path(world, b, here.theirs, stands), here);
}

/// Blocks datagrams to `host`. It can still send: one direction is enough.
fn block(host: &Host) {
    block_those(host, "");
}

/// The same for the ones that `which` accepts.
fn block_those(host: &Host, which: &str) {
    let nft = |line: &str| host.network.run("nft", line);
    nft("add table inet blocked");
    nft("add chain inet blocked input { type filter hook input priority 0 ; }");
    nft(&format!("add rule inet blocked input udp dport 7474 {which} drop"));
}

fn unblock(host: &Host) {
    host.network.run("nft", "delete table inet blocked");
}

/// How it stands between the two hosts, as each sees it.
fn states(world: &World) -> [PeerState; 2] {
    let [a, b] = &world.hosts[..] else { panic!("two hosts are there") };
    [a.plane.peer(b.node).unwrap(), b.plane.peer(a.node).unwrap()]
}

fn carriers(world: &World) -> [Carrier; 2] {
    states(world).map(|state| state.carrier)
}

/// Waits until both send by `carrier`.
fn await_carrier(world: &World, carrier: Carrier) {
    let begun = Instant::now();
    while carriers(world) != [carrier; 2] {
        assert!(begun.elapsed() < LIMIT, "{:?}", states(world));
        thread::sleep(Duration::from_millis(10));
    }
}

/// Sees for a while that all goes over the connection. Meanwhile keys change and reports are echoed: answers over the
/// connection do not show that datagrams arrive.
fn go_on_over_connection(world: &World, ends: &(TcpStream, TcpStream)) {
    thread::scope(|scope| {
        let exchanging = scope.spawn(|| {
            let begun = Instant::now();
            while begun.elapsed() < WHILE {
                exchange(ends, 100_000);
            }
        });
        while !exchanging.is_finished() {
            assert_eq!(carriers(world), [Carrier::Connection; 2]);
            thread::sleep(Duration::from_millis(5));
        }
    });
}

fn standing() -> Arc<AtomicBool> {
    Arc::new(AtomicBool::new(true))
}

#[test]
fn a_stream_continues_while_udp_is_blocked_and_after_it_returns() {
    let world = connected(&standing(), |_| {});
    let (a, b) = (world.station(1, 0, MTU), world.station(2, 1, MTU));
    let ends = a.connect(&b, 5000);
    await_carrier(&world, Carrier::Udp);
    world.await_path(1472);
    for host in &world.hosts {
        block(host);
        exchange(&ends, 5_000_000);
        await_carrier(&world, Carrier::Connection);
        go_on_over_connection(&world, &ends);
        unblock(host);
        exchange(&ends, 100_000);
        await_carrier(&world, Carrier::Udp);
        assert_eq!(states(&world).map(|state| state.arrives), [1472; 2], "the path is known still");
        exchange(&ends, 5_000_000);
    }
    assert_no_mistakes(&world);
}

/// Reports and short datagrams still arrive, and would suggest that all is well.
#[test]
fn a_path_for_short_datagrams_only_is_avoided_until_it_is_wider() {
    let world = connected(&standing(), |_| {});
    let (a, b) = (world.station(1, 0, MTU), world.station(2, 1, MTU));
    let ends = a.connect(&b, 5000);
    await_carrier(&world, Carrier::Udp);
    world.hosts.iter().for_each(|host| block_those(host, "meta length > 1000"));
    exchange(&ends, 1_000_000);
    await_carrier(&world, Carrier::Connection);
    go_on_over_connection(&world, &ends);
    world.hosts.iter().for_each(unblock);
    exchange(&ends, 100_000);
    await_carrier(&world, Carrier::Udp);
    assert_no_mistakes(&world);
}

#[test]
fn nothing_is_lost_when_udp_is_blocked_from_the_start() {
    let world = connected(&standing(), |hosts| hosts.iter().for_each(block));
    let (a, b) = (world.station(1, 0, MTU), world.station(2, 1, MTU));
    let (from, to) = (a.datagrams(6000), b.datagrams(6000));
    // The first frame finds its way.
    from.send_to(b"hello", (b.address.as_str(), 6000)).unwrap();
    assert_eq!(to.recv(&mut [0; 100]).unwrap(), 5);
    let ends = a.connect(&b, 5000);
    exchange(&ends, 5_000_000);
    go_on_over_connection(&world, &ends);
    assert_no_mistakes(&world);
}

#[test]
fn frames_of_any_length_cross_a_connection() {
    let world = connected(&standing(), |hosts| hosts.iter().for_each(block));
    let (a, b) = (world.station(1, 0, 65_000), world.station(2, 1, 65_000));
    let (from, to) = (a.datagrams(6000), b.datagrams(6000));
    for length in [0, 1, 1472, 9000, 64_000] {
        from.send_to(&vec![7; length], (b.address.as_str(), 6000)).unwrap();
        assert_eq!(to.recv(&mut [0; 65_535]).unwrap(), length);
    }
    exchange(&a.connect(&b, 5000), 5_000_000);
    assert_no_mistakes(&world);
}

#[test]
fn sessions_are_replaced_where_datagrams_are_blocked() {
    let world = connected(&standing(), |hosts| hosts.iter().for_each(block));
    let (a, b) = (world.station(1, 0, MTU), world.station(2, 1, MTU));
    let ends = a.connect(&b, 5000);
    for time in 1..=20 {
        let before = states(&world).map(|state| state.session);
        agree(&world, time, &standing());
        exchange(&ends, 100_000);
        let now = states(&world).map(|state| state.session);
        assert!(before[0] != now[0] && before[1] != now[1], "{before:?}, {now:?}");
    }
    assert_no_mistakes(&world);
}

#[test]
fn plain_frames_use_only_the_connection_of_their_session() {
    let (world, stands) = (World::apart(&[Offloads::ALL; 2], 1500), standing());
    world.hosts.iter().for_each(block);
    let [a, b] = &world.hosts[..] else { panic!("two hosts are there") };
    let connect = |from: &Host, to: &Host, session| {
        let agreed = |of: &Host, with: &Host| agreement(of.node, with.node, 0).own;
        let plain = PlainAgreement { own: agreed(from, to), theirs: agreed(to, from), kernel: false };
        from.plane.connect(to.node, path(&world, to, session, &stands), plain);
    };
    let session = agreement(a.node, b.node, 0).theirs;
    connect(b, a, agreement(a.node, b.node, 0).own);
    connect(a, b, session + 1);
    let (one, other) = (world.station(1, 0, MTU), world.station(2, 1, MTU));
    one.datagrams(6000).send_to(b"hello", (other.address.as_str(), 6000)).unwrap();
    let begun = Instant::now();
    while b.plane.counter(Counter::WrongAddress) == 0 {
        assert!(begun.elapsed() < LIMIT, "it is taken");
        thread::sleep(Duration::from_millis(5));
    }
    connect(a, b, session);
    connect(b, a, agreement(a.node, b.node, 0).own);
    exchange(&one.connect(&other, 5000), 1_000_000);
}

#[test]
fn a_connection_that_is_lost_is_not_used() {
    let stands = standing();
    let world = connected(&stands, |_| {});
    let (a, b) = (world.station(1, 0, MTU), world.station(2, 1, MTU));
    let ends = a.connect(&b, 5000);
    world.hosts.iter().for_each(block);
    await_carrier(&world, Carrier::Connection);
    stands.store(false, Ordering::Relaxed);
    assert_eq!(carriers(&world), [Carrier::Udp; 2]);
    world.hosts.iter().for_each(unblock);
    exchange(&ends, 1_000_000);
    assert_no_mistakes(&world);
}

#[test]
fn dropped_frames_are_counted_and_streams_adapt() {
    let world = connected(&standing(), |hosts| hosts.iter().for_each(block));
    let (a, b) = (world.station(1, 0, MTU), world.station(2, 1, MTU));
    let ends = a.connect(&b, 5000);
    let from = a.datagrams(6000);
    let begun = Instant::now();
    let refused = || world.hosts[0].plane.counter(Counter::NotSent);
    // More than any link takes.
    thread::scope(|scope| {
        let flood = || {
            while refused() == 0 {
                assert!(begun.elapsed() < LIMIT, "all finds room");
                let _ = from.send_to(&[7; 60_000], (b.address.as_str(), 6000));
            }
        };
        (0..4).for_each(|_| drop(scope.spawn(flood)));
    });
    exchange(&ends, 5_000_000);
    assert_no_mistakes(&world);
}
