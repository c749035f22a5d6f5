//! This host's part of the overlay.
//!
//! * [`tunnels`]: connections to the neighbours of this host, over which tunnels agree on keys.
//! * [`fallback`]: datagrams over these connections.
//! * [`devices`]: attached devices; [`interface`]: creates network devices of this host; [`namespace`]: network namespaces for them.
//! * [`nics`]: the devices of instances.
//! * [`orders`]: carries out the coordinator's orders one after the other.
//! * [`own`]: the device of the node itself.
//!
//! None of it exists before the coordinator has laid links to this host.

mod devices;
mod fallback;
mod interface;
mod namespace;
mod nics;
mod orders;
mod own;
mod state;
mod tunnels;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use api::{NetFlow, NetHostState};
use moves::HostName;
use overlay::Mac;
use overlay::switch::{Entry, Limits, Switch};
use overlay::topology::{NodeId, Topology, Version};
use overlay_io::faults::SwitchedOff;
use overlay_io::kernel::Kernel;
use overlay_io::offloads::Offloads;
use overlay_io::plane::Plane;
use overlay_io::socket::Socket;
use rpc::net::{FromNode, Question};
use rpc::wire::{Answer, reason};
use tokio::sync::{Mutex, MutexGuard, Notify, mpsc};
use tokio::time::timeout;

use crate::node::Node;
use devices::Devices;
use fallback::Traffic;
use orders::Order;
use own::OwnDevice;
use tunnels::{Neighbour, Tunnels};

pub use nics::Nics;
pub use orders::Orders;
pub use own::Device;

/// After a change, how long hosts may still send by the former topology: unneeded tunnels stay that long.
const GRACE: Duration = Duration::from_secs(5);

/// How long to wait for tunnels before a topology is installed without them: less than the coordinator waits.
const PATIENCE: Duration = Duration::from_secs(3);

/// This host's part of the overlay.
pub struct Network {
    /// The address for datagrams.
    address: SocketAddr,
    /// The enabled offloads.
    offloads: Offloads,
    joined: Mutex<Option<Joined>>,
    /// The devices of instances, which exist before this host joins the overlay again.
    pub nics: Nics,
    sessions: AtomicU32,
    orders: mpsc::UnboundedSender<Order>,
    own: OwnDevice,
    traffic: Traffic,
    /// Notified when a tunnel's connection is established or lost.
    changed: Notify,
    /// Notified when the coordinator must repeat all orders, as after a reconnect.
    pub renewal: Notify,
}

/// The state of this host while it is part of the overlay.
struct Joined {
    /// The identity of the overlay.
    overlay: u64,
    me: NodeId,
    plane: Arc<Plane>,
    topology: Topology,
    /// Links whose datagrams are not encrypted, the lower number first.
    plain: HashSet<(NodeId, NodeId)>,
    hosts: BTreeMap<NodeId, HostName>,
    tunnels: Tunnels,
    /// The offloads in use.
    offloads: Offloads,
    devices: Devices,
    nics: Nics,
    /// Stations from an incomplete list of the coordinator.
    told: Vec<Entry>,
    /// Stations that move to this host or away from it, according to the coordinator.
    moving: HashSet<Mac>,
}

impl Joined {
    /// The hosts that this host sends to directly.
    fn neighbours(&self) -> HashMap<HostName, Neighbour> {
        let other = |a: NodeId, b: NodeId| match self.me {
            me if me == a => Some(b),
            me if me == b => Some(a),
            _ => None,
        };
        let nodes = self.topology.links().iter().filter_map(|link| other(link.a, link.b));
        let neighbour = |node: NodeId| {
            let plain = self.plain.contains(&(node.min(self.me), node.max(self.me)));
            Some((self.hosts.get(&node)?.clone(), Neighbour { node, plain }))
        };
        nodes.filter_map(neighbour).collect()
    }
}

/// The answer to a question about the overlay before this host joins it.
fn not_joined() -> String {
    reason("this host is not part of the overlay", "`transhume net layout` adds all hosts that are up")
}

/// The offloads of `wanted` that this host's kernel does correctly.
async fn usable_offloads(wanted: Offloads) -> Offloads {
    let tried = tokio::task::spawn_blocking(move || wanted.probe()).await;
    let offloads = tried.map_err(io::Error::other).and_then(|probed| probed).unwrap_or_else(|error| {
        tracing::warn!("the kernel's offloads cannot be tested, and are not used: {error}");
        Offloads::NONE
    });
    if wanted.kernel && !Kernel::is_built() {
        tracing::warn!(
            "the kernel forwards no frames between stations: this program was built without clang"
        );
    }
    if offloads != wanted {
        tracing::warn!("usable kernel offloads: {offloads:?}");
    }
    offloads
}

/// The kernel's forwarding of frames, if it is one of the `offloads` and works here.
async fn carrying_kernel(offloads: &mut Offloads) -> Option<Kernel> {
    if !offloads.kernel {
        return None;
    }
    let of_taps = offloads.of_taps();
    let made = tokio::task::spawn_blocking(move || Kernel::new(of_taps)).await;
    let kernel = made.map_err(io::Error::other).and_then(|made| made).inspect_err(|error| {
        tracing::warn!("the kernel forwards no frames between stations: {error}");
    });
    offloads.kernel = kernel.is_ok();
    kernel.ok()
}

impl Network {
    /// A host that is not part of the overlay yet. It will receive datagrams at `address`; `own` is a device that the node
    /// requests, and `nics` has those of instances. Also returns the coordinator's orders, for [`Node::follow_orders`].
    pub fn new(
        address: SocketAddr,
        offloads: Offloads,
        own: Option<Device>,
        nics: Nics,
    ) -> io::Result<(Self, Orders)> {
        let mut first = [0; 4];
        // A number that an earlier node used has no meaning for this one.
        getrandom::fill(&mut first).map_err(io::Error::other)?;
        let sessions = AtomicU32::new(u32::from_ne_bytes(first));
        let (orders, given) = mpsc::unbounded_channel();
        let (joined, changed, renewal) = (Mutex::default(), Notify::new(), Notify::new());
        let (own, traffic) = (OwnDevice::new(own), Traffic::new()?);
        let network =
            Self { address, offloads, joined, nics, sessions, orders, own, traffic, changed, renewal };
        Ok((network, Orders(given)))
    }

    fn next_session(&self) -> u32 {
        self.sessions.fetch_add(1, Ordering::Relaxed)
    }

    async fn lock(&self) -> MutexGuard<'_, Option<Joined>> {
        self.joined.lock().await
    }
}

impl Node {
    async fn install(
        self: &Arc<Self>,
        overlay: u64,
        topology: Topology,
        plain: HashSet<(NodeId, NodeId)>,
        hosts: BTreeMap<NodeId, HostName>,
    ) -> io::Result<()> {
        let version = topology.version();
        let me = hosts.iter().find(|(_, host)| **host == self.host).map(|(node, _)| *node);
        let me = me.ok_or_else(|| io::Error::other("the topology does not name this host"))?;
        let mut joined = self.network.lock().await;
        let is_same = |joined: &Joined| joined.overlay == overlay && joined.me == me;
        if joined.as_ref().is_some_and(|joined| is_same(joined) && joined.topology.version() > version) {
            return Ok(());
        }
        let computed = topology.clone();
        let routes =
            tokio::task::spawn_blocking(move || computed.routes(me)).await.map_err(io::Error::other)?;
        let routes = routes.map_err(io::Error::other)?;
        let joined = match &mut *joined {
            Some(joined) if is_same(joined) => joined,
            // A host with another number is another host to the others.
            before => {
                *before = None;
                let joined = before.insert(self.join(overlay, me, &topology).await?);
                self.hear_of_offloads(&joined.plane);
                joined
            }
        };
        (joined.topology, joined.plain, joined.hosts) = (topology, plain, hosts);
        joined.plane.command(|switch, _, _| switch.install(routes)).map_err(io::Error::other)?;
        let neighbours = joined.neighbours();
        for node in joined.tunnels.keep_also(self, joined.me, &neighbours) {
            joined.plane.disconnect(node);
        }
        tokio::spawn(self.clone().report_installed(version, neighbours));
        Ok(())
    }

    /// Reports `version` as installed when the tunnels that it needs are up: frames sent by it earlier would be lost. It waits for
    /// a tunnel only for a limited time.
    async fn report_installed(self: Arc<Self>, version: Version, neighbours: HashMap<HostName, Neighbour>) {
        let standing = async {
            loop {
                let mut changed = std::pin::pin!(self.network.changed.notified());
                changed.as_mut().enable();
                let joined = self.network.lock().await;
                if joined.as_ref().is_none_or(|joined| joined.tunnels.all_stand(&neighbours)) {
                    return;
                }
                drop(joined);
                changed.await;
            }
        };
        if timeout(PATIENCE, standing).await.is_err() {
            tracing::warn!("not all tunnels of topology {version} are up");
        }
        self.uplink.send(&rpc::wire::FromNode::Net(FromNode::Installed { version }));
    }

    /// Joins the overlay as `me`.
    async fn join(&self, overlay: u64, me: NodeId, topology: &Topology) -> io::Result<Joined> {
        let mut nonce = [0; 8];
        getrandom::fill(&mut nonce).map_err(io::Error::other)?;
        let mut socket = Socket::bind(self.network.address).map_err(|error| {
            io::Error::new(
                error.kind(),
                format!("opening the datagram socket at {}: {error}", self.network.address),
            )
        })?;
        let mut offloads = usable_offloads(self.network.offloads).await;
        let kernel = carrying_kernel(&mut offloads).await;
        socket.set_offloads(offloads)?;
        let switch = Switch::new(me, u64::from_ne_bytes(nonce), Limits::default());
        let plane = Arc::new(Plane::start(switch, socket, kernel)?);
        self.network.nics.join(&plane, me, offloads.of_taps());
        Ok(Joined {
            overlay,
            me,
            offloads,
            devices: Devices::new(plane.clone(), offloads.of_taps()),
            nics: self.network.nics.clone(),
            plane,
            topology: topology.clone(),
            plain: HashSet::new(),
            hosts: BTreeMap::new(),
            tunnels: Tunnels::default(),
            told: Vec::new(),
            moving: HashSet::new(),
        })
    }

    /// Lets `plane` report offloads that it stops using.
    fn hear_of_offloads(self: &Arc<Self>, plane: &Plane) {
        let (node, runtime) = (Arc::downgrade(self), tokio::runtime::Handle::current());
        plane.tell_of_offloads(move |off| {
            if let Some(node) = node.upgrade() {
                runtime.spawn(async move { node.tell_of_offload(off).await });
            }
        });
    }

    async fn tell_of_offload(&self, off: SwitchedOff) {
        let joined = self.network.lock().await;
        let Some(joined) = &*joined else { return };
        let off = state::switched_off(joined, &off);
        tracing::warn!("an offload misbehaves, and is now disabled: {}", off.in_words());
        self.uplink.send(&rpc::wire::FromNode::Net(FromNode::SwitchedOff(off)));
    }

    async fn use_version(self: &Arc<Self>, version: Version) -> io::Result<()> {
        let joined = self.network.lock().await;
        let joined = joined.as_ref().ok_or_else(|| io::Error::other("no topology is installed"))?;
        joined.plane.command(|switch, _, _| switch.use_version(version)).map_err(io::Error::other)?;
        tokio::spawn(self.clone().close_needless(version));
        Ok(())
    }

    /// Closes the tunnels that `version` does not need, unless another version is in use by then.
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

    /// The state of the overlay on this host, and its recent traffic by pairs of MACs.
    pub async fn look_at_network(&self, window_s: u64) -> (NetHostState, Vec<NetFlow>) {
        match &*self.network.lock().await {
            Some(joined) => (state::of(joined), state::flows(joined, window_s)),
            None => Default::default(),
        }
    }

    /// Answers a question of the coordinator about the overlay.
    pub async fn answer_about_network(&self, question: Question) -> Result<Answer, String> {
        let mut joined = self.network.lock().await;
        let Some(joined) = &mut *joined else {
            return match question {
                Question::State => Ok(Answer::Net(Box::default())),
                Question::Macs { .. } | Question::Find { .. } => Ok(Answer::Macs(Vec::new())),
                Question::Matrix { .. } => Ok(Answer::Flows(Vec::new())),
                _ => Err(not_joined()),
            };
        };
        let done = match question {
            Question::State => return Ok(Answer::Net(Box::new(state::of(joined)))),
            Question::Macs { first } => return Ok(Answer::Macs(state::macs(joined, first))),
            Question::Find { mac } => return Ok(Answer::Macs(state::find(joined, mac))),
            Question::Matrix { window_s } => return Ok(Answer::Flows(state::flows(joined, window_s))),
            Question::Look { device, netns } => {
                return interface::look(&device, netns.as_deref()).await.map(Answer::Tap);
            }
            Question::UpToDate => Ok(()),
            Question::Attach(device) => joined.devices.attach(device).await,
            Question::Prepare { device, epoch } => joined.devices.prepare(device, epoch).await,
            Question::Pause { mac } => joined.devices.pause(mac),
            Question::Commit(entry) => joined.devices.commit(entry),
            Question::Resume { mac } => joined.devices.resume(mac),
        };
        done.map(|()| Answer::Done)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::os::fd::AsFd;

    use fabric::Epoch;
    use fabric::netns;
    use overlay::switch::{Gate, Origin, PortState};
    use overlay_io::tap;
    use rpc::net::{Device, DeviceKind, ToNode};

    use super::*;

    pub(super) const HERE: NodeId = NodeId(1);
    pub(super) const THERE: NodeId = NodeId(2);
    const MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);

    fn device() -> Device {
        Device { name: "tap1".into(), mac: MAC, kind: DeviceKind::Station { address: None, mtu: 1400 } }
    }

    fn entry(node: NodeId, epoch: u64) -> Entry {
        Entry { mac: MAC, node, port: None, epoch: Epoch(epoch), addresses: vec![] }
    }

    fn devices(devices: &[Device], moving: &[Mac]) -> ToNode {
        ToNode::Devices { devices: devices.to_vec(), moving: moving.to_vec() }
    }

    fn all_stations(entry: Entry) -> [ToNode; 2] {
        let all_until = Some(Epoch(9));
        let part = |entries, all_until| ToNode::Stations { entries, all_until };
        [part(vec![entry], None), part(vec![], all_until)]
    }

    /// A node that has just started.
    pub(super) fn started() -> Joined {
        let topology = Topology::mesh(Version(1), &[HERE, THERE]).unwrap();
        let mut switch = Switch::new(HERE, 7, Limits::default());
        switch.install(topology.routes(HERE).unwrap()).unwrap();
        switch.use_version(Version(1)).unwrap();
        let socket = Socket::bind((Ipv4Addr::UNSPECIFIED, 0).into()).unwrap();
        let plane = Arc::new(Plane::start(switch, socket, None).unwrap());
        Joined {
            overlay: 1,
            me: HERE,
            devices: Devices::new(plane.clone(), tap::Offloads::NONE),
            nics: Nics::default(),
            offloads: Offloads::NONE,
            plane,
            topology,
            plain: HashSet::new(),
            hosts: BTreeMap::new(),
            tunnels: Tunnels::default(),
            told: Vec::new(),
            moving: HashSet::new(),
        }
    }

    /// The location and epoch of the station, and the ports.
    fn known(joined: &Joined) -> (Option<(NodeId, u64)>, Vec<PortState>) {
        joined.plane.command(|switch, now, _| {
            let managed = switch.macs(now).into_iter().find_map(|known| match known.origin {
                Origin::Managed { epoch, .. } if known.mac == MAC => Some((known, epoch.0)),
                _ => None,
            });
            let ports = switch.state(now).ports;
            if let Some((known, _)) = managed {
                assert_eq!(known.port.is_some(), known.node == HERE);
            }
            (managed.map(|(known, epoch)| (known.node, epoch)), ports)
        })
    }

    /// A node that was restarted in the middle of a move and receives these orders, in a namespace without other devices.
    async fn restarted(told: impl IntoIterator<Item = ToNode>) -> Joined {
        let mut joined = started();
        for order in told {
            joined.obey(order).await;
        }
        joined
    }

    /// Lets `test` make devices in a namespace of its own.
    fn alone<T: Future<Output = ()>>(test: impl FnOnce() -> T + Send) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let namespace = netns::create().unwrap();
        netns::enter(namespace.as_fd(), || runtime.block_on(test())).unwrap();
    }

    #[track_caller]
    fn assert_runs_here(joined: &Joined, epoch: u64) {
        let (place, ports) = known(joined);
        assert_eq!(place, Some((HERE, epoch)));
        assert_eq!(ports.iter().map(|port| port.gate).collect::<Vec<_>>(), [Gate::Open]);
        assert!(joined.plane.is_served(ports[0].port));
    }

    #[test]
    fn a_proxy_goes_back_into_its_bridge() {
        let ip = |line: &str| {
            let called = std::process::Command::new("ip").args(line.split(' ')).output().unwrap();
            assert!(called.status.success(), "{line}: {called:?}");
            called.stdout
        };
        alone(async || {
            let bridge = "br1".to_owned();
            ip("link add br1 type bridge");
            let mut joined = started();
            let proxy = Device { kind: DeviceKind::Proxy { bridge }, ..device() };
            joined.devices.attach(proxy).await.unwrap();
            let failure = |joined: &Joined| joined.devices.iter().next().unwrap().failure.clone();
            for leave in ["link set tap1 nomaster", "link del br1"] {
                ip(leave);
                joined.devices.mend().await;
                let is_there = failure(&joined).is_none();
                assert_eq!(is_there, leave != "link del br1", "{leave}: {:?}", failure(&joined));
            }
            assert!(failure(&joined).unwrap().starts_with("br1 is not a bridge on this host"));
            ip("link add br1 type bridge");
            joined.devices.mend().await;
            assert_eq!(failure(&joined), None);
            assert!(!ip("link show master br1").is_empty());
        });
    }

    #[test]
    fn a_destination_that_was_restarted_before_the_commit_has_the_station_in_the_end() {
        alone(async || {
            let [some, all] = all_stations(entry(THERE, 3));
            let mut joined = restarted([devices(&[], &[MAC]), some, all]).await;
            assert_eq!(known(&joined).0, Some((THERE, 3)));
            // The preparations of the former node are gone.
            joined.devices.commit(entry(HERE, 4)).unwrap_err();
            joined.devices.resume(MAC).unwrap_err();
            assert_eq!(known(&joined), (Some((THERE, 3)), vec![]));
            joined.obey(devices(&[device()], &[])).await;
            joined.obey(ToNode::Station(entry(HERE, 4))).await;
            assert_runs_here(&joined, 4);
        });
    }

    #[test]
    fn a_destination_that_was_restarted_after_the_commit_has_the_station_in_the_end() {
        alone(async || {
            let [some, all] = all_stations(entry(HERE, 4));
            let mut joined = restarted([devices(&[device()], &[MAC]), some, all]).await;
            assert_eq!(known(&joined).0, None, "until the move is over");
            joined.obey(devices(&[device()], &[])).await;
            joined.obey(ToNode::Station(entry(HERE, 4))).await;
            assert_runs_here(&joined, 4);
        });
    }

    #[test]
    fn a_source_that_was_restarted_before_the_commit_keeps_the_station() {
        alone(async || {
            let [some, all] = all_stations(entry(HERE, 3));
            let mut joined = restarted([devices(&[device()], &[MAC]), some, all]).await;
            joined.obey(devices(&[device()], &[])).await;
            joined.obey(ToNode::Station(entry(HERE, 3))).await;
            assert_runs_here(&joined, 3);
        });
    }

    #[test]
    fn a_source_that_was_restarted_after_the_commit_knows_where_the_station_is() {
        alone(async || {
            let [some, all] = all_stations(entry(THERE, 4));
            let mut joined = restarted([devices(&[], &[MAC]), some, all]).await;
            joined.obey(devices(&[], &[])).await;
            joined.obey(ToNode::Station(entry(THERE, 4))).await;
            assert_eq!(known(&joined), (Some((THERE, 4)), vec![]));
        });
    }
}
