//! What the coordinator sends to processes of instances.

use std::sync::Arc;
use std::time::Duration;

use broker::Broker;
use fabric::attach::NotStarted;
use fabric::directory::{Answer, Due, Member};
use fabric::session::{End, FromSession, Server, SessionId, ToSession, Word};
use fabric::{ProcessId, Vid};
use instance::Kind;
use rpc::wire::FromNode;
use tokio::time::sleep;

use crate::agent::Agent;
use crate::instances::{Live, LiveInstances};

/// How long the agent in a virtual machine may take to connect when it has a command to run.
const AGENT_LIMIT: Duration = Duration::from_millis(1500);

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
    pub fn tell_session(&self, vid: Vid, server: Server, id: SessionId, message: ToSession) {
        // An instance that is on its way to another host receives it there.
        if let Some(live) = self.live.get(vid) {
            let is_command = server == Server::Commands && matches!(message, ToSession::Open(_));
            if live.kind == Kind::Vm && is_command {
                self.refuse_without_agent(vid, &live, id);
            }
            self.broker.tell_session(live.id(vid), server, id, message);
        }
    }

    /// Refuses a command in a virtual machine if no agent serves it soon. If one connects later, the coordinator no longer knows the
    /// session.
    fn refuse_without_agent(&self, vid: Vid, live: &Live, id: SessionId) {
        let (broker, agent, instance) = (self.broker.clone(), self.agent.clone(), live.id(vid));
        if !broker.lacks_sessions(instance) {
            return;
        }
        tokio::spawn(async move {
            sleep(AGENT_LIMIT).await;
            if broker.lacks_sessions(instance) {
                let (server, word) = (Server::Commands, Word::One(id, without_agent()));
                agent.uplink().send(&FromNode::Sessions { vid, server, word });
            }
        });
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

fn without_agent() -> FromSession {
    let what = "no agent has connected from the virtual machine".to_owned();
    let remedy =
        "wait until the guest has booted, install the agent there (docs/virtual-machines.md), or use ssh";
    let why = NotStarted { code: 126, what, remedy: remedy.to_owned() };
    FromSession::Ended { end: End::NotStarted(why), lengths: [0, 0] }
}
