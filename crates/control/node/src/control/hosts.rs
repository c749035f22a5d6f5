//! What the coordinator says about hosts and places.

use std::net::SocketAddr;
use std::sync::Arc;

use moves::HostName;
use rpc::Outbox;
use rpc::removed::{Gate, Removed};
use rpc::wire::{Answer, FromNode, Moved};

use crate::agent::Agent;
use crate::directory::{Directory, Place};
use crate::links::Pool;
use crate::network::Network;

/// The limit of hosts that the node connects to in advance. In a larger cluster most hosts never communicate with each other, and
/// connections among all would exceed a machine's neighbour table.
const MAX_WARM: usize = 16;

/// Keeps what this node knows about the hosts of the cluster.
pub struct Hosts {
    this_host: HostName,
    /// Admits hosts to connections with this node.
    gate: Gate,
    directory: Arc<Directory>,
    pool: Arc<Pool>,
    agent: Arc<Agent>,
    network: Arc<Network>,
}

impl Hosts {
    pub fn new(
        this_host: HostName,
        gate: Gate,
        directory: Arc<Directory>,
        pool: Arc<Pool>,
        agent: Arc<Agent>,
        network: Arc<Network>,
    ) -> Self {
        Self { this_host, gate, directory, pool, agent, network }
    }

    /// Records the addresses of hosts, and connects to them if they are few.
    pub fn set(&self, hosts: Vec<(HostName, SocketAddr)>) {
        let others = hosts.iter().map(|(host, _)| host.clone()).filter(|host| *host != self.this_host);
        let others: Vec<_> = others.collect();
        self.directory.set_hosts(hosts);
        if others.len() <= MAX_WARM {
            for host in others {
                let pool = self.pool.clone();
                tokio::spawn(async move { pool.warm(&host).await });
            }
        }
    }

    /// Records where instances are after their moves.
    pub fn note_moved(&self, moved: Vec<Moved>) {
        for Moved { vid, host, epoch } in moved {
            self.directory.note(vid, Place { host, epoch });
        }
    }

    /// Stops trusting the hosts that `removed` bars: ends their connections, including those in the making, and forgets their
    /// tunnels' keys. Answers the coordinator with this `number`, if it wants an answer.
    pub fn set_removed(&self, removed: Removed, number: Option<u64>, outbox: Outbox<FromNode>) {
        if self.gate.removed() != removed {
            self.gate.set(removed.clone());
            self.directory.forget_hosts(|host| removed.is_nobodys(host.as_str()));
            self.agent.note_removed(&removed);
        }
        let (network, gate) = (self.network.clone(), self.gate.clone());
        tokio::spawn(async move {
            network.end_barred_tunnels(&gate).await;
            if let Some(number) = number {
                // The connection may be lost; then no answer is wanted.
                let _ = outbox.send(&FromNode::Answer { number, answer: Ok(Answer::Done) });
            }
        });
    }
}
