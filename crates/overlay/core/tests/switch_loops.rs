//! One LAN with several ports of an overlay, as when an administrator bridges networks that are joined already.
//!
//! The LAN's own switch learns behind which of its plugs a MAC is, and floods frames for unknown MACs. Frames then go
//! round between the LAN and the overlay; the nodes must detect that, and leave just one of the ports open.

mod support;

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use fastrand::Rng;
use overlay::Mac;
use overlay::switch::{FloodRates, Frame, From, Limits, PortId, PortKind, Rate, Switch, To};
use overlay::topology::{NodeId, Topology, Version};
use support::{frame, mac};

/// The time of a hop, over a link or the LAN.
const HOP: Duration = Duration::from_millis(1);

const SECOND: Duration = Duration::from_secs(1);

/// How often nodes look at the clock.
const TICK: Duration = Duration::from_millis(100);

/// How long the LAN's switch remembers a MAC.
const AGE: Duration = Duration::from_secs(300);

/// The limit for frames to many, so that a storm is short.
const RATE: Rate = Rate { frames: 50, bytes: 50 * 64 };

/// The port of a node's own station.
const STATION: PortId = PortId(0);

/// The kinds of attachments to the LAN's switch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Plug {
    Proxy(usize, PortId),
    Machine(Mac),
}

/// The LAN's switch.
#[derive(Default)]
struct Lan {
    plugs: Vec<Plug>,
    places: HashMap<Mac, (Plug, Duration)>,
    /// Whether it keeps the nodes' own frames to itself, as one does that carries other VLANs only.
    swallows_probes: bool,
}

impl Lan {
    /// Where a frame goes that has come from `from`.
    fn carry(&mut self, from: Plug, frame: &[u8], now: Duration) -> Vec<Plug> {
        let (to, source) = (mac_at(frame, 0), mac_at(frame, 6));
        if self.swallows_probes && frame[12..14] == [0x88, 0xb5] {
            return vec![];
        }
        self.places.insert(source, (from, now));
        let known = self.places.get(&to).filter(|(_, seen)| now < *seen + AGE).map(|(plug, _)| *plug);
        let others = self.plugs.iter().copied().filter(|plug| *plug != from);
        others.filter(|plug| known.is_none_or(|known| known == *plug)).collect()
    }
}

fn mac_at(frame: &[u8], at: usize) -> Mac {
    Mac(frame[at..at + 6].try_into().unwrap())
}

/// Where a frame arrives.
#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    Node(usize, From),
    Lan(Plug),
    /// An attachment without a switch: a station, or a machine on the LAN.
    End(Mac),
}

struct World {
    nodes: Vec<Switch>,
    lan: Lan,
    now: Duration,
    /// Frames on their way, by when they arrive.
    queue: BTreeMap<Duration, Vec<(At, Vec<u8>)>>,
    stream: Option<Stream>,
}

impl World {
    /// Nodes as `topology` joins them, each with a station, and nothing on the LAN.
    fn of(topology: &Topology, rng: &mut Rng) -> Self {
        let rates = FloodRates { unknown: RATE, broadcast: RATE };
        let limits = Limits { port_flood: rates, node_flood: rates, ..Limits::default() };
        let ids = (0..topology.nodes().len() as u16).map(NodeId);
        let mut nodes: Vec<_> = ids.clone().map(|id| Switch::new(id, rng.u64(..), limits)).collect();
        for (id, node) in ids.clone().zip(&mut nodes) {
            node.install(topology.routes(id).unwrap()).unwrap();
            node.use_version(Version(1)).unwrap();
            node.attach(STATION, PortKind::Instance);
            for other in ids.clone() {
                let port = (other == id).then_some(STATION);
                let entry = support::entry(other.0 as u8, other, port, 0);
                node.commit(&entry, Duration::ZERO, &mut vec![]).unwrap();
            }
        }
        Self { nodes, lan: Lan::default(), now: Duration::ZERO, queue: BTreeMap::new(), stream: None }
    }

    /// Some nodes in a mesh, and some ports of such a kind on the LAN.
    fn random(rng: &mut Rng, kind: PortKind) -> Self {
        let ids: Vec<_> = (0..rng.u16(1..6)).map(NodeId).collect();
        let mut world = Self::of(&Topology::mesh(Version(1), &ids).unwrap(), rng);
        for port in 1..=rng.u16(2..6) {
            let node = rng.usize(..world.nodes.len());
            world.plug(node, PortId(port), kind);
        }
        world
    }

    /// Puts a port of `node` on the LAN.
    fn plug(&mut self, node: usize, port: PortId, kind: PortKind) {
        self.nodes[node].attach(port, kind);
        self.lan.plugs.push(Plug::Proxy(node, port));
    }

    fn send(&mut self, at: At, frame: &[u8]) {
        self.queue.entry(self.now + HOP).or_default().push((at, frame.to_vec()));
    }

    fn emit(&mut self, node: usize, to: To, frame: &[u8]) {
        let at = match to {
            To::Link { neighbour, label } => {
                At::Node(usize::from(neighbour.0), From::Link { neighbour: NodeId(node as u16), label })
            }
            To::Port(STATION) => At::End(mac(node as u8)),
            To::Port(port) => At::Lan(Plug::Proxy(node, port)),
        };
        self.send(at, frame);
    }

    fn inject(&mut self, node: usize, from: From, frame: &[u8]) {
        let mut out = vec![];
        self.nodes[node].forward(from, Frame::whole(frame), self.now, &mut out);
        out.into_iter().for_each(|to| self.emit(node, to, frame));
    }

    /// Lets the owner of the frame's source send it.
    fn say(&mut self, frame: &[u8]) {
        let source = mac_at(frame, 6);
        match usize::from(source.0[5]) {
            node if node < self.nodes.len() => self.inject(node, From::Port(STATION), frame),
            _ => self.send(At::Lan(Plug::Machine(source)), frame),
        }
    }

    fn arrive(&mut self, at: At, frame: &[u8]) {
        match at {
            At::Node(node, from) => self.inject(node, from, frame),
            At::Lan(from) => {
                for plug in self.lan.carry(from, frame, self.now) {
                    let at = match plug {
                        Plug::Proxy(node, port) => At::Node(node, From::Port(port)),
                        Plug::Machine(mac) => At::End(mac),
                    };
                    self.send(at, frame);
                }
            }
            At::End(mac) => {
                let heard = self.stream.as_mut().and_then(|stream| stream.hear(mac, frame, self.now));
                heard.into_iter().for_each(|answer| self.say(&answer));
            }
        }
    }

    /// Until `end`. Returns how many frames arrived at nodes.
    fn run(&mut self, end: Duration) -> usize {
        let mut arrivals = 0;
        while self.now < end {
            while let Some(due) = self.queue.first_entry().filter(|due| *due.key() <= self.now) {
                for (at, frame) in due.remove() {
                    arrivals += usize::from(matches!(at, At::Node(..)));
                    self.arrive(at, &frame);
                }
            }
            if self.now.subsec_nanos().is_multiple_of(TICK.subsec_nanos()) {
                (0..self.nodes.len()).for_each(|node| self.tick(node));
            }
            let due = self.stream.as_mut().and_then(|stream| stream.due(self.now));
            due.into_iter().for_each(|frame| self.say(&frame));
            self.now += HOP;
        }
        arrivals
    }

    fn tick(&mut self, node: usize) {
        let mut out = vec![];
        self.nodes[node].tick(self.now, &mut out);
        out.iter().for_each(|parcel| self.emit(node, parcel.to, &parcel.bytes));
    }

    /// The ports on the LAN that are not blocked.
    fn open(&self) -> Vec<Plug> {
        let is_open = |plug: &&Plug| {
            let Plug::Proxy(node, port) = **plug else { return false };
            let ports = self.nodes[node].state(self.now).ports;
            ports.iter().any(|state| state.port == port && state.blocked.is_zero())
        };
        self.lan.plugs.iter().filter(is_open).copied().collect()
    }

    /// How often a loop was found.
    fn loops(&self) -> u64 {
        let ports = self.nodes.iter().flat_map(|node| node.state(self.now).ports);
        ports.map(|port| port.loops).sum()
    }
}

/// Which port stays depends on the numbers of nodes and ports alone, so all agree.
fn lowest(lan: &Lan) -> Vec<Plug> {
    lan.plugs.iter().filter(|plug| matches!(plug, Plug::Proxy(..))).min().copied().into_iter().collect()
}

#[test]
fn of_all_ports_on_one_lan_the_lowest_stays_open() {
    for seed in 0..100 {
        let mut world = World::random(&mut Rng::with_seed(seed), PortKind::Lan);
        world.run(SECOND / 2);
        let loops = world.loops();
        for tenths in 5..200 {
            assert_eq!(world.open(), lowest(&world.lan), "seed {seed}, after {tenths} tenths of a second");
            world.run(SECOND * tenths / 10);
        }
        assert_eq!(world.loops(), loops, "seed {seed}: it is the same loop all the time");
    }
}

#[test]
fn a_storm_is_short() {
    for seed in 0..100 {
        let mut rng = Rng::with_seed(seed);
        let mut world = World::random(&mut rng, PortKind::Lan);
        // The storm begins half a second before the next probes.
        world.run(HOP);
        (world.lan.places, world.queue) = Default::default();
        world.now = SECOND / 2;
        for number in 0..20 {
            let node = rng.usize(..world.nodes.len());
            let stranger = frame(Mac::BROADCAST, mac(100 + number));
            world.inject(node, From::Port(STATION), &stranger);
        }
        let arrivals = world.run(SECOND * 3 / 2);
        let places = (world.nodes.len() + world.lan.plugs.len()).pow(2);
        assert!(arrivals < places * 50 * 3, "seed {seed}: {arrivals} arrivals at {places}");
        assert_eq!(world.open(), lowest(&world.lan), "seed {seed}");
        let at_rest = world.now + TICK - HOP * 10;
        world.run(at_rest);
        assert!(world.queue.is_empty(), "seed {seed}: frames still go round");
    }
}

/// As when devices of two stations are in one bridge. No node probes them before the looping frames show it.
#[test]
fn a_storm_between_instances_is_short_and_one_of_them_stays_open() {
    for seed in 0..100 {
        let mut rng = Rng::with_seed(seed);
        let mut world = World::random(&mut rng, PortKind::Instance);
        assert_eq!(world.run(SECOND * 3), 0, "seed {seed}: no station asks");
        for number in 0..20 {
            let node = rng.usize(..world.nodes.len());
            world.inject(node, From::Port(STATION), &frame(Mac::BROADCAST, mac(100 + number)));
        }
        world.run(SECOND * 6);
        let loops = world.loops();
        for tenths in 60..200 {
            assert_eq!(world.open(), lowest(&world.lan), "seed {seed}, after {tenths} tenths of a second");
            world.run(SECOND * tenths / 10);
        }
        assert_eq!(world.loops(), loops, "seed {seed}: it is the same loop all the time");
        let at_rest = world.now + TICK - HOP * 10;
        world.run(at_rest);
        assert!(world.queue.is_empty(), "seed {seed}: frames still go round");
    }
}

/// A stream between two that say nothing else once it runs: each frame is sent again until it is answered.
struct Stream {
    from: Mac,
    to: Mac,
    /// The present frame.
    number: u8,
    next: Duration,
    progress: Duration,
    /// The longest time without progress.
    longest: Duration,
}

impl Stream {
    /// How long the sender waits for an answer, and before the next frame.
    const AGAIN: Duration = Duration::from_millis(200);
    const PAUSE: Duration = Duration::from_millis(50);

    fn new(from: Mac, to: Mac, now: Duration) -> Self {
        Self { from, to, number: 0, next: now, progress: now, longest: Duration::ZERO }
    }

    /// The sender's present frame.
    fn due(&mut self, now: Duration) -> Option<Vec<u8>> {
        self.longest = self.longest.max(now - self.progress);
        if now < self.next {
            return None;
        }
        self.next = now + Self::AGAIN;
        Some(Self::frame(self.to, self.from, self.number))
    }

    /// The answer of `mac` to the frames that it has heard.
    fn hear(&mut self, mac: Mac, heard: &[u8], now: Duration) -> Option<Vec<u8>> {
        let number = *heard.last()?;
        if (mac_at(heard, 0), mac_at(heard, 6)) == (self.to, self.from) && mac == self.to {
            return Some(Self::frame(self.from, self.to, number));
        }
        if (mac_at(heard, 0), mac_at(heard, 6)) == (self.from, self.to)
            && mac == self.from
            && number == self.number
        {
            self.number = self.number.wrapping_add(1);
            (self.progress, self.next) = (now, now + Self::PAUSE);
        }
        None
    }

    fn frame(to: Mac, from: Mac, number: u8) -> Vec<u8> {
        let mut frame = frame(to, from);
        frame.push(number);
        frame
    }
}

/// A machine on the LAN.
const MACHINE: Mac = Mac([2, 0, 0, 0, 0, 200]);

/// Two nodes' ports on one LAN with a machine that has a stream to or from a station anywhere, and others that speak to all.
struct TwoProxies {
    world: World,
    lower: usize,
    higher: usize,
    station: usize,
}

impl TwoProxies {
    /// When the second port comes to the LAN.
    const BEGIN: Duration = Duration::from_secs(3);

    fn new(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let mut ids: Vec<_> = (0..rng.u16(2..6)).map(NodeId).collect();
        let center = *rng.choice(&ids).unwrap();
        let topology = match seed % 2 {
            0 => Topology::star(Version(1), center, &ids).unwrap(),
            _ => Topology::mesh(Version(1), &ids).unwrap(),
        };
        let mut world = World::of(&topology, &mut rng);
        rng.shuffle(&mut ids);
        let [a, b] = [usize::from(ids[0].0), usize::from(ids[1].0)];
        let station = usize::from(rng.choice(&ids).unwrap().0);
        world.lan.plugs = [MACHINE, mac(201)].map(Plug::Machine).to_vec();
        world.plug(a, PortId(1), PortKind::Lan);
        let (from, to) = match rng.bool() {
            true => (MACHINE, mac(station as u8)),
            false => (mac(station as u8), MACHINE),
        };
        world.stream = Some(Stream::new(from, to, Duration::ZERO));
        let mut two = Self { world, lower: a.min(b), higher: a.max(b), station };
        two.run(Self::BEGIN + HOP * rng.u32(..1000));
        two.world.plug(b, PortId(1), PortKind::Lan);
        // All places are learned where the loop shows them.
        for _ in 0..15 {
            two.say_to_all(&[mac(station as u8), MACHINE]);
            two.run(two.world.now + TICK);
        }
        two
    }

    fn say_to_all(&mut self, who: &[Mac]) {
        who.iter().for_each(|mac| self.world.say(&frame(Mac::BROADCAST, *mac)));
    }

    /// Until `end`, while others than the ends of the stream speak to all.
    fn run(&mut self, end: Duration) {
        while self.world.now < end {
            let others = (0..self.world.nodes.len()).filter(|node| *node != self.station);
            let others: Vec<_> = others.map(|node| mac(node as u8)).chain([mac(201)]).collect();
            self.say_to_all(&others);
            let next = self.world.now + SECOND * 3 / 10;
            self.world.run(next.min(end));
        }
    }

    /// Takes the longest time for which the stream has stood still.
    fn longest(&mut self) -> Duration {
        let stream = self.world.stream.as_mut().unwrap();
        std::mem::take(&mut stream.longest)
    }
}

#[test]
fn a_stream_stands_still_for_a_moment_while_one_of_two_proxies_is_blocked_and_never_again() {
    for seed in 0..100 {
        let mut two = TwoProxies::new(seed);
        two.run(TwoProxies::BEGIN + SECOND * 10);
        let longest = two.longest();
        assert!(longest < SECOND * 3, "seed {seed}: it stood still for {longest:?}");
        assert_eq!(two.world.open(), [Plug::Proxy(two.lower, PortId(1))], "seed {seed}");
        two.run(TwoProxies::BEGIN + SECOND * 60);
        let longest = two.longest();
        assert!(longest < SECOND / 2, "seed {seed}: it stood still again for {longest:?}");
        assert_eq!(two.world.loops(), 1, "seed {seed}");
    }
}

#[test]
fn the_blocked_proxy_takes_over_when_the_other_one_is_gone() {
    for seed in 0..100 {
        let mut two = TwoProxies::new(seed);
        two.run(TwoProxies::BEGIN + SECOND * 10);
        two.longest();
        two.world.nodes[two.lower].detach(PortId(1));
        two.run(TwoProxies::BEGIN + SECOND * 30);
        let longest = two.longest();
        assert!(longest < SECOND * 7, "seed {seed}: it stood still for {longest:?}");
        assert_eq!(two.world.open(), [Plug::Proxy(two.higher, PortId(1))], "seed {seed}");
    }
}

#[test]
fn one_of_two_proxies_is_blocked_even_if_probes_are_lost() {
    let mut agreed = 0;
    for seed in 0..100 {
        let mut two = TwoProxies::new(seed);
        two.world.lan.swallows_probes = true;
        // The blocked port opens first.
        let begin = two.world.now + SECOND * 6;
        two.run(begin);
        let mut open = (0..100).map(|tenths| {
            two.run(begin + SECOND * tenths / 10);
            two.world.open().len()
        });
        assert_eq!(open.next(), Some(2), "seed {seed}");
        let left = open.find(|open| *open < 2).unwrap_or_else(|| panic!("seed {seed}: the loop goes on"));
        agreed += left;
    }
    // Others have lost patience between the same two signs, and try again.
    assert!(agreed > 75, "{agreed}");
}
