//! The reports of the broker.

use std::sync::Arc;

use broker::Observer;
use fabric::InstanceId;
use instance::Roster;
use moves::journal::Exit;
use moves::node::Input;
use rpc::wire::FromNode;

use super::files::StateFiles;
use super::shortage::Shortages;
use super::starts::{Start, Starts};
use crate::agent::Agent;

/// Writes the broker's reports to files, and tells the agent how commands ended.
pub struct BrokerObserver {
    agent: Arc<Agent>,
    files: Arc<StateFiles>,
    shortages: Shortages,
    starts: Arc<Starts>,
}

impl BrokerObserver {
    pub fn new(agent: Arc<Agent>, files: Arc<StateFiles>, shortages: Shortages, starts: Arc<Starts>) -> Self {
        Self { agent, files, shortages, starts }
    }
}

impl Observer for BrokerObserver {
    fn roster_changed(&self, instance: InstanceId, roster: &Roster) {
        self.agent.uplink().send(&FromNode::Processes { vid: instance.vid, indexes: roster.indexes() });
        if let Err(error) = self.files.write_roster(instance.vid, roster) {
            tracing::warn!("instance {instance}: recording its processes failed: {error}");
        }
    }

    fn exited(&self, instance: InstanceId, code: i32) {
        if let Err(error) = self.files.write_exit(instance.vid, code) {
            tracing::warn!("instance {instance}: recording its exit code failed: {error}");
        }
        self.shortages.report(instance.vid);
        self.agent.input(Input::Exited { vid: instance.vid, exit: Exit::Code(code) });
    }

    fn started(&self, instance: InstanceId, start: Start) {
        if start.is_err() {
            self.agent.input(Input::Exited { vid: instance.vid, exit: Exit::NotStarted });
        }
        self.starts.report(instance.vid, start);
    }
}
