//! The overlay: its hosts, links and devices, and how changes reach the nodes.
//!
//! * [`plan`]: the wanted hosts and links. [`rollout`]: installs a plan on all nodes.
//! * [`devices`]: devices and the locations of stations. [`moves`]: moves devices to other hosts. [`own`]: devices that nodes request
//!   for themselves.
//! * [`nics`]: instances on the overlay.
//! * [`misbehaviour`]: rate limit for reports of failed offloads.
//! * [`changes`], [`show`]: the requests of the command line.

pub mod changes;
mod devices;
mod misbehaviour;
mod moves;
mod nics;
mod own;
mod plan;
#[cfg(test)]
pub mod played;
mod rollout;
pub mod show;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use ::moves::HostName;
use api::{Failure, NetSwitchedOff, Occurrence};
use overlay::topology::Version;
use rpc::Encoded;
use rpc::net::{DeviceKind, FromNode, ToNode};
use rpc::wire::FromCoordinator;
use store::StoreError;

use crate::cluster::{Cluster, Inner};
use crate::failure;
use plan::Plan;
use rollout::{Order, PATIENCE};

pub use devices::Devices;
pub use misbehaviour::Misbehaviour;
pub use own::Wishes;
pub use plan::not_joined;
pub use rollout::Rollout;

/// The longest reason that a node may report for switching off an offload, in bytes.
const LONGEST_WORD: usize = 256;

/// Loads the overlay from the store. Nodes get their orders when they connect.
pub fn load(store: &store::Store) -> Result<Rollout, StoreError> {
    let mut rollout = Rollout::default();
    rollout.begin(store.network::<Plan>()?.unwrap_or_default());
    Ok(rollout)
}

/// Waits for the nodes of the plan to reconnect after the coordinator's start.
pub async fn await_nodes(cluster: Arc<Cluster>) {
    let version = cluster.lock().network.plan().version();
    await_installation(cluster, version).await;
}

/// Handles a node that has connected.
pub fn connected(cluster: &Arc<Cluster>, inner: &mut Inner, host: &HostName) {
    let order = inner.network.connected(host);
    if order.is_some() {
        inner.order(order);
        inner.tell_devices(host);
    }
    let plan = inner.network.plan();
    let is_center = cluster.admission.get().is_some_and(|admission| admission.center() == host);
    let changed = match plan.is_empty() {
        true if is_center => Some(plan::first_star(host)),
        false if !plan.is_member(host) => Some(plan.join(host)),
        _ => None,
    };
    if let Some(changed) = changed {
        let joined = changed.and_then(|plan| use_plan(cluster, inner, plan));
        if let Err(failure) = joined {
            tracing::warn!("cannot join {host} to the overlay: {failure}");
        }
    }
}

/// Handles a message of a node.
pub fn heard(cluster: &Arc<Cluster>, host: &HostName, message: FromNode) {
    let mut inner = cluster.lock();
    let orders = match message {
        FromNode::Installed { version } => inner.network.installed(host, version),
        FromNode::NotInstalled { version, reason } => inner.network.not_installed(host, version, reason),
        FromNode::Own { device, address, mtu, former } => {
            let wanted = own::Wanted { device, kind: DeviceKind::Station { address, mtu }, former };
            return own::wish(cluster, &mut inner, host, wanted);
        }
        FromNode::SwitchedOff(off) => return note_offload(&mut inner, host, off),
    };
    inner.order(orders);
    drop(inner);
    cluster.network_changed.notify_waiters();
}

/// Logs that `host` has switched off an offload.
fn note_offload(inner: &mut Inner, host: &HostName, off: NetSwitchedOff) {
    let words = [Some(&off.offload), off.link.as_ref(), off.device.as_ref(), Some(&off.reason)];
    // Genuine reports are never longer.
    let is_short = words.into_iter().flatten().all(|word| word.len() <= LONGEST_WORD);
    if is_short && inner.misbehaviour.admits(host, Instant::now()) {
        inner.log.note(&Occurrence::OffloadSwitchedOff { host: host.to_string(), off });
    }
}

/// Stores `plan` and starts its rollout.
fn use_plan(cluster: &Arc<Cluster>, inner: &mut Inner, plan: Plan) -> Result<(), Failure> {
    inner.check_whole()?;
    // Nodes identify the hosts of devices and instances by these numbers.
    let nic_hosts = inner.nic_hosts();
    let plan = plan.forget_numbers(|host| inner.devices.count(host) > 0 || nic_hosts.contains(host));
    plan.topology()?;
    inner.store.ready().map_err(|error| failure::of_store(&error))?;
    inner.store.set_network(&plan).map_err(|error| cluster.not_written(inner, error))?;
    let version = plan.version();
    let before = inner.network.plan().members().cloned().collect::<BTreeSet<_>>();
    let orders = inner.network.begin(plan);
    let newcomers = orders.iter().flat_map(|order| &order.to).filter(|host| !before.contains(*host));
    let newcomers: Vec<_> = newcomers.cloned().collect();
    inner.order(orders);
    newcomers.iter().for_each(|host| inner.tell_devices(host));
    tokio::spawn(await_installation(cluster.clone(), version));
    Ok(())
}

/// Removes `host` and its devices from the overlay, and links the remaining hosts without it.
pub fn leave(cluster: &Arc<Cluster>, inner: &mut Inner, host: &HostName) -> Result<(), Failure> {
    changes::take_all_away(cluster, inner, host)?;
    let plan = inner.network.plan();
    if plan.is_member(host) { use_plan(cluster, inner, plan.leave(host)) } else { Ok(()) }
}

async fn await_installation(cluster: Arc<Cluster>, version: Version) {
    tokio::time::sleep(PATIENCE).await;
    let mut inner = cluster.lock();
    let orders = inner.network.time_is_up(version);
    inner.order(orders);
    drop(inner);
    cluster.network_changed.notify_waiters();
}

impl Inner {
    fn order(&self, orders: impl IntoIterator<Item = Order>) {
        for Order { to, what } in orders {
            let Ok(message) = Encoded::new(&FromCoordinator::Net(what)) else {
                tracing::error!("the overlay's state is too large for a message to {} nodes", to.len());
                continue;
            };
            for node in to.iter().filter_map(|host| self.nodes.get(host)) {
                // If the outbox is closed, the reader of the connection detects the loss.
                let _ = node.outbox.send_encoded(&message);
            }
        }
    }

    /// Sends an order to all nodes of the overlay.
    fn order_all(&self, what: ToNode) {
        let to = self.network.plan().members().cloned().collect();
        self.order([Order { to, what }]);
    }

    /// Sends the node of `host` the list of its devices.
    fn settle(&self, host: &HostName) {
        self.order([Order { to: vec![host.clone()], what: self.devices.of_host(host) }]);
    }

    /// Sends the node of `host` its devices and the locations of all stations.
    fn tell_devices(&self, host: &HostName) {
        self.settle(host);
        let number = |host: &str| self.network.plan().number(&HostName::new(host).ok()?);
        let parts = self.devices.stations(number, self.nic_entries()).into_iter();
        self.order(parts.map(|what| Order { to: vec![host.clone()], what }));
    }
}

#[cfg(test)]
mod tests {
    use api::Shape;

    use super::*;
    use plan::MOST_NUMBERS;

    #[tokio::test]
    async fn a_host_that_has_a_device_keeps_its_number_however_many_others_leave() {
        let directory = tempfile::tempdir().unwrap();
        let cluster = Cluster::open(&directory.path().join("store")).unwrap();
        let (h1, h2) = (HostName::new("h1").unwrap(), HostName::new("h2").unwrap());
        let mut inner = cluster.lock();
        let inner = &mut *inner;
        let lay = |inner: &mut Inner, hosts: BTreeSet<HostName>| {
            let plan = inner.network.plan().lay(Shape::Star, None, &hosts, false).unwrap();
            use_plan(&cluster, inner, plan).unwrap();
        };
        lay(inner, [h1.clone(), h2.clone()].into());
        let number = |inner: &Inner, host| inner.network.plan().number(host);
        let had = number(inner, &h1).unwrap();
        let kind = DeviceKind::Station { address: None, mtu: 1400 };
        let device = inner.devices.add(&inner.store, &devices::key(&h1, "tap1"), kind, None).unwrap();
        for round in 0..4 {
            let others =
                (0..MOST_NUMBERS / 3).map(|other| HostName::new(&format!("n{round}-{other}")).unwrap());
            lay(inner, others.collect());
        }
        assert_eq!(number(inner, &h2), None, "the number is forgotten");
        lay(inner, [h1.clone(), h2.clone()].into());
        // h1 keeps its number, because nodes ignore a new location with an unchanged epoch.
        assert_eq!(number(inner, &h1), Some(had));
        assert!(number(inner, &h2).is_some_and(|number| number != had && number.0 > 2));
        let entry = inner.devices.entry(device.mac, |_| number(inner, &h1)).unwrap();
        assert_eq!((entry.node, entry.epoch), (had, device.epoch));
    }
}
