//! One LAN that several ports of an overlay are on, as when somebody bridges what is joined already.
//!
//! All frames on the LAN come to all its ports but the one that they left. Frames go round then, between the LAN and the
//! overlay; the switches have to find out, and to leave just one of the ports open.

mod support;

use std::collections::VecDeque;
use std::time::Duration;

use fastrand::Rng;
use overlay::Mac;
use overlay::switch::{FloodRates, Frame, From, Limits, PortId, PortKind, Rate, Switch, To};
use overlay::topology::{NodeId, Topology, Version};
use support::{frame, mac};

/// What a hop takes, over a link or the LAN.
const HOP: Duration = Duration::from_millis(1);

/// What may be sent to many, so that a storm is short.
const RATE: Rate = Rate { frames: 50, bytes: 50 * 64 };

struct World {
    nodes: Vec<Switch>,
    /// The ports that are on the LAN.
    lan: Vec<(usize, PortId)>,
    now: Duration,
    /// Frames on their way, in the order in which they arrive.
    queue: VecDeque<(Duration, usize, From, Vec<u8>)>,
}

impl World {
    /// Some nodes in a mesh, each with an instance, and some ports on the LAN.
    fn new(rng: &mut Rng) -> Self {
        let count = rng.u16(1..6);
        let ids: Vec<_> = (0..count).map(NodeId).collect();
        let topology = Topology::mesh(Version(1), &ids).unwrap();
        let rates = FloodRates { unknown: RATE, broadcast: RATE };
        let limits = Limits { port_flood: rates, node_flood: rates, ..Limits::default() };
        let mut nodes: Vec<_> = ids.iter().map(|id| Switch::new(*id, rng.u64(..), limits)).collect();
        for (id, node) in ids.iter().zip(&mut nodes) {
            node.install(topology.routes(*id).unwrap()).unwrap();
            node.use_version(Version(1)).unwrap();
            node.attach(PortId(0), PortKind::Instance);
            for other in &ids {
                let port = (other == id).then_some(PortId(0));
                let entry = support::entry(other.0 as u8, *other, port, 0);
                node.commit(&entry, Duration::ZERO, &mut vec![]).unwrap();
            }
        }
        let mut lan = vec![];
        for port in 1..=rng.u16(2..6) {
            let node = rng.usize(..nodes.len());
            nodes[node].attach(PortId(port), PortKind::Lan);
            lan.push((node, PortId(port)));
        }
        Self { nodes, lan, now: Duration::ZERO, queue: VecDeque::new() }
    }

    fn emit(&mut self, node: usize, to: To, frame: &[u8]) {
        let at = self.now + HOP;
        match to {
            To::Link { neighbour, label } => {
                let from = From::Link { neighbour: NodeId(node as u16), label };
                self.queue.push_back((at, usize::from(neighbour.0), from, frame.to_vec()));
            }
            To::Port(port) if self.lan.contains(&(node, port)) => {
                for other in self.lan.iter().filter(|other| **other != (node, port)) {
                    self.queue.push_back((at, other.0, From::Port(other.1), frame.to_vec()));
                }
            }
            To::Port(_) => {}
        }
    }

    fn inject(&mut self, node: usize, from: From, frame: &[u8]) {
        let mut out = vec![];
        self.nodes[node].forward(from, Frame::whole(frame), self.now, &mut out);
        out.into_iter().for_each(|to| self.emit(node, to, frame));
    }

    /// Until `end`, with a look at the clock every second. Returns how many frames arrived anywhere.
    fn run(&mut self, end: Duration) -> usize {
        let mut arrivals = 0;
        while self.now < end {
            while let Some((_, node, from, frame)) = self.queue.pop_front_if(|next| next.0 <= self.now) {
                arrivals += 1;
                self.inject(node, from, &frame);
            }
            if self.now.subsec_millis() == 0 {
                self.tick();
            }
            self.now += HOP;
        }
        arrivals
    }

    fn tick(&mut self) {
        for node in 0..self.nodes.len() {
            let mut out = vec![];
            self.nodes[node].tick(self.now, &mut out);
            out.iter().for_each(|probe| self.emit(node, probe.to, &probe.bytes));
        }
    }

    /// The ports on the LAN that are not blocked.
    fn open(&self) -> Vec<(usize, PortId)> {
        let is_open = |(node, port): &&(usize, PortId)| {
            let ports = self.nodes[*node].state(self.now).ports;
            ports.iter().any(|state| state.port == *port && state.blocked.is_zero())
        };
        self.lan.iter().filter(is_open).copied().collect()
    }
}

/// Which port stays depends on the numbers of nodes and ports alone, so all agree.
fn lowest(lan: &[(usize, PortId)]) -> Vec<(usize, PortId)> {
    lan.iter().min().copied().into_iter().collect()
}

#[test]
fn of_all_ports_on_one_lan_the_lowest_stays_open() {
    for seed in 0..100 {
        let mut world = World::new(&mut Rng::with_seed(seed));
        world.run(Duration::from_millis(500));
        assert_eq!(world.open(), lowest(&world.lan), "seed {seed}");
        world.run(Duration::from_millis(6_500));
        assert_eq!(
            world.open(),
            lowest(&world.lan),
            "seed {seed}: the blocks end, and the loop is found again"
        );
    }
}

#[test]
fn a_storm_is_short() {
    for seed in 0..100 {
        let mut rng = Rng::with_seed(seed);
        let mut world = World::new(&mut rng);
        // The storm begins half a second before the next probes.
        world.now = Duration::from_millis(500);
        for number in 0..20 {
            let node = rng.usize(..world.nodes.len());
            let stranger = frame(Mac::BROADCAST, mac(100 + number));
            world.inject(node, From::Port(PortId(0)), &stranger);
        }
        let arrivals = world.run(Duration::from_millis(1_500));
        let places = (world.nodes.len() + world.lan.len()).pow(2);
        assert!(arrivals < places * 50 * 3, "seed {seed}: {arrivals} arrivals at {places}");
        assert_eq!(world.open(), lowest(&world.lan), "seed {seed}");
        world.run(Duration::from_millis(1_990));
        assert!(world.queue.is_empty(), "seed {seed}: frames still go round");
    }
}
