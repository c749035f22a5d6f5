//! The state of this host while it is part of the overlay.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use fabric::{Epoch, network};
use moves::HostName;
use overlay::Mac;
use overlay::switch::{Entry, MacState, Origin, Switch};
use overlay::topology::{NodeId, Topology};
use overlay_io::offloads::Offloads;
use overlay_io::plane::Plane;
use rpc::net::ToNode;
use tokio::sync::futures::Notified;
use tokio::sync::{Mutex, MutexGuard, Notify};

use super::devices::Devices;
use super::nics::Nics;
use super::tunnels::{Neighbour, Tunnels};

/// Whether this host is part of the overlay, and its state there.
#[derive(Default)]
pub struct Membership {
    joined: Mutex<Option<Joined>>,
    /// Notified when a tunnel's connection is established or lost.
    changed: Notify,
}

impl Membership {
    /// The state; `None` while this host is not part of the overlay.
    pub async fn lock(&self) -> MutexGuard<'_, Option<Joined>> {
        self.joined.lock().await
    }

    /// Becomes ready when a tunnel's connection is established or lost.
    pub fn changed(&self) -> Notified<'_> {
        self.changed.notified()
    }

    /// A tunnel's connection is established or lost.
    pub fn notify_changed(&self) {
        self.changed.notify_waiters();
    }
}

/// The state of this host while it is part of the overlay.
pub struct Joined {
    /// The identity of the overlay.
    pub overlay: u64,
    pub me: NodeId,
    pub plane: Arc<Plane>,
    pub topology: Topology,
    /// Links whose datagrams are not encrypted, the lower number first.
    pub plain: HashSet<(NodeId, NodeId)>,
    pub hosts: BTreeMap<NodeId, HostName>,
    pub tunnels: Tunnels,
    /// The offloads in use.
    pub offloads: Offloads,
    pub devices: Devices,
    pub nics: Nics,
    /// Stations from an incomplete list of the coordinator.
    pub listed: Vec<Entry>,
    /// Stations that move to this host or away from it, according to the coordinator.
    pub moving: HashSet<Mac>,
}

impl Joined {
    /// The hosts that this host sends to directly.
    pub fn neighbours(&self) -> HashMap<HostName, Neighbour> {
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

impl Joined {
    /// Carries out orders about devices and stations.
    pub async fn obey(&mut self, order: ToNode) {
        match order {
            ToNode::Install { .. } | ToNode::Use { .. } | ToNode::NotPlugged { .. } => {}
            ToNode::Devices { devices, moving } => {
                self.moving = moving.into_iter().collect();
                // Orders about stations start from the beginning.
                self.listed.clear();
                self.devices.set(devices, &self.moving).await;
            }
            ToNode::Stations { entries, all_until } => self.set_stations(entries, all_until),
            ToNode::Station(entry) => self.note(entry),
            ToNode::Withdraw { mac, epoch } => {
                self.plane.command(|switch, now, _| switch.withdraw(mac, epoch, now));
            }
        }
    }

    fn set_stations(&mut self, entries: Vec<Entry>, all_until: Option<Epoch>) {
        self.listed.extend(entries);
        let Some(until) = all_until else { return };
        let listed = std::mem::take(&mut self.listed);
        let mut present: HashSet<_> = listed.iter().map(|entry| entry.mac).collect();
        // Instances may have started since the list was made.
        present.extend(self.nics.macs());
        self.plane.command(|switch, now, _| {
            switch.withdraw_others(&present, until, now);
            withdraw_instances(switch, &present, now);
        });
        listed.into_iter().for_each(|entry| self.note(entry));
        self.devices.end_moves(&self.moving);
    }

    fn note(&self, entry: Entry) {
        let mac = entry.mac;
        // An instance that has not started here yet gets its device at its start.
        let is_expected = entry.node == self.me && network::is_an_instances(mac.0);
        if self.nics.apply(&entry) || is_expected {
            return;
        }
        if let Err(refused) = self.devices.commit(entry) {
            tracing::warn!("recording the location of {mac} failed: {refused}");
        }
    }
}

/// Treats instances that are not `present` as ended. Their epochs are separate from those of devices.
fn withdraw_instances(switch: &mut Switch, present: &HashSet<Mac>, now: Duration) {
    for MacState { mac, origin, .. } in switch.macs(now) {
        if let Origin::Managed { epoch, .. } = origin
            && network::is_an_instances(mac.0)
            && !present.contains(&mac)
        {
            switch.withdraw(mac, epoch.next(), now);
        }
    }
}
