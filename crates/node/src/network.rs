//! This host's part of the overlay.
//!
//! * [`tunnels`]: connections to the hosts to which it sends directly, on which keys are agreed.
//! * [`devices`]: the network devices that are plugged in.
//!
//! Nothing of it is there before the coordinator has laid links to this host.

mod devices;
mod state;
mod tunnels;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use moves::HostName;
use overlay::switch::{Limits, Switch};
use overlay::topology::{NodeId, Topology, Version};
use overlay_io::offloads::Offloads;
use overlay_io::plane::Plane;
use overlay_io::socket::Socket;
use rpc::net::{FromNode, Question, ToNode};
use rpc::wire::{Answer, reason};
use tokio::sync::{Mutex, MutexGuard, Notify};
use tokio::time::timeout;

use crate::node::Node;
use devices::Devices;
use tunnels::Tunnels;

/// After a change, how long hosts may send by what was before it: tunnels that are needed no more stay that long.
const GRACE: Duration = Duration::from_secs(5);

/// How long tunnels may take until a topology is installed without them: less than the coordinator waits.
const PATIENCE: Duration = Duration::from_secs(3);

/// See the module.
pub struct Network {
    /// Where datagrams are received.
    address: SocketAddr,
    joined: Mutex<Option<Joined>>,
    sessions: AtomicU32,
    devices_file: PathBuf,
    /// Told when a tunnel stands.
    connected: Notify,
}

/// What there is while the overlay joins this host.
struct Joined {
    me: NodeId,
    plane: Arc<Plane>,
    topology: Topology,
    hosts: BTreeMap<NodeId, HostName>,
    tunnels: Tunnels,
    devices: Devices,
}

impl Joined {
    /// The hosts to which this one sends directly.
    fn neighbours(&self) -> HashMap<HostName, NodeId> {
        let other = |a: NodeId, b: NodeId| match self.me {
            me if me == a => Some(b),
            me if me == b => Some(a),
            _ => None,
        };
        let nodes = self.topology.links().iter().filter_map(|link| other(link.a, link.b));
        nodes.filter_map(|node| Some((self.hosts.get(&node)?.clone(), node))).collect()
    }
}

/// What a question about the overlay is answered with before it joins this host.
fn not_joined() -> String {
    reason("the overlay does not join this host", "`transhume net layout` joins all hosts that are up")
}

/// What can be left to this host's kernel.
async fn usable_offloads() -> Offloads {
    let tried = tokio::task::spawn_blocking(|| Offloads::ALL.probe()).await;
    let offloads = tried.map_err(io::Error::other).and_then(|probed| probed).unwrap_or_else(|error| {
        tracing::warn!("the kernel's offloads cannot be tried, and are not used: {error}");
        Offloads::NONE
    });
    if offloads != Offloads::ALL {
        tracing::warn!("of the kernel's offloads these can be used: {offloads:?}");
    }
    offloads
}

impl Network {
    /// Nothing yet. Datagrams will be received at `address`; what is plugged in is noted in `devices_file`.
    pub fn new(address: SocketAddr, devices_file: PathBuf) -> io::Result<Self> {
        let mut first = [0; 4];
        // A number that an earlier node had means nothing to this one.
        getrandom::fill(&mut first).map_err(io::Error::other)?;
        let sessions = AtomicU32::new(u32::from_ne_bytes(first));
        Ok(Self { address, joined: Mutex::default(), sessions, devices_file, connected: Notify::new() })
    }

    fn next_session(&self) -> u32 {
        self.sessions.fetch_add(1, Ordering::Relaxed)
    }

    async fn lock(&self) -> MutexGuard<'_, Option<Joined>> {
        self.joined.lock().await
    }
}

impl Node {
    /// Does what the coordinator says of the overlay.
    pub async fn arrange(self: Arc<Self>, order: ToNode) {
        let arranged = match order {
            ToNode::Install { topology, hosts } => self.install(topology, hosts.into_iter().collect()).await,
            ToNode::Use { version } => self.use_version(version).await,
        };
        if let Err(error) = arranged {
            tracing::warn!("the overlay is not as the coordinator wants it: {error}");
        }
    }

    async fn install(
        self: &Arc<Self>,
        topology: Topology,
        hosts: BTreeMap<NodeId, HostName>,
    ) -> io::Result<()> {
        let version = topology.version();
        let me = hosts.iter().find(|(_, host)| **host == self.host).map(|(node, _)| *node);
        let me = me.ok_or_else(|| io::Error::other("it does not name this host"))?;
        let mut joined = self.network.lock().await;
        if joined.as_ref().is_some_and(|joined| joined.topology.version() > version) {
            return Ok(());
        }
        let computed = topology.clone();
        let routes =
            tokio::task::spawn_blocking(move || computed.routes(me)).await.map_err(io::Error::other)?;
        let routes = routes.map_err(io::Error::other)?;
        let joined = match &mut *joined {
            Some(joined) if joined.me == me => joined,
            // Whom others know by another number is somebody else.
            before => {
                *before = None;
                before.insert(self.join(me, &topology).await?)
            }
        };
        joined.topology = topology;
        joined.hosts = hosts;
        joined.plane.command(|switch, _, _| switch.install(routes)).map_err(io::Error::other)?;
        let neighbours = joined.neighbours();
        for node in joined.tunnels.keep_also(self, joined.me, &neighbours) {
            joined.plane.disconnect(node);
        }
        tokio::spawn(self.clone().report_installed(version, neighbours));
        Ok(())
    }

    /// Says that `version` is installed as soon as the tunnels that it needs stand: frames would be lost that went by it
    /// before. For one that never stands the others do not wait long.
    async fn report_installed(self: Arc<Self>, version: Version, neighbours: HashMap<HostName, NodeId>) {
        let standing = async {
            loop {
                let mut connected = std::pin::pin!(self.network.connected.notified());
                connected.as_mut().enable();
                let joined = self.network.lock().await;
                if joined.as_ref().is_none_or(|joined| joined.tunnels.stand(&neighbours)) {
                    return;
                }
                drop(joined);
                connected.await;
            }
        };
        if timeout(PATIENCE, standing).await.is_err() {
            tracing::warn!("not all tunnels of topology {version} stand");
        }
        self.tell_coordinator(&rpc::wire::FromNode::Net(FromNode::Installed { version }));
    }

    /// Begins to take part as `me`, with what was plugged in before.
    async fn join(&self, me: NodeId, topology: &Topology) -> io::Result<Joined> {
        let mut nonce = [0; 8];
        getrandom::fill(&mut nonce).map_err(io::Error::other)?;
        let mut socket = Socket::bind(self.network.address).map_err(|error| {
            io::Error::new(error.kind(), format!("datagrams at {}: {error}", self.network.address))
        })?;
        let offloads = usable_offloads().await;
        socket.set_offloads(offloads)?;
        let switch = Switch::new(me, u64::from_ne_bytes(nonce), Limits::default());
        let plane = Arc::new(Plane::start(switch, socket)?);
        let devices =
            Devices::load(self.network.devices_file.clone(), self.host.as_str(), offloads.of_taps());
        let mut joined = Joined {
            me,
            plane,
            topology: topology.clone(),
            hosts: BTreeMap::new(),
            tunnels: Tunnels::default(),
            devices,
        };
        joined.devices.plug_all(&joined.plane).await;
        Ok(joined)
    }

    async fn use_version(self: &Arc<Self>, version: Version) -> io::Result<()> {
        let joined = self.network.lock().await;
        let joined = joined.as_ref().ok_or_else(|| io::Error::other("no topology is installed"))?;
        joined.plane.command(|switch, _, _| switch.use_version(version)).map_err(io::Error::other)?;
        tokio::spawn(self.clone().close_needless(version));
        Ok(())
    }

    /// Closes the tunnels that `version` does not need, unless there is another one by then.
    async fn close_needless(self: Arc<Self>, version: Version) {
        tokio::time::sleep(GRACE).await;
        let mut joined = self.network.lock().await;
        if let Some(joined) = joined.as_mut().filter(|joined| joined.topology.version() == version) {
            let neighbours = joined.neighbours();
            for node in joined.tunnels.keep_only(&neighbours) {
                joined.plane.disconnect(node);
            }
        }
    }

    /// Answers the coordinator.
    pub async fn answer_about_network(&self, question: Question) -> Result<Answer, String> {
        let mut joined = self.network.lock().await;
        match (question, &mut *joined) {
            (Question::State, None) => Ok(Answer::Net(Box::default())),
            (Question::State, Some(joined)) => Ok(Answer::Net(Box::new(state::of(joined)))),
            (Question::Macs, None) => Ok(Answer::Macs(Vec::new())),
            (Question::Macs, Some(joined)) => Ok(Answer::Macs(state::macs(joined))),
            (Question::Matrix { .. }, None) => Ok(Answer::Flows(Vec::new())),
            (Question::Matrix { window_s }, Some(joined)) => {
                Ok(Answer::Flows(state::flows(joined, window_s)))
            }
            (_, None) => Err(not_joined()),
            (Question::Attach { device, purpose }, Some(joined)) => {
                joined.devices.attach(&joined.plane, device, purpose).await.map(|()| Answer::Done)
            }
            (Question::Detach { device }, Some(joined)) => {
                joined.devices.detach(&joined.plane, &device).map(|()| Answer::Done)
            }
        }
    }
}
