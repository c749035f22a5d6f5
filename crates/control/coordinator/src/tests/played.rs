//! Simulated nodes, which tests control message by message.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use api::{Event, Failure, NetChange, Purpose, Shape};
use fabric::Vid;
use moves::HostName;
use moves::journal::Instance;
use rpc::net::{FromNode, Question, ToNode};
use rpc::pki::{self, Identity};
use rpc::removed::Removed;
use rpc::wire::{self, Answer, FromCoordinator, VERSION};
use rpc::{COORDINATOR, Endpoint, Outbox, channel};
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, unmount};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use tokio::net::TcpListener;
use tokio::time::{sleep, timeout};

use crate::core::{Cluster, Command, Owner};
use crate::lifecycle::Lifecycle;
use crate::members::Members;
use crate::network::changes;
use crate::nodes;
use crate::open::open;

/// Time limit of every step.
const LIMIT: Duration = Duration::from_secs(20);

/// The port that simulated nodes report.
const PORT: u16 = 1;

/// A coordinator.
pub struct World {
    pub cluster: Arc<Cluster>,
    address: SocketAddr,
    disk: Disk,
}

/// A disk of 4 MiB, in memory, visible to this thread only.
struct Disk(tempfile::TempDir);

/// A simulated node.
pub struct Played {
    outbox: Outbox<wire::FromNode>,
    inbox: channel::Inbox<FromCoordinator>,
}

/// A message about the overlay.
#[derive(Debug, PartialEq, Eq)]
pub enum Said {
    Order(ToNode),
    Question(u64, Question),
}

impl Disk {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        // SAFETY: the call unshares only this thread's mount namespace and working directory, on which no other thread relies.
        unsafe { unshare_unsafe(UnshareFlags::NEWNS) }.unwrap();
        mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).unwrap();
        mount("none", folder.path(), "tmpfs", MountFlags::empty(), c"size=4096k").unwrap();
        Self(folder)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        unmount(self.0.path(), UnmountFlags::DETACH).unwrap();
    }
}

impl World {
    /// A new coordinator with an empty store. Its tasks have to run on this thread.
    pub async fn new() -> Self {
        let disk = Disk::new();
        pki::create_authority(&disk.0.path().join("pki")).unwrap();
        let cluster = open(&disk.0.path().join("store")).unwrap();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let world = Self { cluster, address, disk };
        let endpoint =
            world.endpoint(COORDINATOR).behind(world.cluster.view().get::<Members>().gate().clone());
        tokio::spawn(nodes::accept(world.cluster.clone(), endpoint, listener));
        world
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.disk.0.path().join(name)
    }

    fn endpoint(&self, name: &str) -> Endpoint {
        let pki = self.path("pki");
        // The store exists already if the node reconnects.
        let _ = pki::issue(&pki, name);
        Endpoint::new(Identity::load(&pki, name).unwrap()).unwrap()
    }

    /// Connects the node of `host`.
    pub async fn node(&self, host: &str) -> Played {
        let node = self.greet(host, PORT).await;
        self.until(host, true).await;
        node
    }

    /// The refusal that a node of `host` gets.
    pub async fn refused(&self, host: &str) -> Option<FromCoordinator> {
        self.greet(host, PORT).await.hear_any().await
    }

    /// Connects a node of `host` that reports `port`, and sends its Hello.
    pub async fn greet(&self, host: &str, port: u16) -> Played {
        let stream = self.endpoint(host).connect(self.address, COORDINATOR).await.unwrap();
        let (outbox, inbox) = channel::open(stream);
        let address = (Ipv4Addr::LOCALHOST, port).into();
        let hello = wire::FromNode::Hello { version: VERSION, address, here: vec![], runs_instances: false };
        outbox.send(&hello).unwrap();
        Played { outbox, inbox }
    }

    /// Adds an instance.
    pub async fn add(&self, vid: Vid, instance: Instance) {
        self.cluster.run(Add { vid, instance, is_started: false }).await;
    }

    /// Closes the connection of the node of `host`.
    pub async fn lose(&self, host: &str, node: Played) {
        drop(node);
        self.until(host, false).await;
    }

    async fn until(&self, host: &str, is_connected: bool) {
        let host = HostName::new(host).unwrap();
        let come = async {
            while self.cluster.view().links().is_up(&host) != is_connected {
                sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(LIMIT, come).await.unwrap();
    }

    /// Lays a star of `nodes`, which must be all connected nodes.
    pub async fn lay(&self, nodes: &mut [&mut Played]) {
        let star = NetChange::Lay { shape: Shape::Star, center: None, plain: false };
        let (laid, ()) = tokio::join!(self.change(star), Played::use_topology(nodes));
        laid.unwrap();
    }

    pub async fn change(&self, wanted: NetChange) -> Result<Event, Failure> {
        timeout(LIMIT, changes::fulfil(&self.cluster, wanted)).await.unwrap()
    }

    /// Attaches a station's device at `node`, the node of `host`.
    pub async fn attach(&self, host: &str, device: &str, node: &mut Played) {
        let (attached, _) = tokio::join!(self.change(attach(host, device)), node.grant());
        attached.unwrap();
    }
}

/// A request for a station's device.
pub fn attach(host: &str, device: &str) -> NetChange {
    attach_with(host, device, "10.88.0.1/24")
}

/// The same with an address.
pub fn attach_with(host: &str, device: &str, address: &str) -> NetChange {
    let purpose = Purpose::Station { address: Some(address.into()), mtu: None, netns: None };
    NetChange::Attach { host: host.into(), device: device.into(), purpose, mac: None }
}

impl Played {
    /// The next message; `None` if the connection is closed.
    pub async fn hear_any(&mut self) -> Option<FromCoordinator> {
        timeout(LIMIT, self.inbox.receive()).await.unwrap().unwrap()
    }

    /// The next revocation list, which the node confirms.
    pub async fn hear_removed(&mut self) -> Option<Removed> {
        while let Ok(Some(message)) = timeout(LIMIT, self.inbox.receive()).await.unwrap() {
            if let FromCoordinator::Removed { number, removed } = message {
                number.into_iter().for_each(|number| self.answer(number, Ok(Answer::Done)));
                return Some(removed);
            }
        }
        None
    }

    /// Confirms all revocation lists until the connection is closed.
    pub async fn believe(mut self) {
        while self.hear_removed().await.is_some() {}
    }

    /// The next message about the overlay. The node confirms topologies at once.
    pub async fn hear(&mut self) -> Said {
        loop {
            match timeout(LIMIT, self.inbox.receive()).await.unwrap().unwrap() {
                Some(FromCoordinator::Net(order)) => {
                    if let ToNode::Install { topology, .. } = &order {
                        self.say(FromNode::Installed { version: topology.version() });
                    }
                    return Said::Order(order);
                }
                Some(FromCoordinator::AskNet { number, question }) => {
                    return Said::Question(number, question);
                }
                Some(_) => {}
                None => panic!("the coordinator has closed the connection"),
            }
        }
    }

    /// Lets all `nodes` install and use the next topology.
    pub async fn use_topology(nodes: &mut [&mut Self]) {
        let mut others = nodes.iter_mut();
        let Some(first) = others.next() else { return };
        let first = async { while !matches!(first.hear().await, Said::Order(ToNode::Use { .. })) {} };
        // Each node gets the order to use it when all have installed it.
        tokio::join!(first, Box::pin(Self::use_topology(others.into_slice())));
    }

    /// The next order that is not about topologies.
    pub async fn hear_order(&mut self) -> ToNode {
        loop {
            match self.hear().await {
                Said::Order(ToNode::Install { .. } | ToNode::Use { .. }) => {}
                Said::Order(order) => return order,
                asked => panic!("{asked:?}"),
            }
        }
    }

    /// The next question and its number. Questions for an existing TAP are answered: there is none.
    pub async fn hear_question(&mut self) -> (u64, Question) {
        loop {
            match self.hear().await {
                Said::Question(number, Question::Look { .. }) => self.answer(number, Ok(Answer::Tap(None))),
                Said::Question(number, question) => return (number, question),
                Said::Order(_) => {}
            }
        }
    }

    pub fn say(&self, message: FromNode) {
        self.outbox.send(&wire::FromNode::Net(message)).unwrap();
    }

    pub fn answer(&self, number: u64, answer: Result<Answer, String>) {
        self.outbox.send(&wire::FromNode::Answer { number, answer }).unwrap();
    }

    /// Confirms the next question. Returns the question.
    pub async fn grant(&mut self) -> Question {
        let (number, question) = self.hear_question().await;
        self.answer(number, Ok(Answer::Done));
        question
    }
}

/// An instance that comes to be known as if a user had started it. Unless it `is_started`, its host has not confirmed that.
pub struct Add {
    pub vid: Vid,
    pub instance: Instance,
    pub is_started: bool,
}

impl Command for Add {
    type Reply = ();

    async fn run(self, owner: &mut Owner) {
        let Self { vid, instance, is_started } = self;
        if !is_started {
            owner.edit(|state| state.get_mut::<Lifecycle>().starts(vid));
        }
        let outputs = owner.decide(|machine, _| machine.add_instance(vid, instance)).unwrap();
        owner.perform(outputs).await;
    }
}
