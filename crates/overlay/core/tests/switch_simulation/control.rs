//! The coordinator and the engines: topologies in two phases, and moves.

use std::collections::HashSet;
use std::rc::Rc;

use fabric::Epoch;
use overlay::switch::{Entry, PortKind};
use overlay::topology::{Link, NodeId, Topology, Version};

use super::Mode;
use super::world::{Event, World, id};

/// A command of the coordinator to a node.
#[derive(Clone)]
pub enum Message {
    /// A topology to know.
    Install(Rc<Topology>),
    /// A topology to use.
    Use(Version),
    /// Where a station is.
    Place(usize, Entry),
}

impl World {
    pub fn control(&mut self, event: Event) {
        match event {
            Event::Control(node, message) => self.hear(node, message),
            Event::Change => self.change(),
            Event::Use(version) => self.tell(|_| Message::Use(version)),
            Event::Move(station) => self.begin_move(station),
            Event::Pause(station) => self.pause(station),
            Event::Decide(station) => self.decide(station),
            Event::Resume(station) => self.resume(station),
            Event::Detach((node, port)) => self.nodes[node].detach(port),
            _ => unreachable!("it is the network's"),
        }
    }

    /// A message goes to all nodes: late, and where it is rough also twice.
    fn tell(&mut self, message: impl Fn(usize) -> Message) {
        let latest = if self.mode == Mode::Rough { 300_000 } else { 20_000 };
        for node in 0..self.nodes.len() {
            self.later(latest, Event::Control(node, message(node)));
            if self.mode == Mode::Rough && self.rng.bool() {
                self.later(latest, Event::Control(node, message(node)));
            }
        }
    }

    fn hear(&mut self, node: usize, message: Message) {
        match message {
            Message::Install(topology) => {
                let taken = self.nodes[node].install(topology.routes(id(node)).unwrap());
                assert!(taken.is_ok() || self.mode == Mode::Rough);
                let is_newest = self.topologies.last().is_some_and(|newest| Rc::ptr_eq(newest, &topology));
                if is_newest && self.waits_for.remove(&node) && self.waits_for.is_empty() {
                    self.at(self.now, Event::Use(topology.version()));
                }
            }
            Message::Use(version) => {
                let used = self.nodes[node].use_version(version);
                assert!(used.is_ok() || self.mode == Mode::Rough);
            }
            Message::Place(station, entry) => self.place(node, station, &entry),
        }
    }

    /// Lays out another topology. Where it is orderly it is used when all have it.
    fn change(&mut self) {
        if !self.goes_on() {
            return;
        }
        let topology = self.new_topology();
        self.tally.topologies += 1;
        self.tell(|_| Message::Install(Rc::clone(&topology)));
        if self.mode == Mode::Rough {
            self.later(300_000, Event::Use(topology.version()));
        } else {
            self.waits_for = (0..self.nodes.len()).collect();
        }
        let next = self.now + self.rng.u64(60_000..200_000);
        self.at(next, Event::Change);
    }

    pub fn new_topology(&mut self) -> Rc<Topology> {
        let version = Version(self.topologies.len() as u32 + 1);
        let nodes: Vec<_> = (0..self.nodes.len()).map(id).collect();
        let topology = match self.rng.u8(..6) {
            0 => Topology::star(version, nodes[self.rng.usize(..nodes.len())], &nodes),
            1 => Topology::mesh(version, &nodes),
            2 => Topology::hypercube(version, &nodes),
            _ => Topology::new(version, nodes.clone(), self.some_links(&nodes)),
        };
        let topology = Rc::new(topology.unwrap());
        self.topologies.push(Rc::clone(&topology));
        topology
    }

    /// A tree at random, so that all nodes can be reached, and some more links.
    fn some_links(&mut self, nodes: &[NodeId]) -> Vec<Link> {
        let mut links = vec![];
        for (at, a) in nodes.iter().enumerate().skip(1) {
            let parent = self.rng.usize(..at);
            for (other, b) in nodes[..at].iter().enumerate() {
                if other == parent || self.rng.f64() < 0.2 {
                    links.push(Link { a: *a, b: *b, cost: self.rng.u32(1..5) });
                }
            }
        }
        links
    }

    fn begin_move(&mut self, station: usize) {
        if !self.goes_on() {
            return;
        }
        let node = self.rng.usize(..self.nodes.len());
        let next = self.attach(node, PortKind::Instance);
        let (mac, epoch) = (self.stations[station].mac, self.stations[station].epoch);
        self.nodes[node].prepare(mac, next.1, Epoch(epoch + 1)).unwrap();
        self.stations[station].next = Some(next);
        self.tally.moves += 1;
        self.later(20_000, Event::Pause(station));
    }

    fn pause(&mut self, station: usize) {
        let (mac, node) = (self.stations[station].mac, self.stations[station].place.0);
        self.nodes[node].pause(mac).unwrap();
        self.stations[station].is_running = false;
        self.later(30_000, Event::Decide(station));
    }

    fn decide(&mut self, station: usize) {
        let next = self.stations[station].next.take().unwrap();
        if self.rng.u8(..5) == 0 {
            return self.roll_back(station, next);
        }
        let old = std::mem::replace(&mut self.stations[station].place, next);
        self.stations[station].epoch += 1;
        let nodes =
            if self.mode == Mode::Rough { HashSet::from([next.0]) } else { (0..self.nodes.len()).collect() };
        self.stations[station].waits_for = nodes;
        let entry = self.entry(station);
        // The node itself may have to find the port.
        let without_port = Entry { port: None, ..entry.clone() };
        let finds = self.rng.bool();
        self.tell(|_| Message::Place(station, if finds { without_port.clone() } else { entry.clone() }));
        self.at(self.now + 400_000, Event::Detach(old));
    }

    fn roll_back(&mut self, station: usize, next: (usize, overlay::switch::PortId)) {
        let (mac, node) = (self.stations[station].mac, self.stations[station].place.0);
        let (mut out, now) = (vec![], self.time());
        self.nodes[next.0].abort(mac, &mut out).unwrap();
        // A node that still has the earlier place may have sent to it.
        assert!(out.is_empty() || self.mode == Mode::Rough && next.0 != node);
        self.release(next.0, mac, &out);
        self.nodes[next.0].detach(next.1);
        out.clear();
        self.stations[station].is_running = true;
        self.nodes[node].unpause(mac, now, &mut out).unwrap();
        self.release(node, mac, &out);
        self.tally.rolled_back += 1;
        self.later(200_000, Event::Move(station));
    }

    fn place(&mut self, node: usize, station: usize, entry: &Entry) {
        let (mut out, now) = (vec![], self.time());
        let taken = self.nodes[node].commit(entry, now, &mut out);
        let is_newest = entry.epoch == Epoch(self.stations[station].epoch);
        assert!(taken.is_ok() || !is_newest, "{taken:?}");
        if taken == Ok(true) {
            self.release(node, entry.mac, &out);
        }
        let waits_for = &mut self.stations[station].waits_for;
        if is_newest && waits_for.remove(&node) && waits_for.is_empty() {
            self.later(20_000, Event::Resume(station));
        }
    }

    fn resume(&mut self, station: usize) {
        let (mac, node) = (self.stations[station].mac, self.stations[station].place.0);
        self.stations[station].is_running = true;
        let mut out = vec![];
        self.nodes[node].resume(mac, &mut out).unwrap();
        self.release(node, mac, &out);
        self.later(200_000, Event::Move(station));
    }
}
