//! Joins the overlay, and installs topologies.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use moves::HostName;
use overlay::switch::{Limits, Switch};
use overlay::topology::{NodeId, Topology, Version};
use overlay_io::faults::SwitchedOff;
use overlay_io::offloads::Offloads;
use overlay_io::plane::Plane;
use overlay_io::socket::Socket;
use rpc::net::FromNode;
use tokio::runtime::Handle;
use tokio::time::timeout;

use super::devices::Devices;
use super::dialling::TunnelKeeper;
use super::joined::{Joined, Membership};
use super::kernel::{carrying_kernel, usable_offloads};
use super::nics::Nics;
use super::state;
use super::tunnels::{Neighbour, Tunnels};
use crate::uplink::Uplink;

/// After a change, how long hosts may still send by the former topology: unneeded tunnels stay that long.
const GRACE: Duration = Duration::from_secs(5);

/// How long to wait for tunnels before a topology is installed without them: less than the coordinator waits.
const PATIENCE: Duration = Duration::from_secs(3);

/// The configuration of this host's part of the overlay.
pub struct Config {
    pub host: HostName,
    /// The address for datagrams.
    pub address: SocketAddr,
    /// The enabled offloads.
    pub offloads: Offloads,
    /// The devices of instances, which exist before this host joins the overlay again.
    pub nics: Nics,
}

/// Installs topologies on this host.
pub struct Installer {
    config: Config,
    membership: Arc<Membership>,
    keeper: Arc<TunnelKeeper>,
    uplink: Arc<Uplink>,
}

impl Installer {
    pub fn new(
        config: Config,
        membership: Arc<Membership>,
        keeper: Arc<TunnelKeeper>,
        uplink: Arc<Uplink>,
    ) -> Self {
        Self { config, membership, keeper, uplink }
    }

    /// Installs a topology, and joins the overlay before if this host is not part of it.
    ///
    /// # Errors
    /// If this host is not part of the topology, or cannot join the overlay.
    pub async fn install(
        &self,
        overlay: u64,
        topology: Topology,
        plain: HashSet<(NodeId, NodeId)>,
        hosts: BTreeMap<NodeId, HostName>,
    ) -> io::Result<()> {
        let version = topology.version();
        let me = hosts.iter().find(|(_, host)| **host == self.config.host).map(|(node, _)| *node);
        let me = me.ok_or_else(|| io::Error::other("the topology does not name this host"))?;
        let mut joined = self.membership.lock().await;
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
                self.report_offloads_of(&joined.plane);
                joined
            }
        };
        (joined.topology, joined.plain, joined.hosts) = (topology, plain, hosts);
        joined.plane.command(|switch, _, _| switch.install(routes)).map_err(io::Error::other)?;
        let neighbours = joined.neighbours();
        let dial = |host, patience| self.keeper.clone().start_dialling(host, patience);
        for node in joined.tunnels.keep_also(joined.me, &neighbours, dial) {
            joined.plane.disconnect(node);
        }
        let (membership, uplink) = (self.membership.clone(), self.uplink.clone());
        tokio::spawn(async move { report_installed(&membership, &uplink, version, neighbours).await });
        Ok(())
    }

    /// Joins the overlay as `me`.
    async fn join(&self, overlay: u64, me: NodeId, topology: &Topology) -> io::Result<Joined> {
        let mut nonce = [0; 8];
        getrandom::fill(&mut nonce).map_err(io::Error::other)?;
        let mut socket = Socket::bind(self.config.address).map_err(|error| {
            io::Error::new(
                error.kind(),
                format!("opening the datagram socket at {}: {error}", self.config.address),
            )
        })?;
        let mut offloads = usable_offloads(self.config.offloads).await;
        let kernel = carrying_kernel(&mut offloads).await;
        socket.set_offloads(offloads)?;
        let switch = Switch::new(me, u64::from_ne_bytes(nonce), Limits::default());
        let plane = Arc::new(Plane::start(switch, socket, kernel)?);
        self.config.nics.join(&plane, me, offloads.of_taps());
        Ok(Joined {
            overlay,
            me,
            offloads,
            devices: Devices::new(plane.clone(), offloads.of_taps()),
            nics: self.config.nics.clone(),
            plane,
            topology: topology.clone(),
            plain: HashSet::new(),
            hosts: BTreeMap::new(),
            tunnels: Tunnels::default(),
            listed: Vec::new(),
            moving: HashSet::new(),
        })
    }

    /// Lets `plane` report offloads that it stops using.
    fn report_offloads_of(&self, plane: &Plane) {
        let (membership, uplink) = (Arc::downgrade(&self.membership), self.uplink.clone());
        let runtime = Handle::current();
        plane.tell_of_offloads(move |off| {
            if let Some(membership) = membership.upgrade() {
                let uplink = uplink.clone();
                runtime.spawn(async move { report_offload(&membership, &uplink, off).await });
            }
        });
    }

    /// Uses an installed topology.
    ///
    /// # Errors
    /// If it is not installed.
    pub async fn use_version(&self, version: Version) -> io::Result<()> {
        let joined = self.membership.lock().await;
        let joined = joined.as_ref().ok_or_else(|| io::Error::other("no topology is installed"))?;
        joined.plane.command(|switch, _, _| switch.use_version(version)).map_err(io::Error::other)?;
        let membership = self.membership.clone();
        tokio::spawn(async move { close_needless(&membership, version).await });
        Ok(())
    }
}

/// Reports `version` as installed when the tunnels that it needs are up: frames sent by it earlier would be lost. It waits for
/// a tunnel only for a limited time.
async fn report_installed(
    membership: &Membership,
    uplink: &Uplink,
    version: Version,
    neighbours: HashMap<HostName, Neighbour>,
) {
    let standing = async {
        loop {
            let mut changed = std::pin::pin!(membership.changed());
            changed.as_mut().enable();
            let joined = membership.lock().await;
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
    uplink.send(&rpc::wire::FromNode::Net(FromNode::Installed { version }));
}

/// Closes the tunnels that `version` does not need, unless another version is in use by then.
async fn close_needless(membership: &Membership, version: Version) {
    tokio::time::sleep(GRACE).await;
    let mut joined = membership.lock().await;
    if let Some(joined) = joined.as_mut().filter(|joined| joined.topology.version() == version) {
        let neighbours = joined.neighbours();
        for node in joined.tunnels.keep_only(&neighbours) {
            joined.plane.disconnect(node);
        }
    }
}

async fn report_offload(membership: &Membership, uplink: &Uplink, off: SwitchedOff) {
    let joined = membership.lock().await;
    let Some(joined) = &*joined else { return };
    let off = state::switched_off(joined, &off);
    tracing::warn!("an offload misbehaves, and is now disabled: {}", off.in_words());
    uplink.send(&rpc::wire::FromNode::Net(FromNode::SwitchedOff(off)));
}
