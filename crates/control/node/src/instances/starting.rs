//! Starts instances.

use std::sync::Arc;
use std::time::Duration;

use broker::Broker;
use engine_api::Error;
use fabric::{Epoch, Vid};
use instance::{Blueprint, BlueprintError};
use moves::journal::Exit;
use moves::node::Input;
use moves::protocol::ToCoordinator;
use rpc::wire::{self, Answer, FromNode};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::engines::Engines;
use super::live::Live;
use super::running::Instances;
use super::starts::{Start, Starts};
use super::this_host::ThisHost;
use crate::agent::Agent;

/// Starts the instances that the coordinator orders.
pub struct Starter {
    host: Arc<ThisHost>,
    instances: Arc<Instances>,
    starts: Arc<Starts>,
    broker: Broker,
    engines: Arc<Engines>,
    agent: Arc<Agent>,
    /// How long to wait for the report that the command runs.
    patience: Duration,
}

impl Starter {
    pub fn new(
        host: Arc<ThisHost>,
        instances: Arc<Instances>,
        starts: Arc<Starts>,
        broker: Broker,
        engines: Arc<Engines>,
        agent: Arc<Agent>,
        patience: Duration,
    ) -> Self {
        Self { host, instances, starts, broker, engines, agent, patience }
    }

    /// Starts an instance. If it is `followed`, all of its output is kept for a follower that will come.
    ///
    /// # Errors
    /// If it cannot be started, in words.
    pub async fn start(&self, vid: Vid, bytes: &[u8], followed: bool) -> Result<Answer, String> {
        let blueprint = self.acceptable(bytes).inspect_err(|_| self.report_not_started(vid))?;
        self.agent.enter_instance(vid).map_err(|error| error.to_string())?;
        self.instances.wait_for_departure(&blueprint.spec.name).await;
        let live = self.instances.enter(vid, &blueprint);
        let report = self.starts.expect(vid);
        let answer = match self.start_entered(vid, &live, blueprint, bytes, followed).await {
            Ok(()) => Ok(self.await_report(report).await),
            Err(reason) => {
                self.agent.input(Input::Exited { vid, exit: Exit::NotStarted });
                Err(reason)
            }
        };
        self.starts.forget(vid);
        answer
    }

    /// Decodes the blueprint of an instance, if there is room for its records.
    fn acceptable(&self, bytes: &[u8]) -> Result<Blueprint, String> {
        let blueprint = Blueprint::decode(bytes).map_err(|error| unreadable(&error))?;
        self.host.check_room()?;
        Ok(blueprint)
    }

    /// Tells the coordinator that an instance without a record on this host has ended. The coordinator receives this before the
    /// answer.
    fn report_not_started(&self, vid: Vid) {
        let (epoch, exit) = (Epoch::default(), Exit::NotStarted);
        self.agent.uplink().send(&FromNode::Moves(ToCoordinator::Exited { vid, epoch, exit }));
    }

    /// The report of the instance's first process about the start of the command. Without a report in time, the command counts as
    /// started; a failure may be reported later.
    async fn await_report(&self, report: oneshot::Receiver<Start>) -> Answer {
        match timeout(self.patience, report).await {
            Ok(Ok(Err(why))) => Answer::NotStarted(why),
            _ => Answer::Done,
        }
    }

    async fn start_entered(
        &self,
        vid: Vid,
        live: &Live,
        blueprint: Blueprint,
        bytes: &[u8],
        followed: bool,
    ) -> Result<(), String> {
        self.host.check_network(&blueprint).await?;
        let in_words = |error: Error| self.host.in_words(&error);
        let written = self.instances.write_blueprint(vid, bytes);
        written.map_err(|error| format!("the node's state directory: {error}"))?;
        let creating = self.engines.run(live.kind, move |engine| engine.create(&blueprint.spec));
        creating.await.map_err(in_words)?;
        self.instances.add_to_broker(vid, live).await.map_err(in_words)?;
        if followed {
            self.broker.expect_follower(live.id(vid));
        }
        let listening = self.instances.listen(vid, live, Epoch::default()).await;
        listening.map_err(|error| format!("the instance's socket: {error}"))?;
        self.host.has_station(vid, Epoch::default());
        let running = self.engines.local(live, |local| local.start()).await.map_err(in_words)?;
        self.instances.runs(vid, running.pid);
        Ok(())
    }
}

/// The reason why a blueprint cannot be decoded, with the remedy.
pub fn unreadable(error: &BlueprintError) -> String {
    wire::reason(&error.to_string(), error.remedy())
}
