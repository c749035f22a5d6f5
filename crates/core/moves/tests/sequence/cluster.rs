//! A coordinator and nodes without faults except those that a test causes.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use fabric::{Epoch, FabricId, Vid};
use moves::coordinator::{self, MoveRequest};
use moves::journal::{Exit, Instance, Snapshot};
use moves::node::{self, Operation, Outcome};
use moves::placement::Placement;
use moves::progress::{self, Event};
use moves::protocol::{Suspension, ToCoordinator, ToNode};
use moves::{Coordinator, HostName, MoveId, NodeAgent};

/// Every step takes this long.
pub const STEP: Duration = Duration::from_millis(1);

/// The limit of steps of any test.
const MAX_STEPS: usize = 1000;

/// A coordinator and three nodes whose engines do what they are asked to do, except the operations in `refused`.
pub struct Cluster {
    pub now: Duration,
    pub coordinator: Coordinator,
    pub nodes: BTreeMap<HostName, NodeAgent>,
    pub queue: VecDeque<Step>,
    /// The ends of destinations' operations, which come after the sources'.
    receiving: BTreeMap<Vid, Step>,
    /// The messages and the journal's records, in words.
    pub wire: Vec<String>,
    pub events: Vec<Event>,
    pub refused: Option<(&'static str, &'static str)>,
    /// How the fetching of memory ends that a released instance lacks, if it lacks any.
    pub fetched: Option<Outcome>,
    /// The restored copy has ended, and cannot be restored again.
    pub is_gone: bool,
}

pub enum Step {
    ToCoordinator(HostName, ToCoordinator),
    ToNode(HostName, ToNode),
    Ended(HostName, Vid, Outcome),
}

pub fn host(number: u8) -> HostName {
    HostName::new(&format!("h{number}")).unwrap()
}

pub fn vid() -> Vid {
    Vid::new(7).unwrap()
}

pub fn instance(name: &str) -> Instance {
    let spec = b"spec".to_vec();
    Instance {
        name: name.into(),
        fabric: FabricId(1),
        group: None,
        placement: Placement::default(),
        host: host(1),
        epoch: Epoch(0),
        spec,
    }
}

pub fn to(number: u8) -> MoveRequest {
    MoveRequest { vid: vid(), destination: host(number), dry_run: false, post_copy: false }
}

impl Cluster {
    pub fn new() -> Self {
        let (coordinator, _) =
            Coordinator::new(coordinator::Config::default(), Snapshot::default(), Duration::ZERO);
        let agent = |name: HostName| {
            let config = node::Config::default();
            NodeAgent::new(name, config, BTreeMap::new(), Duration::ZERO).0
        };
        let mut cluster = Self {
            now: Duration::ZERO,
            coordinator,
            nodes: [1, 2, 3].map(|number| (host(number), agent(host(number)))).into(),
            queue: VecDeque::new(),
            receiving: BTreeMap::new(),
            wire: Vec::new(),
            events: Vec::new(),
            refused: None,
            fetched: None,
            is_gone: false,
        };
        for number in [1, 2] {
            cluster.coordinator.handle(coordinator::Input::LinkUp(host(number)), Duration::ZERO);
            cluster.tell(&host(number), node::Input::LinkUp);
        }
        cluster.add_instance(vid(), "job");
        cluster
    }

    /// Another instance on the first host.
    pub fn add_instance(&mut self, vid: Vid, name: &str) {
        self.coordinator.add_instance(vid, instance(name)).unwrap();
        self.nodes.get_mut(&host(1)).unwrap().host_instance(vid, Epoch(0)).unwrap();
    }

    /// A node dies, and restarts with its records.
    pub fn restart_node(&mut self, number: u8) {
        let name = host(number);
        let entries = self.nodes[&name].entries().map(|(vid, entry)| (vid, entry.clone())).collect();
        let is_there = |step: &Step| matches!(step, Step::Ended(on, ..) if *on == name);
        self.queue.retain(|step| !is_there(step));
        self.receiving.retain(|_, step| !is_there(step));
        let (agent, out) = NodeAgent::new(name.clone(), node::Config::default(), entries, self.now);
        self.nodes.insert(name.clone(), agent);
        self.node_does(&name, out);
        self.tell(&name, node::Input::LinkUp);
    }

    /// A host is not there any more, and nothing comes from it or gets there.
    pub fn forget_host(&mut self, number: u8) {
        let name = host(number);
        let is_there = |step: &Step| match step {
            Step::ToCoordinator(on, _) | Step::ToNode(on, _) | Step::Ended(on, ..) => *on == name,
        };
        self.queue.retain(|step| !is_there(step));
        self.receiving.retain(|_, step| !is_there(step));
    }

    /// The coordinator dies, and restarts with its records.
    pub fn restart_coordinator(&mut self) {
        let image = self.coordinator.snapshot().clone();
        let (coordinator, out) = Coordinator::new(coordinator::Config::default(), image, self.now);
        self.coordinator = coordinator;
        self.coordinator_does(out);
        for number in [1, 2] {
            let out = self.coordinator.handle(coordinator::Input::LinkUp(host(number)), self.now);
            self.coordinator_does(out);
        }
    }

    /// Whether the instance runs on the first host, and was never suspended.
    pub fn never_stood_still(&self) -> bool {
        let runs = self.nodes[&host(1)].runs(vid());
        runs && !self.wire.iter().any(|line| line.contains("Suspend"))
    }

    pub fn begin(&mut self, request: MoveRequest) -> MoveId {
        let (id, out) = self.coordinator.begin(request, self.now).unwrap();
        self.coordinator_does(out);
        id
    }

    pub fn tell(&mut self, name: &HostName, input: node::Input) {
        let now = self.now;
        let out = self.nodes.get_mut(name).unwrap().handle(input, now);
        self.node_does(name, out);
    }

    fn node_does(&mut self, name: &HostName, out: Vec<node::Output>) {
        for output in out {
            match output {
                node::Output::Send(message) => {
                    self.queue.push_back(Step::ToCoordinator(name.clone(), message));
                }
                node::Output::Operate { vid, operation } => {
                    let ended = Step::Ended(name.clone(), vid, self.engine(&operation));
                    match operation {
                        Operation::Receive { .. } => drop(self.receiving.insert(vid, ended)),
                        Operation::Send { .. } => {
                            let received = self.receiving.remove(&vid);
                            self.queue.extend([Some(ended), received].into_iter().flatten());
                        }
                        _ => self.queue.push_back(ended),
                    }
                }
                node::Output::Cancel { vid } => self.cancel(name, vid),
                _ => {}
            }
        }
    }

    /// Ends operations that wait for the other host; all others end by themselves.
    fn cancel(&mut self, name: &HostName, vid: Vid) {
        if matches!(self.receiving.get(&vid), Some(Step::Ended(on, ..)) if on == name) {
            self.receiving.remove(&vid);
            let outcome = Outcome::Failed { reason: "it was cancelled".into() };
            self.queue.push_back(Step::Ended(name.clone(), vid, outcome));
        }
    }

    fn engine(&self, operation: &Operation) -> Outcome {
        let text = format!("{operation:?}");
        if let Some((_, reason)) = self.refused.filter(|(name, _)| text.starts_with(name)) {
            return Outcome::Refused { reasons: vec![reason.into()] };
        }
        match operation {
            Operation::CheckSource { .. } => Outcome::Checked { facts: b"facts".to_vec() },
            Operation::CheckDestination { .. } => Outcome::Checked { facts: Vec::new() },
            Operation::Precopy { .. } => Outcome::Copied { bytes: 5 },
            Operation::Suspend => Outcome::Suspended(Suspension::default()),
            Operation::Send { .. } => Outcome::Sent { bytes: 5 },
            Operation::Restore { .. } | Operation::Release { .. } if self.is_gone => {
                Outcome::Gone { exit: Exit::Lost { reason: "its emulator has ended".into() } }
            }
            Operation::Release { .. } if self.fetched.is_some() => Outcome::Incomplete,
            Operation::Fetch { .. } => self.fetched.clone().expect("nothing is missing"),
            _ => Outcome::Done,
        }
    }

    pub fn coordinator_does(&mut self, out: Vec<coordinator::Output>) {
        for output in out {
            match output {
                coordinator::Output::Record(record) => self.wire.push(format!("● {}", name_of(&record))),
                coordinator::Output::Send { to, message } => self.queue.push_back(Step::ToNode(to, message)),
                coordinator::Output::Event { event, .. } => self.events.push(event),
                coordinator::Output::InstanceEnded(_) => {}
            }
        }
    }

    /// Goes on until nothing is under way, or `until` is on the wire.
    pub fn run(&mut self, until: Option<&str>) {
        for _ in 0..MAX_STEPS {
            if until.is_some_and(|until| self.wire.iter().any(|line| line == until)) {
                return;
            }
            if !self.step() {
                return;
            }
        }
        panic!("it goes on for ever: {:?}", self.wire);
    }

    /// Does the next step; `false` if there is none.
    pub fn step(&mut self) -> bool {
        let Some(step) = self.queue.pop_front() else { return false };
        self.now += STEP;
        match step {
            Step::ToCoordinator(from, message) => {
                let what = match &message {
                    ToCoordinator::Move { report, .. } => name_of(report),
                    other => name_of(other),
                };
                self.wire.push(format!("{from} ▶ {what}"));
                let input = coordinator::Input::Message { from, message };
                let out = self.coordinator.handle(input, self.now);
                self.coordinator_does(out);
            }
            Step::ToNode(to, message) => {
                if let ToNode::Move { directive, .. } = &message {
                    self.wire.push(format!("{to} ◀ {}", name_of(directive)));
                }
                self.tell(&to, node::Input::Message(message));
            }
            Step::Ended(name, vid, outcome) => self.tell(&name, node::Input::Ended { vid, outcome }),
        }
        true
    }

    /// Lets time go by in which only the coordinator's clock does anything.
    pub fn tick_after(&mut self, time: Duration) {
        self.now += time;
        let out = self.coordinator.handle(coordinator::Input::Tick, self.now);
        self.coordinator_does(out);
    }

    pub fn outcome(&self) -> &progress::Outcome {
        let ended = self.events.iter().find_map(|event| match event {
            Event::Ended { outcome, .. } => Some(outcome),
            _ => None,
        });
        ended.expect("the move has ended")
    }
}

/// The variant's name.
pub fn name_of(value: &impl std::fmt::Debug) -> String {
    let text = format!("{value:?}");
    text.split([' ', '(', '{']).next().unwrap_or_default().into()
}
