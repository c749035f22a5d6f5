//! The simulated cluster: coordinator, nodes, processes, and the network between them.

use std::collections::{BTreeMap, HashMap};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use broker::MAX_OPENINGS;
use fabric::attach::LinkRefusal;
use fabric::link::LinkRequest;
use fabric::{Epoch, FabricId, ProcessId, Vid};
use moves::coordinator::{self, MoveRequest};
use moves::journal::{Instance, Record, Snapshot};
use moves::node::{self, Operation, Outcome};
use moves::placement::Placement;
use moves::protocol::{Directive, Report, Suspension, ToCoordinator, ToNode};
use moves::{Coordinator, HostName, NodeAgent};
use rpc::wire::{LinkAnswer, LinkQuestion};
use tokio::sync::{Notify, Semaphore, mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout};

use super::cost;
use super::party::{Threads, hop, micros, ticks};
use crate::agent::Unanswered;
use crate::directory::{Directory, Place};
use crate::links::linking::{self, Answerer, Asker, Locator, Nonce, Unreachable};

const FABRIC: FabricId = FabricId(1);

/// The number of threads of a daemon.
const WORKERS: usize = 2;

/// The time for dump, transfer and restore, in microseconds.
const MEANWHILE: f64 = 50_000.0;

/// A timeout longer than any move.
const LONG: Duration = Duration::from_secs(3600);

/// The limit of libibverbs' thread.
const MESSAGES_IN_A_TURN: usize = 256;

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The peers, each an instance, and the number of hosts that they are spread over. The moving instance has two more hosts.
#[derive(Clone, Copy)]
pub struct Layout {
    pub peers: u16,
    pub hosts: u16,
}

/// Times in microseconds: of the suspension; and from the commit until all nodes were told, and until the first link, half of the
/// links and all links were up.
#[derive(Debug, PartialEq)]
pub struct Figures {
    pub suspended: f64,
    pub told: f64,
    pub first: f64,
    pub half: f64,
    pub last: f64,
    /// The number of messages that the coordinator has sent or received since the suspension.
    pub messages: usize,
}

pub struct World {
    coordinator: Mutex<Coordinator>,
    office: Threads,
    hosts: BTreeMap<HostName, Arc<Host>>,
    processes: HashMap<ProcessId, Process>,
    mover: ProcessId,
    peers: Vec<ProcessId>,
    seen: Mutex<Seen>,
    all_up: Notify,
}

struct Host {
    name: HostName,
    agent: Mutex<NodeAgent>,
    directory: Directory,
    locating: Mutex<HashMap<Vid, Vec<oneshot::Sender<Option<Place>>>>>,
    threads: Threads,
    /// Instances whose processes can have links.
    here: Mutex<HashMap<Vid, Epoch>>,
    awaited: Mutex<HashMap<Nonce, LinkRequest>>,
    images: Notify,
    openings: Semaphore,
}

/// A process that uses verbs, and its thread.
struct Process {
    thread: Threads,
    links: mpsc::UnboundedSender<ProcessId>,
}

/// The times of events.
#[derive(Default)]
struct Seen {
    suspend: Option<Instant>,
    suspended: Option<Instant>,
    committed: Option<Instant>,
    told: Option<Instant>,
    /// The time at which a process has greeted another one.
    greeted: HashMap<(ProcessId, ProcessId), Instant>,
    messages: usize,
}

/// A node, as [`linking`] uses it.
#[derive(Clone)]
struct Here(Arc<World>, Arc<Host>);

fn process(lid: u16) -> ProcessId {
    ProcessId { vid: Vid::new(lid).unwrap(), index: 1 }
}

fn host_name(place: u16) -> HostName {
    HostName::new(&format!("h{place}")).unwrap()
}

impl World {
    pub fn new(layout: Layout, busy: bool) -> Arc<Self> {
        // Half of the peers open links to it, and it opens links to the other half.
        let mover = process(layout.peers / 2 + 1);
        let peers: Vec<_> = (1..=layout.peers + 1).map(process).filter(|peer| *peer != mover).collect();
        let (coordinator, _) =
            Coordinator::new(coordinator::Config::default(), Snapshot::default(), Duration::ZERO);
        let hosts = (0..layout.hosts + 2).map(|place| (host_name(place), Arc::new(Host::new(place, busy))));
        let mut inboxes = Vec::new();
        let mut world = Self {
            coordinator: Mutex::new(coordinator),
            office: Threads::new(WORKERS, busy),
            hosts: hosts.collect(),
            processes: HashMap::new(),
            mover,
            peers: peers.clone(),
            seen: Mutex::default(),
            all_up: Notify::new(),
        };
        for id in peers.iter().copied().chain([mover]) {
            let (links, inbox) = mpsc::unbounded_channel();
            world.processes.insert(id, Process { thread: Threads::new(1, busy), links });
            inboxes.push((id, inbox));
        }
        world.add_instance(mover.vid, &host_name(0));
        for (number, peer) in (0..).zip(&peers) {
            world.add_instance(peer.vid, &host_name(2 + number % layout.hosts));
        }
        let world = Arc::new(world);
        for (id, inbox) in inboxes {
            tokio::spawn(world.clone().take_links(id, inbox));
        }
        world
    }

    fn add_instance(&self, vid: Vid, host: &HostName) {
        let (name, placement) = (vid.to_string(), Placement::default());
        let (host_of, epoch) = (host.clone(), Epoch(0));
        let instance =
            Instance { name, fabric: FABRIC, group: None, placement, host: host_of, epoch, spec: Vec::new() };
        self.coordinator.lock().unwrap().add_instance(vid, instance).unwrap();
        self.hosts[host].agent.lock().unwrap().host_instance(vid, epoch).unwrap();
        self.hosts[host].here.lock().unwrap().insert(vid, epoch);
    }

    /// Moves the instance from the first host to the second.
    pub async fn move_once(self: Arc<Self>) -> Figures {
        for host in self.hosts.values() {
            self.coordinator.lock().unwrap().handle(coordinator::Input::LinkUp(host.name.clone()), now());
            host.agent.lock().unwrap().handle(node::Input::LinkUp, now());
        }
        let request =
            MoveRequest { vid: self.mover.vid, destination: host_name(1), dry_run: false, post_copy: false };
        let (_, outputs) = self.coordinator.lock().unwrap().begin(request, now()).unwrap();
        self.coordinator_does(outputs);
        // In virtual time: when nothing more happens, the timeout ends at once.
        timeout(LONG, self.all_up.notified()).await.expect("all links are made again");
        self.figures()
    }

    fn figures(&self) -> Figures {
        let seen = self.seen.lock().unwrap();
        let between = |begin: Option<Instant>, end: Option<Instant>| micros(end.unwrap() - begin.unwrap());
        let up = |peer: &ProcessId| {
            let ends = [seen.greeted[&(*peer, self.mover)], seen.greeted[&(self.mover, *peer)]];
            ends[0].max(ends[1]) + ticks(super::HOP)
        };
        let mut up: Vec<_> = self.peers.iter().map(up).collect();
        up.sort();
        Figures {
            suspended: between(seen.suspend, seen.suspended),
            told: between(seen.committed, seen.told),
            first: between(seen.committed, up.first().copied()),
            half: between(seen.committed, up.get(up.len() / 2).copied()),
            last: between(seen.committed, up.last().copied()),
            messages: seen.messages,
        }
    }

    fn coordinator_does(self: &Arc<Self>, outputs: Vec<coordinator::Output>) {
        let mut commits = false;
        for output in outputs {
            match output {
                coordinator::Output::Record(Record::MovesCommitted { .. }) => {
                    self.seen.lock().unwrap().committed = Some(Instant::now());
                    commits = true;
                }
                coordinator::Output::Send { to, message } => {
                    tokio::spawn(self.clone().to_node(self.hosts[&to].clone(), message));
                }
                _ => {}
            }
        }
        if commits {
            self.hosts.values().for_each(|host| drop(tokio::spawn(self.clone().tell_news(host.clone()))));
        }
    }

    /// Tells a node the instance's new location.
    async fn tell_news(self: Arc<Self>, host: Arc<Host>) {
        self.office_works(cost::MESSAGE).await;
        hop().await;
        host.threads.work(cost::MESSAGE).await;
        host.directory.note(self.mover.vid, Place { host: host_name(1), epoch: Epoch(1) });
        self.seen.lock().unwrap().told = Some(Instant::now());
    }

    fn to_node(self: Arc<Self>, host: Arc<Host>, message: ToNode) -> Task {
        Box::pin(async move {
            if let ToNode::Move { directive: Directive::Suspend { .. }, .. } = message {
                let mut seen = self.seen.lock().unwrap();
                (seen.suspend, seen.messages) = (Some(Instant::now()), 0);
            }
            let entries = if let ToNode::Located { places } = &message { places.len() } else { 0 };
            let cost = cost::MESSAGE + cost::ENTRY * entries as f64;
            self.office_works(cost).await;
            hop().await;
            host.threads.work(cost).await;
            self.node_hears(&host, node::Input::Message(message));
        })
    }

    fn to_coordinator(self: Arc<Self>, host: Arc<Host>, message: ToCoordinator) -> Task {
        Box::pin(async move {
            let entries = if let ToCoordinator::Locate { vids } = &message { vids.len() } else { 0 };
            let cost = cost::MESSAGE + cost::ENTRY * entries as f64;
            host.threads.work(cost).await;
            hop().await;
            self.office_works(cost).await;
            if let ToCoordinator::Move { report: Report::Suspended { .. }, .. } = message {
                self.seen.lock().unwrap().suspended = Some(Instant::now());
            }
            let input = coordinator::Input::Message { from: host.name.clone(), message };
            let outputs = self.coordinator.lock().unwrap().handle(input, now());
            self.coordinator_does(outputs);
        })
    }

    async fn office_works(&self, cost: f64) {
        self.seen.lock().unwrap().messages += 1;
        self.office.work(cost).await;
    }

    fn node_hears(self: &Arc<Self>, host: &Arc<Host>, input: node::Input) {
        let outputs = host.agent.lock().unwrap().handle(input, now());
        self.node_does(host, outputs);
    }

    fn node_does(self: &Arc<Self>, host: &Arc<Host>, outputs: Vec<node::Output>) {
        for output in outputs {
            match output {
                node::Output::Send(message) => {
                    tokio::spawn(self.clone().to_coordinator(host.clone(), message));
                }
                node::Output::Operate { vid, operation } => {
                    tokio::spawn(self.clone().operate(host.clone(), vid, operation));
                }
                node::Output::Located { vid, location } => {
                    let place = location.map(|found| Place { host: found.host, epoch: found.epoch });
                    place.iter().for_each(|place| host.directory.note(vid, place.clone()));
                    for waiter in host.locating.lock().unwrap().remove(&vid).unwrap_or_default() {
                        let _ = waiter.send(place.clone());
                    }
                }
                _ => {}
            }
        }
    }

    /// Simulates the engine and the broker.
    fn operate(self: Arc<Self>, host: Arc<Host>, vid: Vid, operation: Operation) -> Task {
        Box::pin(async move {
            let outcome = match operation {
                Operation::CheckSource { .. } => Outcome::Checked { facts: Vec::new() },
                Operation::Precopy { .. } => Outcome::Copied { bytes: 0 },
                Operation::Suspend => self.suspend(&host).await,
                Operation::Send { destination, .. } => {
                    sleep(ticks(MEANWHILE)).await;
                    self.hosts[destination.host().unwrap()].images.notify_one();
                    Outcome::Sent { bytes: 0 }
                }
                Operation::Receive { .. } => {
                    host.images.notified().await;
                    Outcome::Done
                }
                Operation::Release { epoch, .. } => self.release(&host, epoch).await,
                _ => Outcome::Done,
            };
            self.node_hears(&host, node::Input::Ended { vid, outcome });
        })
    }

    async fn suspend(self: &Arc<Self>, host: &Arc<Host>) -> Outcome {
        host.here.lock().unwrap().remove(&self.mover.vid);
        host.threads.work(cost::PACKET).await;
        let closing = cost::CLOSE * self.peers.len() as f64;
        self.processes[&self.mover].thread.work(cost::PACKET + closing).await;
        host.threads.work(cost::PACKET).await;
        let peers = self.peers.iter().map(|peer| peer.vid).collect();
        let (here, question) = (self.here(host), LinkQuestion::Expect { vid: self.mover.vid, peers });
        tokio::spawn(async move { here.ask_node(&host_name(1), question).await });
        Outcome::Suspended(Suspension::default())
    }

    /// The process attaches again, and requests links to all its former peers.
    async fn release(self: &Arc<Self>, host: &Arc<Host>, epoch: Epoch) -> Outcome {
        host.here.lock().unwrap().insert(self.mover.vid, epoch);
        host.threads.work(2.0 * cost::PACKET).await;
        for peer in &self.peers {
            self.processes[&self.mover].thread.work(cost::SAY).await;
            let request = LinkRequest { fabric: FABRIC, from: self.mover, epoch, to: *peer };
            tokio::spawn(self.here(host).wish(request));
        }
        Outcome::Done
    }

    fn here(self: &Arc<Self>, host: &Arc<Host>) -> Here {
        Here(self.clone(), host.clone())
    }

    /// A turn of the process's thread receives messages, and checks all links.
    async fn take_links(self: Arc<Self>, id: ProcessId, mut inbox: mpsc::UnboundedReceiver<ProcessId>) {
        let (thread, mut links) = (&self.processes[&id].thread, 0);
        while let Some(first) = inbox.recv().await {
            let mut next = Some(first);
            for _ in 0..MESSAGES_IN_A_TURN {
                let Some(peer) = next else { break };
                thread.work(cost::LINK).await;
                self.greets(id, peer);
                links += 1;
                next = inbox.try_recv().ok();
            }
            // This is one more than the limit: nothing is lost, and the turn is a little shorter.
            next.into_iter().for_each(|peer| self.processes[&id].links.send(peer).unwrap());
            thread.work(cost::LOOK * f64::from(links)).await;
        }
    }

    fn greets(&self, from: ProcessId, to: ProcessId) {
        let mut seen = self.seen.lock().unwrap();
        let again = seen.greeted.insert((from, to), Instant::now());
        assert!(again.is_none(), "{from} and {to} have two links");
        if seen.greeted.len() == 2 * self.peers.len() {
            self.all_up.notify_one();
        }
    }
}

impl Host {
    fn new(place: u16, busy: bool) -> Self {
        let name = host_name(place);
        let (agent, _) =
            NodeAgent::new(name.clone(), node::Config::default(), BTreeMap::new(), Duration::ZERO);
        Self {
            name,
            agent: Mutex::new(agent),
            directory: Directory::default(),
            locating: Mutex::default(),
            threads: Threads::new(WORKERS, busy),
            here: Mutex::default(),
            awaited: Mutex::default(),
            images: Notify::new(),
            openings: Semaphore::new(MAX_OPENINGS),
        }
    }
}

impl Here {
    /// A process here requests a link: simulates the broker.
    fn wish(self, request: LinkRequest) -> Task {
        Box::pin(async move {
            self.1.threads.work(cost::PACKET).await;
            let refused = if request.opens() {
                let _turn = self.1.openings.acquire().await;
                let opened = linking::open(&self, request, nonce_of(&request)).await;
                opened.map(|_| self.link_up(request.from, request.to)).err()
            } else {
                linking::nudge(&self, request).await.err()
            };
            assert_eq!(refused, None, "{} gets no link to {}", request.from, request.to);
        })
    }

    fn link_up(&self, process: ProcessId, peer: ProcessId) {
        let here = self.clone();
        tokio::spawn(async move {
            here.1.threads.work(cost::PACKET).await;
            here.0.processes[&process].links.send(peer).unwrap();
        });
    }

    fn at(&self, host: &HostName) -> Self {
        self.0.here(&self.0.hosts[host])
    }

    async fn answer(&self, from: &HostName, question: LinkQuestion) -> LinkAnswer {
        match question {
            LinkQuestion::Open { request, nonce } => linking::answer(self, from, &request, Some(nonce)).await,
            LinkQuestion::Nudge(request) => linking::answer(self, from, &request, None).await,
            LinkQuestion::Expect { peers, .. } => {
                let here = self.clone();
                tokio::spawn(async move { linking::hosts_of(&here, peers).await });
                LinkAnswer::Expected
            }
        }
    }
}

/// The nonces of both ends differ, which is enough here.
fn nonce_of(request: &LinkRequest) -> Nonce {
    let mut nonce = Nonce::default();
    nonce[..2].copy_from_slice(&request.from.vid.lid().to_le_bytes());
    nonce[2..4].copy_from_slice(&request.to.vid.lid().to_le_bytes());
    nonce
}

impl Locator for Here {
    fn directory(&self) -> &Directory {
        &self.1.directory
    }

    async fn ask_where(&self, vid: Vid) -> Result<Option<Place>, Unanswered> {
        let (sender, answer) = oneshot::channel();
        self.1.locating.lock().unwrap().entry(vid).or_default().push(sender);
        let outputs = self.1.agent.lock().unwrap().locate(vid, now());
        self.0.node_does(&self.1, outputs);
        answer.await.map_err(|_| Unanswered)
    }
}

impl Asker for Here {
    type Socket = ();

    fn host(&self) -> &HostName {
        &self.1.name
    }

    async fn ask_node(&self, host: &HostName, question: LinkQuestion) -> Result<LinkAnswer, Unreachable> {
        let there = self.at(host);
        self.1.threads.work(cost::MESSAGE).await;
        hop().await;
        there.1.threads.work(cost::MESSAGE).await;
        let answer = there.answer(&self.1.name, question).await;
        there.1.threads.work(cost::MESSAGE).await;
        hop().await;
        self.1.threads.work(cost::MESSAGE).await;
        Ok(answer)
    }

    async fn connect(&self, host: &HostName, _: u16, nonce: Nonce) -> Result<(), Unreachable> {
        self.1.threads.work(cost::CONNECT).await;
        hop().await;
        hop().await;
        let there = self.at(host);
        tokio::spawn(async move {
            hop().await;
            there.1.threads.work(cost::ACCEPT).await;
            let request = there.1.awaited.lock().unwrap().remove(&nonce).unwrap();
            there.link_up(request.to, request.from);
        });
        Ok(())
    }
}

impl Answerer for Here {
    fn reachable(&self, request: &LinkRequest) -> Option<Result<Epoch, LinkRefusal>> {
        self.1.here.lock().unwrap().get(&request.to.vid).map(|epoch| Ok(*epoch))
    }

    fn is_in_other_fabric(&self, _: &LinkRequest) -> bool {
        false
    }

    fn nudge(&self, request: &LinkRequest) -> Result<(), LinkRefusal> {
        let LinkRequest { from, to, .. } = *request;
        let here = self.clone();
        tokio::spawn(async move {
            here.1.threads.work(cost::PACKET).await;
            here.0.processes[&to].thread.work(cost::PACKET).await;
            let request = LinkRequest { fabric: FABRIC, from: to, epoch: Epoch(0), to: from };
            here.wish(request).await;
        });
        Ok(())
    }

    fn expect(&self, nonce: Nonce, request: LinkRequest) -> Option<u16> {
        self.1.awaited.lock().unwrap().insert(nonce, request);
        Some(1)
    }
}

/// No message is lost here, so no machine needs a timer.
fn now() -> Duration {
    Duration::ZERO
}
