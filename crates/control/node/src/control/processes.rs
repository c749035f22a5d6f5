//! What the coordinator sends to processes of instances.

use std::sync::Arc;

use broker::Broker;
use fabric::directory::{Answer, Due, Member};
use fabric::session::{SessionId, ToSession};
use fabric::{ProcessId, Vid};
use rpc::wire::FromNode;

use crate::agent::Agent;
use crate::instances::LiveInstances;

/// Passes messages to processes of instances.
pub struct Processes {
    agent: Arc<Agent>,
    live: Arc<LiveInstances>,
    broker: Broker,
}

impl Processes {
    pub fn new(agent: Arc<Agent>, live: Arc<LiveInstances>, broker: Broker) -> Self {
        Self { agent, live, broker }
    }

    /// Passes an answer of the directory on.
    pub fn answer(&self, process: ProcessId, number: u64, answer: Answer) {
        if let Some(live) = self.live.get(process.vid) {
            let asker = Member { fabric: live.fabric, process };
            self.broker.answer(Due { asker, number, answer });
        }
    }

    /// Passes a message for a session on.
    pub fn tell_session(&self, vid: Vid, id: SessionId, message: ToSession) {
        // An instance that is on its way to another host receives it there.
        if let Some(live) = self.live.get(vid) {
            self.broker.tell_session(live.id(vid), id, message);
        }
    }

    /// Reports all processes. The coordinator keeps the directory only in memory, from the nodes' reports.
    pub fn report_again(&self) {
        for (instance, roster) in self.broker.rosters() {
            let indexes = roster.indexes();
            self.agent.uplink().send(&FromNode::Processes { vid: instance.vid, indexes });
        }
        self.broker.ask_again();
    }
}
