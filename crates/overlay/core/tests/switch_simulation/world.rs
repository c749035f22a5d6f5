//! Nodes, stations and the links between them.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use fabric::Epoch;
use fastrand::Rng;
use overlay::Mac;
use overlay::switch::{
    Destination, Entry, Frame, From, Label, Limits, Origin, Parcel, PortId, PortKind, Switch, To, Verdict,
};
use overlay::topology::{NodeId, Topology, Version};

use super::Mode;
use super::control::Message;
use super::records::{Audience, Place, Records};
use super::short_cuts::Carrier;

/// Microseconds of virtual time in which stations send, and moves begin.
const RUN: u64 = 400_000;

/// The grace time of the switches; all messages are faster, and frames too.
const GRACE: Duration = Duration::from_millis(800);

/// The content of a station's frame.
const ETHERTYPE: [u8; 2] = [0x88, 0xb6];

/// The events in a world, or in many.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    pub frames: u64,
    pub moves: u64,
    pub rolled_back: u64,
    pub topologies: u64,
    pub sent_on: u64,
    pub held: u64,
    pub answered: u64,
    pub lost: u64,
    /// Frames that took a short cut, and the ones of them that the other node's switch had to decide on.
    pub short_cuts: u64,
    pub handed_over: u64,
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.frames += other.frames;
        self.moves += other.moves;
        self.rolled_back += other.rolled_back;
        self.topologies += other.topologies;
        self.sent_on += other.sent_on;
        self.held += other.held;
        self.answered += other.answered;
        self.lost += other.lost;
        self.short_cuts += other.short_cuts;
        self.handed_over += other.handed_over;
    }
}

/// The event at some time.
pub enum Event {
    /// A station sends something.
    Send(usize),
    /// A frame comes over a link.
    Arrive { node: usize, neighbour: usize, label: Label, frame: Rc<[u8]> },
    /// A frame comes by a short cut.
    ArriveShort { node: usize, neighbour: usize, frame: Rc<[u8]> },
    /// A message of the coordinator comes to a node.
    Control(usize, Message),
    /// The coordinator changes the topology.
    Change,
    /// It lets nodes use the one that it has laid out.
    Use(Version),
    /// A station begins to move.
    Move(usize),
    /// It is stopped.
    Pause(usize),
    /// Its move is committed or rolled back.
    Decide(usize),
    /// It runs again.
    Resume(usize),
    /// A port is not used any more.
    Detach(Place),
    /// A link is cut, or joined again.
    Cut(usize, usize, bool),
    /// A node looks at the clock.
    Tick(usize),
}

/// An event with its time and number, by which alone it is compared.
struct Due(u64, u64, Event);

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        (self.0, self.1) == (other.0, other.1)
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.0, self.1).cmp(&(other.0, other.1))
    }
}

/// A station, and where it truly is.
pub struct Station {
    pub mac: Mac,
    pub is_managed: bool,
    pub place: Place,
    pub is_running: bool,
    pub epoch: u64,
    /// Where it is going.
    pub next: Option<Place>,
    /// The nodes that do not know yet that it has moved.
    pub waits_for: HashSet<usize>,
}

pub struct World {
    pub mode: Mode,
    pub rng: Rng,
    pub now: u64,
    queue: BinaryHeap<Reverse<Due>>,
    numbers: u64,
    pub nodes: Vec<Switch>,
    /// The carrier of frames on short cuts, at each node.
    carriers: Vec<Carrier>,
    pub stations: Vec<Station>,
    pub topologies: Vec<Rc<Topology>>,
    /// The nodes that do not have the newest topology yet.
    pub waits_for: HashSet<usize>,
    next_port: u16,
    records: Records,
    /// When the last frame on a link arrives, where they stay in order.
    busy: HashMap<(usize, usize), u64>,
    cut: HashSet<(usize, usize)>,
    /// Pairs of askers and targets.
    asked: HashSet<(usize, usize)>,
    /// The frames that a node keeps for a MAC, in order.
    held: HashMap<(usize, Mac), Vec<u64>>,
    limits: Limits,
    loss: f64,
    pub tally: Tally,
}

impl World {
    pub fn new(seed: u64, mode: Mode) -> Self {
        let mut rng = Rng::with_seed(seed);
        let mut limits = Limits { grace: GRACE, ..Limits::default() };
        if mode == Mode::Rough {
            limits.learned = rng.usize(1..8);
            limits.kept_frames = rng.usize(1..32);
        }
        let loss = if mode == Mode::Rough { rng.f64() * 0.1 } else { 0.0 };
        let count = rng.usize(3..=8);
        let nodes: Vec<_> = (0..count).map(|node| Switch::new(id(node), rng.u64(..), limits)).collect();
        let mut world = Self {
            mode,
            rng,
            now: 0,
            queue: BinaryHeap::new(),
            numbers: 0,
            nodes,
            carriers: (0..count).map(|_| Carrier::default()).collect(),
            stations: vec![],
            topologies: vec![],
            waits_for: HashSet::new(),
            next_port: 0,
            records: Records::new(mode),
            busy: HashMap::new(),
            cut: HashSet::new(),
            asked: HashSet::new(),
            held: HashMap::new(),
            limits,
            loss,
            tally: Tally::default(),
        };
        world.settle();
        world.begin();
        world
    }

    /// All know the first topology and where all stations are.
    fn settle(&mut self) {
        let topology = self.new_topology();
        for (node, switch) in self.nodes.iter_mut().enumerate() {
            switch.install(topology.routes(id(node)).unwrap()).unwrap();
            switch.use_version(topology.version()).unwrap();
        }
        for node in 0..self.nodes.len() {
            for _ in 0..self.rng.usize(1..=2) {
                let place = self.attach(node, PortKind::Instance);
                self.add_station(place, true);
            }
            if self.rng.f64() < 0.3 {
                let place = self.attach(node, PortKind::Lan);
                (0..self.rng.usize(1..=3)).for_each(|_| self.add_station(place, false));
            }
        }
        for station in (0..self.stations.len()).filter(|at| self.stations[*at].is_managed).collect::<Vec<_>>()
        {
            let entry = self.entry(station);
            for switch in &mut self.nodes {
                assert_eq!(switch.commit(&entry, Duration::ZERO, &mut vec![]), Ok(true));
            }
        }
    }

    fn begin(&mut self) {
        for station in 0..self.stations.len() {
            self.later(20_000, Event::Send(station));
            if self.mode != Mode::Calm && self.stations[station].is_managed && self.rng.bool() {
                self.later(RUN / 2, Event::Move(station));
            }
        }
        for node in 0..self.nodes.len() {
            self.later(50_000, Event::Tick(node));
        }
        if self.mode != Mode::Calm {
            self.later(RUN / 2, Event::Change);
        }
        if self.mode == Mode::Rough && self.rng.bool() {
            for _ in 0..self.rng.usize(1..4) {
                let (a, b) = (self.rng.usize(..self.nodes.len()), self.rng.usize(..self.nodes.len()));
                self.later(RUN, Event::Cut(a, b, true));
            }
        }
    }

    fn add_station(&mut self, place: Place, is_managed: bool) {
        let number = self.stations.len() as u8;
        let mac = Mac([2, 0, 0, 0, u8::from(is_managed), number]);
        let waits_for = HashSet::new();
        let station = Station { mac, is_managed, place, is_running: true, epoch: 0, next: None, waits_for };
        self.stations.push(station);
    }

    pub fn attach(&mut self, node: usize, kind: PortKind) -> Place {
        self.next_port += 1;
        self.nodes[node].attach(PortId(self.next_port), kind);
        (node, PortId(self.next_port))
    }

    /// The coordinator's entry of a station.
    pub fn entry(&self, station: usize) -> Entry {
        let Station { mac, place: (node, port), epoch, .. } = self.stations[station];
        let addresses = vec![address(station)];
        Entry { mac, node: id(node), port: Some(port), epoch: Epoch(epoch), addresses }
    }

    /// Until nothing is under way any more.
    pub fn run(mut self) -> Tally {
        while let Some(Reverse(Due(at, _, event))) = self.queue.pop() {
            self.now = at;
            self.handle(event);
        }
        let ports: HashSet<_> = self.stations.iter().map(|station| station.place).collect();
        self.records.check_end(&ports.into_iter().collect::<Vec<_>>());
        self.tally
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Send(station) => self.send(station),
            Event::Arrive { node, neighbour, label, frame } => self.arrive(node, neighbour, label, &frame),
            Event::ArriveShort { node, neighbour, frame } => self.arrive_short(node, neighbour, &frame),
            Event::Cut(a, b, is_cut) => self.cut(a, b, is_cut),
            Event::Tick(node) => self.tick(node),
            control => self.control(control),
        }
    }

    /// Something happens up to `most` microseconds from now.
    pub fn later(&mut self, most: u64, event: Event) {
        let at = self.now + self.rng.u64(0..=most);
        self.at(at, event);
    }

    pub fn at(&mut self, at: u64, event: Event) {
        self.numbers += 1;
        self.queue.push(Reverse(Due(at, self.numbers, event)));
    }

    /// Whether new things begin.
    pub fn goes_on(&self) -> bool {
        self.now < RUN
    }

    pub fn time(&self) -> Duration {
        Duration::from_micros(self.now)
    }

    fn send(&mut self, station: usize) {
        if self.goes_on() {
            self.later(20_000, Event::Send(station));
        }
        if !self.stations[station].is_running {
            return;
        }
        let others = self.rng.usize(..self.stations.len());
        match self.rng.u8(..100) {
            0..15 => self.send_to(station, Audience::Everyone, Mac::BROADCAST),
            15..20 => self.ask_for(station, others),
            20..25 if self.mode == Mode::Rough => self.lie(station, others),
            _ if self.stations[others].place == self.stations[station].place => {}
            _ if self.stations[others].is_managed => {
                self.send_to(station, Audience::Managed(others), self.stations[others].mac);
            }
            _ => self.send_to(station, Audience::Learned(others), self.stations[others].mac),
        }
    }

    fn send_to(&mut self, station: usize, audience: Audience, to: Mac) {
        let Station { mac, place, .. } = self.stations[station];
        let id = self.records.send(station, place, audience);
        self.inject(place, &frame(to, mac, id));
    }

    /// A station says that it is another, managed one. Only instances do so; a LAN would be blocked.
    fn lie(&mut self, station: usize, other: usize) {
        let (place, other) = (self.stations[station].place, &self.stations[other]);
        if !self.stations[station].is_managed || !other.is_managed || other.place.0 == place.0 {
            return;
        }
        let (source, to) = (other.mac, self.stations[self.rng.usize(..self.stations.len())].mac);
        let id = self.records.send(station, place, Audience::Nobody);
        self.inject(place, &frame(to, source, id));
    }

    /// A station asks for the MAC of a managed one, and gets it from its own node, unless it asks again.
    fn ask_for(&mut self, station: usize, other: usize) {
        let Station { mac, place, .. } = self.stations[station];
        let (target, is_elsewhere) = (&self.stations[other], self.stations[other].place != place);
        if !target.is_managed || !is_elsewhere {
            return;
        }
        let (answer, IpAddr::V4(asked)) = (target.mac, address(other)) else { return };
        let mut request = [Mac::BROADCAST.0, mac.0].concat();
        request.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
        request.extend(mac.0);
        request.extend([10, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
        request.extend(asked.octets());
        let verdict = self.inject(place, &request);
        let is_first = self.asked.insert((station, other));
        match verdict {
            Verdict::Answered(reply) => assert_eq!(reply[6..12], answer.0),
            _ => assert!(!is_first, "{verdict:?}"),
        }
        self.tally.answered += u64::from(is_first);
    }

    fn inject(&mut self, place: Place, frame: &[u8]) -> Verdict {
        self.tally.frames += 1;
        if let Some(node) = self.carriers[place.0].way(&mut self.nodes[place.0], place.1, frame)
            && self.mode.takes_short_cut(&mut self.rng)
        {
            self.send_short(place.0, usize::from(node.0), frame);
            return Verdict::Forwarded;
        }
        self.forward(place.0, From::Port(place.1), frame)
    }

    fn arrive(&mut self, node: usize, neighbour: usize, label: Label, frame: &[u8]) {
        let forwarded = matches!(label.to, Destination::Forwarded(_));
        if let Some(id) = number(frame) {
            self.records.visit(id, node, forwarded);
        }
        self.tally.sent_on += u64::from(label.to == Destination::Forwarded(id(node)));
        self.forward(node, From::Link { neighbour: id(neighbour), label }, frame);
    }

    fn forward(&mut self, node: usize, from: From, frame: &[u8]) -> Verdict {
        let (mut out, now) = (vec![], self.time());
        let verdict = self.nodes[node].forward(from, Frame::whole(frame), now, &mut out);
        if verdict == Verdict::Held
            && let Some(id) = number(frame)
        {
            self.tally.held += 1;
            let mac = Mac(*frame.first_chunk().unwrap());
            let held = self.held.entry((node, mac)).or_default();
            held.push(id);
            assert!(held.len() <= 2 * self.limits.kept_frames);
        }
        for to in out {
            self.emit(node, to, frame);
        }
        verdict
    }

    /// The frames kept at `node` for `mac` are released. They come in the order in which they were kept, and, if they go to the
    /// port, all of them.
    pub fn release(&mut self, node: usize, mac: Mac, parcels: &[Parcel]) {
        let held = self.held.remove(&(node, mac)).unwrap_or_default();
        let released: Vec<_> = parcels.iter().filter_map(|parcel| number(&parcel.bytes)).collect();
        let mut rest = held.iter();
        let in_order = released.iter().all(|id| rest.any(|held| held == id));
        assert!(in_order, "kept {held:?}, released {released:?}");
        let to_port = parcels.iter().any(|parcel| matches!(parcel.to, To::Port(_)));
        assert!(!to_port || self.mode == Mode::Rough || released == held);
        if self.kept(node, mac) > 0 {
            let rest = held.into_iter().filter(|id| !released.contains(id)).collect();
            self.held.insert((node, mac), rest);
        }
        for parcel in parcels {
            self.emit(node, parcel.to, &parcel.bytes);
        }
    }

    /// How much a node says that it keeps for `mac`.
    pub fn kept(&self, node: usize, mac: Mac) -> usize {
        let macs = self.nodes[node].macs(self.time()).into_iter();
        let kept = macs.filter(|state| state.mac == mac).map(|state| match state.origin {
            Origin::Managed { kept, .. } => kept,
            Origin::Learned { .. } => 0,
        });
        kept.sum()
    }

    /// A frame leaves a node.
    fn emit(&mut self, node: usize, to: To, frame: &[u8]) {
        match to {
            To::Port(port) => self.deliver((node, port), frame),
            To::Link { neighbour, label } => self.transmit(node, usize::from(neighbour.0), label, frame),
        }
    }

    fn deliver(&mut self, place: Place, frame: &[u8]) {
        let Some(id) = number(frame) else { return };
        let here = |station: &&Station| station.place == place && station.is_running;
        let running = self.stations.iter().position(|station| station.is_managed && here(&station));
        self.records.deliver(id, place, running);
        for station in 0..self.stations.len() {
            if here(&&self.stations[station]) {
                self.records.arrive(id, station);
            }
        }
    }

    fn transmit(&mut self, from: usize, to: usize, label: Label, frame: &[u8]) {
        self.check_link(from, to, label.version);
        assert!(usize::from(label.hops) < self.nodes.len());
        assert_eq!(Label::decode(&label.encode()), Ok((label, &[][..])));
        if self.cut.contains(&(from, to)) || self.rng.f64() < self.loss {
            self.tally.lost += 1;
            return;
        }
        let at = self.arrival(from, to);
        let arrive = Event::Arrive { node: to, neighbour: from, label, frame: frame.into() };
        self.at(at, arrive);
    }

    /// A frame takes a short cut.
    fn send_short(&mut self, from: usize, to: usize, frame: &[u8]) {
        self.tally.short_cuts += 1;
        let version = self.nodes[from].state(self.time()).version;
        self.check_link(from, to, version.unwrap());
        if self.cut.contains(&(from, to)) || self.rng.f64() < self.loss {
            self.tally.lost += 1;
            return;
        }
        let at = self.arrival(from, to);
        self.at(at, Event::ArriveShort { node: to, neighbour: from, frame: frame.into() });
    }

    fn arrive_short(&mut self, node: usize, neighbour: usize, frame: &[u8]) {
        if let Some(id) = number(frame) {
            self.records.visit(id, node, false);
        }
        match self.carriers[node].port(&mut self.nodes[node], id(neighbour), frame) {
            Some(port) => self.deliver((node, port), frame),
            None => {
                self.tally.handed_over += 1;
                self.forward(node, From::ShortCut(id(neighbour)), frame);
            }
        }
    }

    /// Two nodes have to be linked to send to each other.
    fn check_link(&self, from: usize, to: usize, version: Version) {
        let topology = self.topologies.iter().find(|topology| topology.version() == version).unwrap();
        let joins = |link: &overlay::topology::Link| {
            [(link.a, link.b), (link.b, link.a)].contains(&(id(from), id(to)))
        };
        assert!(topology.links().iter().any(joins), "no link {from} {to}");
    }

    /// The arrival time of a message that is sent now.
    fn arrival(&mut self, from: usize, to: usize) -> u64 {
        let most = if self.mode == Mode::Rough && self.rng.f64() < 0.05 { 50_000 } else { 2_000 };
        let at = self.now + self.rng.u64(20..=most);
        if self.mode != Mode::Calm {
            return at;
        }
        let last = self.busy.entry((from, to)).or_default();
        *last = at.max(*last + 1);
        *last
    }

    fn cut(&mut self, a: usize, b: usize, is_cut: bool) {
        for link in [(a, b), (b, a)] {
            if is_cut {
                self.cut.insert(link)
            } else {
                self.cut.remove(&link)
            };
        }
        if is_cut {
            self.later(RUN / 2, Event::Cut(a, b, false));
        }
    }

    fn tick(&mut self, node: usize) {
        let mut out = vec![];
        let now = self.time();
        self.nodes[node].tick(now, &mut out);
        out.iter().for_each(|probe| self.emit(node, probe.to, &probe.bytes));
        let state = self.nodes[node].state(now);
        let macs = self.nodes[node].macs(now);
        let learned = macs.iter().filter(|mac| matches!(mac.origin, Origin::Learned { .. })).count();
        assert!(learned <= self.limits.learned && state.versions.len() <= 5);
        assert!(state.ports.iter().all(|port| port.blocked.is_zero()), "no loop");
        if self.goes_on() {
            self.later(100_000, Event::Tick(node));
        }
    }
}

pub fn id(node: usize) -> NodeId {
    NodeId(node as u16)
}

fn address(station: usize) -> IpAddr {
    IpAddr::from([10, 0, 0, station as u8])
}

fn frame(to: Mac, from: Mac, id: u64) -> Vec<u8> {
    [&to.0[..], &from.0[..], &ETHERTYPE[..], &id.to_be_bytes()[..]].concat()
}

/// The number of a station's frame; questions and probes have none.
fn number(frame: &[u8]) -> Option<u64> {
    (frame[12..14] == ETHERTYPE).then(|| u64::from_be_bytes(frame[14..22].try_into().unwrap()))
}
