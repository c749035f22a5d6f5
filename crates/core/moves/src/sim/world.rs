//! The parties, the messages between them, and the actions.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use fabric::{Epoch, FabricId, Vid};

use super::engine::{Copy, CopyState, Effect, Engine, Images, UnderWay};
use super::shared::Shared;
use super::{Sabotage, Tally};
use crate::coordinator::{self, MoveRequest, SavedInstance};
use crate::due::Due;
use crate::entry::{Entry, Role};
use crate::journal::{Exit, Instance, Snapshot};
use crate::node::{self, Operation, Outcome};
use crate::placement::Placement;
use crate::protocol::{Directive, ToCoordinator, ToNode};
use crate::{Coordinator, HostName, MoveId, NodeAgent, Side};

/// The whole simulated system.
#[derive(Clone, Debug, Hash)]
pub(super) struct World {
    pub(super) now: Due,
    pub(super) sabotage: Sabotage,
    pub(super) coordinator: Option<Shared<Coordinator>>,
    /// The coordinator's durable state.
    pub(super) store: Shared<Snapshot>,
    pub(super) nodes: Vec<Shared<Node>>,
    pub(super) network: BTreeSet<Envelope>,
    pub(super) vids: Vec<Vid>,
    /// Instances whose program has exited by itself.
    pub(super) ended: BTreeSet<Vid>,
    /// The moves of each group, with each decision so far: true if committed.
    pub(super) groups: Vec<BTreeMap<MoveId, Option<bool>>>,
    /// Directories with complete images of an instance.
    pub(super) written: BTreeSet<String>,
    /// The last checkpoint of each instance.
    pub(super) saved: BTreeMap<Vid, String>,
    pub(super) violation: Option<String>,
    /// The next party that acts crashes after this many of its outputs.
    pub(super) crash_after: Option<usize>,
    pub(super) tally: Tally,
}

/// A host.
#[derive(Clone, Debug, Hash)]
pub(super) struct Node {
    pub(super) name: HostName,
    pub(super) agent: Option<NodeAgent>,
    /// The node's durable state.
    pub(super) disk: BTreeMap<Vid, Entry>,
    pub(super) linked: bool,
    pub(super) engine: Engine,
    /// Instances that a library of this host waits for.
    pub(super) waiting: BTreeSet<Vid>,
}

/// A message in flight.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Envelope {
    ToNode { to: usize, message: ToNode },
    ToCoordinator { from: usize, message: ToCoordinator },
}

/// An action. Nodes are identified by their index in [`World::nodes`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Deliver {
        envelope: Envelope,
        again: bool,
    },
    Lose(Envelope),
    Finish {
        node: usize,
        vid: Vid,
        well: bool,
    },
    /// `done`: operations in progress have taken effect, but their outcome is lost.
    CrashNode {
        node: usize,
        done: bool,
    },
    RestartNode(usize),
    CrashCoordinator,
    RestartCoordinator,
    /// Every operation in progress fails, and held copies die.
    CrashEngine(usize),
    Cut(usize),
    Connect(usize),
    TickNode(usize),
    TickCoordinator,
    /// All deadlines expire.
    Expire,
    Exit {
        node: usize,
        vid: Vid,
    },
    /// A stopped copy dies that a running copy still needs.
    LoseMemory {
        node: usize,
        vid: Vid,
    },
    Locate {
        node: usize,
        vid: Vid,
    },
    Begin(MoveRequest),
    BeginTogether(BTreeMap<Vid, HostName>),
    /// Save these instances.
    Save(BTreeSet<Vid>),
    /// Restore these instances from their last checkpoints.
    Restore(BTreeMap<Vid, HostName>),
    Cancel(MoveId),
}

/// Short intervals, so that deadlines expire within a run.
const NODE: node::Config =
    node::Config { repeat: Duration::from_millis(80), retry: Duration::from_millis(40) };
const COORDINATOR: coordinator::Config = coordinator::Config {
    repeat: Duration::from_millis(100),
    prepare: Duration::from_millis(800),
    suspend: Duration::from_millis(400),
    transfer: Duration::from_millis(800),
    restore: Duration::from_millis(800),
    unreachable: Duration::from_millis(200),
    max_moves: 256,
};

impl World {
    /// `hosts` nodes with `instances` running instances; all are connected.
    pub(super) fn new(hosts: usize, instances: usize, sabotage: Sabotage) -> Self {
        let vids: Vec<Vid> = (1..=instances).filter_map(|lid| Vid::new(lid as u16)).collect();
        let (coordinator, _) = Coordinator::new(COORDINATOR, Snapshot::default(), Duration::ZERO);
        let mut world = Self {
            now: Due(Duration::ZERO),
            sabotage,
            coordinator: Some(Shared::new(coordinator)),
            store: Shared::new(Snapshot::default()),
            nodes: (0..hosts).map(Node::new).map(Shared::new).collect(),
            network: BTreeSet::new(),
            vids: vids.clone(),
            ended: BTreeSet::new(),
            groups: Vec::new(),
            written: BTreeSet::new(),
            saved: BTreeMap::new(),
            violation: None,
            crash_after: None,
            tally: Tally::default(),
        };
        for (place, vid) in vids.into_iter().enumerate() {
            world.start_instance(vid, place % hosts);
        }
        for node in 0..hosts {
            world.perform(&Action::Connect(node));
        }
        world
    }

    fn start_instance(&mut self, vid: Vid, node: usize) {
        let host = self.nodes[node].name.clone();
        let added = self.coordinator.as_mut().map(|it| it.add_instance(vid, instance(vid, host)));
        self.coordinator_does(added.and_then(Result::ok).unwrap_or_default());
        let agent = self.nodes[node].agent.as_mut();
        let entered = agent.map(|agent| agent.host_instance(vid, Epoch(0)));
        self.node_does(node, entered.and_then(Result::ok).unwrap_or_default());
        let copy = Copy { state: CopyState::Running, stale: false, lacks: false };
        self.nodes[node].engine.copies.insert(vid, copy);
    }

    /// Performs `action`; a violated invariant is then in [`World::violation`].
    pub(super) fn perform(&mut self, action: &Action) {
        self.tally.steps += 1;
        match action {
            Action::Deliver { envelope, again } => self.deliver(envelope, *again),
            Action::Lose(envelope) => {
                self.tally.lost += 1;
                self.network.remove(envelope);
            }
            Action::Finish { node, vid, well } => self.finish(*node, *vid, *well),
            Action::CrashNode { node, done } => self.crash_node(*node, *done),
            Action::RestartNode(node) => self.restart_node(*node),
            Action::CrashCoordinator => self.crash_coordinator(),
            Action::RestartCoordinator => self.restart_coordinator(),
            Action::CrashEngine(node) => self.crash_engine(*node),
            Action::Cut(node) => self.cut(*node),
            Action::Connect(node) => self.connect(*node),
            Action::TickNode(node) => self.tick_node(*node),
            Action::TickCoordinator => self.tell_coordinator(coordinator::Input::Tick),
            Action::Expire => {
                self.now = Due::after(self.now.0, Duration::from_secs(86_400));
                self.tell_coordinator(coordinator::Input::Tick);
            }
            Action::Exit { node, vid } => self.exit(*node, *vid),
            Action::LoseMemory { node, vid } => {
                self.tally.bereft += 1;
                self.nodes[*node].engine.copies.remove(vid);
                self.ended.insert(*vid);
            }
            Action::Locate { node, vid } => self.locate(*node, *vid),
            Action::Begin(request) => self.begin(request),
            Action::BeginTogether(destinations) => {
                let sides = destinations.iter().map(|(vid, host)| (*vid, host.clone().into()));
                self.begin_together(sides.collect());
            }
            Action::Save(vids) => {
                let images = |vid: &Vid| Side::Images(format!("{vid} at {}", self.tally.steps));
                self.begin_together(vids.iter().map(|vid| (*vid, images(vid))).collect());
            }
            Action::Restore(hosts) => self.restore(hosts),
            Action::Cancel(id) => {
                let cancelled = self
                    .coordinator
                    .as_mut()
                    .and_then(|c| c.cancel(*id, "cancelled".into(), self.now.0).ok());
                self.coordinator_does(cancelled.unwrap_or_default());
            }
        }
        self.check();
    }

    pub(super) fn can_deliver(&self, envelope: &Envelope) -> bool {
        match envelope {
            Envelope::ToNode { to, .. } => self.nodes[*to].linked,
            Envelope::ToCoordinator { from, .. } => self.nodes[*from].linked,
        }
    }

    /// Instances whose program can exit by itself.
    pub(super) fn can_exit(&self) -> Vec<(usize, Vid)> {
        let mut found = Vec::new();
        for (place, node) in self.nodes.iter().enumerate() {
            let alive = |copy: &Copy| matches!(copy.state, CopyState::Running | CopyState::Suspended);
            let copies = node.engine.copies.iter().filter(|(_, copy)| alive(copy));
            found.extend(copies.map(|(vid, _)| (place, *vid)));
        }
        found
    }

    /// A move of the first instance that would be admitted now, to the first host where it is not.
    pub(super) fn next_move(&self) -> Option<MoveRequest> {
        let vid = *self.vids.first()?;
        let place = &self.store.instances.get(&vid)?.host;
        let destination = self.nodes.iter().map(|node| &node.name).find(|name| *name != place)?.clone();
        let request = MoveRequest { vid, destination, dry_run: false, post_copy: false };
        self.coordinator.clone()?.begin(request.clone(), self.now.0).ok()?;
        Some(request)
    }

    fn deliver(&mut self, envelope: &Envelope, again: bool) {
        if !again {
            self.network.remove(envelope);
        }
        match envelope.clone() {
            Envelope::ToNode { to, message } => self.tell_node(to, node::Input::Message(message)),
            Envelope::ToCoordinator { from, message } => {
                let from = self.nodes[from].name.clone();
                self.tell_coordinator(coordinator::Input::Message { from, message });
            }
        }
    }

    fn finish(&mut self, node: usize, vid: Vid, well: bool) {
        let Some(UnderWay { operation, cancelled }) = self.nodes[node].engine.under_way.remove(&vid) else {
            return;
        };
        let outcome = if well && self.can_succeed(node, vid, &operation) {
            self.succeed(node, vid, &operation)
        } else if cancelled {
            Outcome::Failed { reason: "it was cancelled".into() }
        } else {
            self.nodes[node].engine.fail(vid, &operation)
        };
        self.tell_node(node, node::Input::Ended { vid, outcome });
    }

    /// Whether `operation` can succeed now: some operations depend on another host.
    pub(super) fn can_succeed(&self, node: usize, vid: Vid, operation: &Operation) -> bool {
        let serves =
            |source: &HostName| self.nodes.iter().any(|node| node.name == *source && node.serves(vid));
        match operation {
            Operation::Fetch { source, .. } => serves(source),
            _ => self.nodes[node].engine.can_succeed(vid, operation),
        }
    }

    /// Stopped copies with memory that a running copy still lacks.
    pub(super) fn needed(&self) -> Vec<(usize, Vid)> {
        let lacks = |vid: &Vid| self.nodes.iter().any(|node| node.engine.lacks(*vid));
        let stopped = |node: &Node, vid: &Vid| node.copy_is(*vid, CopyState::Stopped);
        let places = self.nodes.iter().enumerate();
        let needed = places.flat_map(|(place, node)| {
            let vids = self.vids.iter().filter(move |vid| stopped(node, vid));
            vids.map(move |vid| (place, *vid))
        });
        needed.filter(|(_, vid)| lacks(vid)).collect()
    }

    /// The missing memory arrives from the stopped copy, or is lost.
    fn fetch(&mut self, node: usize, vid: Vid, source: &HostName) -> Outcome {
        let is_there =
            self.nodes.iter().any(|node| node.name == *source && node.copy_is(vid, CopyState::Stopped));
        if !is_there && !self.ended.contains(&vid) {
            self.violated(format!("the memory of {vid} on {source} does not exist"));
        }
        if is_there {
            if let Some(copy) = self.nodes[node].engine.copies.get_mut(&vid) {
                copy.lacks = false;
            }
            self.tally.fetched += 1;
            return Outcome::Done;
        }
        let exit = Exit::Lost { reason: "its memory is lost".into() };
        let engine = &mut self.nodes[node].engine;
        engine.copies.remove(&vid);
        engine.exits.insert(vid, exit.clone());
        Outcome::Gone { exit }
    }

    fn succeed(&mut self, node: usize, vid: Vid, operation: &Operation) -> Outcome {
        let (outcome, effect) = self.nodes[node].engine.succeed(vid, operation);
        match (effect, operation) {
            (Effect::Runs(outcome), _) => {
                self.runs(node, vid, operation);
                return outcome;
            }
            (Effect::Copies, Operation::Precopy { id, destination, .. }) => {
                if self.receiving(destination, vid, *id).is_none() {
                    return Outcome::Failed { reason: "the destination does not accept the memory".into() };
                }
                if self.sabotage != Sabotage::MemoryIsNotSent {
                    self.nodes[node].engine.copied.insert(vid, *id);
                }
            }
            (Effect::Sends, Operation::Send { destination: Side::Images(directory), .. })
                if self.sabotage != Sabotage::ImagesAreNotWritten =>
            {
                self.written.insert(directory.clone());
            }
            (Effect::Sends, Operation::Send { id, destination: Side::Host(destination) }) => {
                let stale = self.nodes[node].engine.copies.get(&vid).is_some_and(|copy| copy.stale);
                if !self.images_arrive(destination, vid, *id, stale) {
                    return Outcome::Failed { reason: "the destination does not accept the images".into() };
                }
            }
            (Effect::Fetches, Operation::Fetch { source, .. }) => return self.fetch(node, vid, source),
            (Effect::Destroys(id), _) => self.check_destroyed(id),
            _ => {}
        }
        outcome
    }

    fn images_arrive(&mut self, destination: &HostName, vid: Vid, id: MoveId, stale: bool) -> bool {
        let lack = self.store.moves.get(&id).is_some_and(|record| record.post_copy);
        let Some(node) = self.receiving(destination, vid, id) else { return false };
        node.engine.images.insert(vid, Images { id, stale, lack, released: false });
        true
    }

    /// The destination, if it is receiving memory and images.
    fn receiving(&mut self, destination: &HostName, vid: Vid, id: MoveId) -> Option<&mut Node> {
        let node = self.nodes.iter_mut().find(|node| node.name == *destination)?;
        let receives = |under_way: &UnderWay| under_way.operation == Operation::Receive { id };
        node.engine.under_way.get(&vid).is_some_and(receives).then_some(node)
    }

    /// A copy begins to run: all other copies are stale from now on.
    fn runs(&mut self, node: usize, vid: Vid, operation: &Operation) {
        self.check_may_run(node, vid, operation);
        for (place, other) in self.nodes.iter_mut().enumerate() {
            if let Some(images) = other.engine.images.get_mut(&vid) {
                images.stale = true;
            }
            if let Some(copy) = other.engine.copies.get_mut(&vid) {
                if place == node {
                    copy.state = CopyState::Running;
                } else {
                    copy.stale = true;
                }
            }
        }
    }

    fn exit(&mut self, node: usize, vid: Vid) {
        let exit = Exit::Code(0);
        self.nodes[node].engine.copies.remove(&vid);
        self.nodes[node].engine.exits.insert(vid, exit.clone());
        self.ended.insert(vid);
        self.tell_node(node, node::Input::Exited { vid, exit });
    }

    fn crash_engine(&mut self, node: usize) {
        self.tally.crashes += 1;
        for vid in self.nodes[node].engine.under_way.keys().copied().collect::<Vec<_>>() {
            self.finish(node, vid, false);
        }
        for vid in self.vids.clone() {
            let before = self.nodes[node].engine.copies.len();
            self.nodes[node].engine.lose_held(vid);
            if self.nodes[node].engine.copies.len() < before {
                let exit = Exit::Lost { reason: "killed".into() };
                self.tell_node(node, node::Input::Exited { vid, exit });
            }
        }
    }

    pub(super) fn crash_node(&mut self, node: usize, done: bool) {
        self.tally.crashes += 1;
        self.nodes[node].agent = None;
        self.cut(node);
        let under_way = std::mem::take(&mut self.nodes[node].engine.under_way);
        for (vid, UnderWay { operation, .. }) in under_way {
            if done && self.can_succeed(node, vid, &operation) {
                self.succeed(node, vid, &operation);
            } else {
                self.nodes[node].engine.fail(vid, &operation);
            }
        }
        self.nodes[node].engine.copied.clear();
    }

    fn restart_node(&mut self, node: usize) {
        let (name, disk) = (self.nodes[node].name.clone(), self.nodes[node].disk.clone());
        let (agent, out) = NodeAgent::new(name, NODE, disk, self.now.0);
        self.nodes[node].agent = Some(agent);
        self.node_does(node, out);
        for vid in self.nodes[node].waiting.clone() {
            self.locate(node, vid);
        }
    }

    pub(super) fn crash_coordinator(&mut self) {
        self.tally.crashes += 1;
        self.coordinator = None;
        for node in 0..self.nodes.len() {
            self.cut(node);
        }
    }

    fn restart_coordinator(&mut self) {
        let (coordinator, out) = Coordinator::new(COORDINATOR, (*self.store).clone(), self.now.0);
        self.coordinator = Some(Shared::new(coordinator));
        self.coordinator_does(out);
    }

    fn cut(&mut self, node: usize) {
        if !std::mem::replace(&mut self.nodes[node].linked, false) {
            return;
        }
        let name = self.nodes[node].name.clone();
        self.tell_coordinator(coordinator::Input::LinkDown(name));
        self.tell_node(node, node::Input::LinkDown);
    }

    fn connect(&mut self, node: usize) {
        self.nodes[node].linked = true;
        let name = self.nodes[node].name.clone();
        self.tell_coordinator(coordinator::Input::LinkUp(name));
        self.tell_node(node, node::Input::LinkUp);
    }

    fn tick_node(&mut self, node: usize) {
        if self.sabotage == Sabotage::SourceResumesOnTimeOut {
            for (vid, entry) in self.nodes[node].disk.clone() {
                if let Role::Source { id, .. } = entry.role {
                    let directive = Directive::RollBack;
                    self.tell_node(node, node::Input::Message(ToNode::Move { id, vid, directive }));
                }
            }
        }
        self.tell_node(node, node::Input::Tick);
    }

    fn locate(&mut self, node: usize, vid: Vid) {
        self.nodes[node].waiting.insert(vid);
        let now = self.now.0;
        let out = self.nodes[node].agent.as_mut().map(|agent| agent.locate(vid, now));
        self.node_does(node, out.unwrap_or_default());
    }

    fn begin(&mut self, request: &MoveRequest) {
        let begun = self.coordinator.as_mut().and_then(|c| c.begin(request.clone(), self.now.0).ok());
        if let Some((_, out)) = begun {
            self.tally.begun += 1;
            self.coordinator_does(out);
        }
    }

    fn begin_together(&mut self, destinations: BTreeMap<Vid, Side>) {
        let now = self.now.0;
        let begun = self.coordinator.as_mut().and_then(|c| c.begin_together(destinations, now).ok());
        self.begun_together(begun);
    }

    fn restore(&mut self, hosts: &BTreeMap<Vid, HostName>) {
        let saved = |(vid, host): (&Vid, &HostName)| {
            let (images, instance) = (self.saved.get(vid)?.clone(), instance(*vid, host.clone()));
            Some((*vid, SavedInstance { instance, images, facts: Vec::new() }))
        };
        let saved = hosts.iter().filter_map(saved).collect();
        let now = self.now.0;
        let begun = self.coordinator.as_mut().and_then(|c| c.restore_together(saved, now).ok());
        self.begun_together(begun);
    }

    fn begun_together(&mut self, begun: Option<(Vec<MoveId>, Vec<coordinator::Output>)>) {
        let Some((ids, out)) = begun else { return };
        self.tally.begun += ids.len() as u64;
        self.coordinator_does(out);
        // A coordinator that dies before it has recorded a number assigns it again.
        let durable = ids.into_iter().filter(|id| self.store.moves.contains_key(id));
        self.groups.push(durable.map(|id| (id, None)).collect());
    }

    fn tell_coordinator(&mut self, input: coordinator::Input) {
        let now = self.now.0;
        let out = self.coordinator.as_mut().map(|coordinator| coordinator.handle(input, now));
        self.coordinator_does(out.unwrap_or_default());
    }

    fn tell_node(&mut self, node: usize, input: node::Input) {
        let now = self.now.0;
        let out = self.nodes[node].agent.as_mut().map(|agent| agent.handle(input, now));
        self.node_does(node, out.unwrap_or_default());
    }
}

fn instance(vid: Vid, host: HostName) -> Instance {
    let name = format!("i{vid}");
    let (fabric, placement) = (FabricId(1), Placement::default());
    Instance { name, fabric, group: None, placement, host, epoch: Epoch(0), spec: Vec::new() }
}

impl Node {
    /// Whether it provides memory of `vid` that was left here.
    fn serves(&self, vid: Vid) -> bool {
        let is_source = self.disk.get(&vid).is_some_and(|entry| matches!(entry.role, Role::Source { .. }));
        self.agent.is_some() && is_source
    }

    fn new(place: usize) -> Self {
        let name = HostName::new(&format!("h{}", place + 1)).expect("a letter and a digit are a name");
        let (agent, _) = NodeAgent::new(name.clone(), NODE, BTreeMap::new(), Duration::ZERO);
        Self {
            name,
            agent: Some(agent),
            disk: BTreeMap::new(),
            linked: false,
            engine: Engine::default(),
            waiting: BTreeSet::new(),
        }
    }
}
