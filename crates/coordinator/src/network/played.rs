//! Nodes that tests play, word by word.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ::moves::HostName;
use api::{Event, Failure, NetChange, Purpose, Shape};
use rpc::net::{FromNode, Question, ToNode};
use rpc::pki::{self, Identity};
use rpc::removed::Removed;
use rpc::wire::{self, Answer, FromCoordinator, VERSION};
use rpc::{COORDINATOR, Endpoint, Outbox, channel};
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, unmount};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use tokio::net::TcpListener;
use tokio::time::{sleep, timeout};

use super::changes;
use crate::cluster::Cluster;
use crate::nodes;

/// How long anything may take.
const LIMIT: Duration = Duration::from_secs(20);

/// Where nodes say that they are reached.
const PORT: u16 = 1;

/// A coordinator.
pub struct World {
    pub cluster: Arc<Cluster>,
    address: SocketAddr,
    disk: Disk,
}

/// A disk of 4 MiB, in memory, that only this thread sees.
struct Disk(tempfile::TempDir);

/// A node as the coordinator sees it.
pub struct Played {
    outbox: Outbox<wire::FromNode>,
    inbox: channel::Inbox<FromCoordinator>,
}

/// What a node is told of the overlay.
#[derive(Debug, PartialEq, Eq)]
pub enum Said {
    Order(ToNode),
    Question(u64, Question),
}

impl Disk {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        // SAFETY: the thread shares nothing with others that would be unshared but its view of the file systems.
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
    /// A coordinator of which nothing was there before. Its tasks have to run on this thread.
    pub async fn new() -> Self {
        let disk = Disk::new();
        pki::create_authority(&disk.0.path().join("pki")).unwrap();
        let cluster = Cluster::open(&disk.0.path().join("store")).unwrap();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let world = Self { cluster, address, disk };
        let endpoint = world.endpoint(COORDINATOR).behind(world.cluster.gate.clone());
        tokio::spawn(nodes::accept(world.cluster.clone(), endpoint, listener));
        world
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.disk.0.path().join(name)
    }

    fn endpoint(&self, name: &str) -> Endpoint {
        let pki = self.path("pki");
        // It is there already if the node comes again.
        let _ = pki::issue(&pki, name);
        Endpoint::new(Identity::load(&pki, name).unwrap()).unwrap()
    }

    /// The node of `host`, which is connected.
    pub async fn node(&self, host: &str) -> Played {
        let node = self.greet(host, PORT).await;
        self.until(host, true).await;
        node
    }

    /// What a node of `host` is told that is not wanted.
    pub async fn refused(&self, host: &str) -> Option<FromCoordinator> {
        self.greet(host, PORT).await.hear_any().await
    }

    /// A node of `host`, reached at `port`, which has just said who it is.
    pub async fn greet(&self, host: &str, port: u16) -> Played {
        let stream = self.endpoint(host).connect(self.address, COORDINATOR).await.unwrap();
        let (outbox, inbox) = channel::open(stream);
        let address = (Ipv4Addr::LOCALHOST, port).into();
        let hello = wire::FromNode::Hello { version: VERSION, address, here: vec![], runs_instances: false };
        outbox.send(&hello).unwrap();
        Played { outbox, inbox }
    }

    /// Loses the connection of the node of `host`.
    pub async fn lose(&self, host: &str, node: Played) {
        drop(node);
        self.until(host, false).await;
    }

    async fn until(&self, host: &str, is_connected: bool) {
        let host = HostName::new(host).unwrap();
        let come = async {
            while self.cluster.lock().nodes.contains_key(&host) != is_connected {
                sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(LIMIT, come).await.unwrap();
    }

    /// Lays a star of `nodes`, which are all that are connected.
    pub async fn lay(&self, nodes: &mut [&mut Played]) {
        let star = NetChange::Lay { shape: Shape::Star, center: None, plain: false };
        let (laid, ()) = tokio::join!(self.change(star), Played::use_topology(nodes));
        laid.unwrap();
    }

    pub async fn change(&self, wanted: NetChange) -> Result<Event, Failure> {
        timeout(LIMIT, changes::fulfil(&self.cluster, wanted)).await.unwrap()
    }

    /// Plugs in a station's device at `node`, that of `host`.
    pub async fn attach(&self, host: &str, device: &str, node: &mut Played) {
        let (attached, _) = tokio::join!(self.change(attach(host, device)), node.grant());
        attached.unwrap();
    }
}

/// A wish for a station's device.
pub fn attach(host: &str, device: &str) -> NetChange {
    attach_with(host, device, "10.88.0.1/24")
}

/// The same with an address.
pub fn attach_with(host: &str, device: &str, address: &str) -> NetChange {
    let purpose = Purpose::Station { address: Some(address.into()), mtu: None, netns: None };
    NetChange::Attach { host: host.into(), device: device.into(), purpose, mac: None }
}

impl Played {
    /// What it is told next; `None` if its connection is over.
    pub async fn hear_any(&mut self) -> Option<FromCoordinator> {
        timeout(LIMIT, self.inbox.receive()).await.unwrap().unwrap()
    }

    /// Whom it is to believe no more, as it is told next. It does at once.
    pub async fn hear_removed(&mut self) -> Option<Removed> {
        while let Ok(Some(message)) = timeout(LIMIT, self.inbox.receive()).await.unwrap() {
            if let FromCoordinator::Removed { number, removed } = message {
                number.into_iter().for_each(|number| self.answer(number, Ok(Answer::Done)));
                return Some(removed);
            }
        }
        None
    }

    /// The same each time, until its connection is lost.
    pub async fn believe(mut self) {
        while self.hear_removed().await.is_some() {}
    }

    /// What it is told next of the overlay. It has installed each topology at once.
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

    /// Lets all `nodes` come to use the next topology.
    pub async fn use_topology(nodes: &mut [&mut Self]) {
        let mut others = nodes.iter_mut();
        let Some(first) = others.next() else { return };
        let first = async { while !matches!(first.hear().await, Said::Order(ToNode::Use { .. })) {} };
        // Each is told to use it when all have installed it.
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

    /// The next question, and its number, but for one whether there is a TAP: there is none.
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

    /// Does what it is asked next. Returns what that was.
    pub async fn grant(&mut self) -> Question {
        let (number, question) = self.hear_question().await;
        self.answer(number, Ok(Answer::Done));
        question
    }
}
