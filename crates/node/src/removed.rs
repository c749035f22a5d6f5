//! Hosts that the coordinator reports as removed from the cluster.

use std::sync::Arc;

use rpc::Outbox;
use rpc::removed::Removed;
use rpc::wire::{Answer, FromNode};

use crate::node::Node;

impl Node {
    /// Stops trusting the hosts that `removed` bars: ends their connections, including those in the making, and forgets their
    /// tunnels' keys. Answers the coordinator with this `number`, if it wants an answer.
    pub fn believe(self: &Arc<Self>, removed: Removed, number: Option<u64>, outbox: Outbox<FromNode>) {
        let gate = self.endpoint.gate();
        if gate.removed() != removed {
            gate.set(removed.clone());
            self.directory.forget_hosts(|host| removed.is_nobodys(host.as_str()));
            self.agent.note_removed(&removed);
        }
        let node = self.clone();
        tokio::spawn(async move {
            node.network.end_barred_tunnels(node.endpoint.gate()).await;
            if let Some(number) = number {
                // The connection may be lost; then no answer is wanted.
                let _ = outbox.send(&FromNode::Answer { number, answer: Ok(Answer::Done) });
            }
        });
    }
}
