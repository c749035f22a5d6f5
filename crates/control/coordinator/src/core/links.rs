//! The nodes' connections.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;

use api::MachineSupport;
use moves::HostName;
use rpc::removed::KeyId;
use rpc::wire::{Answer, FromCoordinator};
use rpc::{Encoded, Outbox, Pending};

/// A node's connection.
#[derive(Clone)]
pub struct NodeLink {
    /// Identifies the connection among all connections of the node.
    pub serial: u64,
    pub runs_instances: bool,
    /// The key in the node's certificate.
    pub key: KeyId,
    pub outbox: Outbox<FromCoordinator>,
    pub pending: Pending<Result<Answer, String>>,
}

/// The connections, and the addresses of all hosts that have connected since the coordinator started.
#[derive(Default)]
pub struct Links {
    nodes: HashMap<HostName, NodeLink>,
    addresses: BTreeMap<HostName, SocketAddr>,
    /// How connected hosts run virtual machines.
    machines: BTreeMap<HostName, MachineSupport>,
}

impl Links {
    /// Whether the node of `host` is connected.
    pub fn is_up(&self, host: &HostName) -> bool {
        self.nodes.contains_key(host)
    }

    /// The connection of the node of `host`.
    pub fn get(&self, host: &HostName) -> Option<&NodeLink> {
        self.nodes.get(host)
    }

    /// The hosts whose nodes are connected.
    pub fn up(&self) -> impl Iterator<Item = &HostName> {
        self.nodes.keys()
    }

    /// The hosts that have connected, with the addresses at which their nodes listen.
    pub fn addresses(&self) -> &BTreeMap<HostName, SocketAddr> {
        &self.addresses
    }

    /// How the host runs virtual machines, if its node is connected and has said so.
    pub fn machines(&self, host: &HostName) -> Option<&MachineSupport> {
        self.machines.get(host)
    }

    pub(super) fn set_machines(&mut self, host: HostName, support: MachineSupport) {
        self.machines.insert(host, support);
    }

    /// Sends a message to a node, if it is connected.
    pub fn send(&self, to: &HostName, message: &FromCoordinator) {
        if let Some(node) = self.nodes.get(to) {
            // If this fails, the connection is lost, and its reader detects that.
            let _ = node.outbox.send(message);
        }
    }

    /// Sends a message to all nodes.
    pub fn send_all(&self, message: &FromCoordinator) {
        self.send_to(self.nodes.keys(), message);
    }

    /// Sends a message to those of `hosts` that are connected; `false` if it is too long to be sent.
    pub fn send_to<'a>(
        &self,
        hosts: impl IntoIterator<Item = &'a HostName>,
        message: &FromCoordinator,
    ) -> bool {
        let Ok(message) = Encoded::new(message) else { return false };
        for node in hosts.into_iter().filter_map(|host| self.nodes.get(host)) {
            // As in `send`.
            let _ = node.outbox.send_encoded(&message);
        }
        true
    }

    pub(super) fn insert(&mut self, host: HostName, link: NodeLink, address: SocketAddr) {
        self.addresses.insert(host.clone(), address);
        self.nodes.insert(host, link);
    }

    pub(super) fn remove(&mut self, host: &HostName) -> Option<NodeLink> {
        self.machines.remove(host);
        self.nodes.remove(host)
    }

    pub(super) fn forget_address(&mut self, host: &HostName) {
        self.addresses.remove(host);
    }
}
