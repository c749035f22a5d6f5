//! Hosts that the coordinator reports as removed from the cluster.

use std::sync::Arc;

use rpc::Outbox;
use rpc::removed::Removed;
use rpc::wire::{Answer, FromNode};

use crate::node::Node;

impl Node {
    /// Believes no more whom `removed` bars: connections end, also those that are just being made, and tunnels' keys are forgotten. The
    /// coordinator is told by an answer of this `number`, if it wants one.
    pub fn believe(self: &Arc<Self>, removed: Removed, number: Option<u64>, outbox: Outbox<FromNode>) {
        let gate = self.endpoint.gate();
        if gate.removed() != removed {
            gate.set(removed.clone());
            self.directory.forget_hosts(|host| removed.is_nobodys(host.as_str()));
            self.note_removed(&removed);
        }
        let node = self.clone();
        tokio::spawn(async move {
            node.end_barred_tunnels().await;
            if let Some(number) = number {
                // A coordinator that is gone does not want to know any more.
                let _ = outbox.send(&FromNode::Answer { number, answer: Ok(Answer::Done) });
            }
        });
    }
}
