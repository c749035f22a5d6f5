//! The instances that run on this host: in the broker, and watched until they end.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use broker::{Broker, Config, Namespace};
use engine_api::{Intent, Report, State};
use fabric::{Epoch, Vid};
use instance::{Blueprint, Carried, InstanceName};
use moves::HostName;
use moves::entry::Role;
use moves::journal::Exit;
use moves::node::Input;
use rpc::wire;

use super::departing::Departing;
use super::ended::Ended;
use super::engines::Engines;
use super::files::StateFiles;
use super::guests::Guests;
use super::live::{Live, LiveInstances};
use super::machines;
use super::shortage::Shortages;
use super::this_host::ThisHost;
use crate::agent::Agent;

/// How often to ask the engine again whether an instance has ended; each call returns at once when it ends.
const WAIT: Duration = Duration::from_secs(60);

/// The exit code that a shell reports for a killed command.
const KILLED: i32 = 137;

/// The instances of this host, from the start of their node's part in them until the coordinator knows their end.
pub struct Instances {
    live: Arc<LiveInstances>,
    engines: Arc<Engines>,
    broker: Broker,
    files: Arc<StateFiles>,
    agent: Arc<Agent>,
    ended: Arc<Ended>,
    host: Arc<ThisHost>,
    shortages: Shortages,
    guests: Guests,
    /// Instances whose remains are being removed.
    departing: Departing,
}

impl Instances {
    pub fn new(
        live: Arc<LiveInstances>,
        engines: Arc<Engines>,
        broker: Broker,
        files: Arc<StateFiles>,
        agent: Arc<Agent>,
        ended: Arc<Ended>,
        host: Arc<ThisHost>,
    ) -> Self {
        let shortages = Shortages::new(live.clone(), engines.clone(), agent.clone());
        let guests = Guests::new(engines.clone(), broker.clone());
        Self {
            live,
            engines,
            broker,
            files,
            agent,
            ended,
            host,
            shortages,
            guests,
            departing: Departing::default(),
        }
    }

    /// The instance with this VID.
    pub fn get(&self, vid: Vid) -> Option<Live> {
        self.live.get(vid)
    }

    /// The instance with this VID, which must be here.
    ///
    /// # Errors
    /// If it is not here, in words.
    pub fn known(&self, vid: Vid) -> Result<Live, String> {
        self.get(vid).ok_or_else(|| format!("instance {vid} is not on host {}", self.host.name()))
    }

    /// Tells the coordinator how this host runs virtual machines.
    pub fn report_machines(&self) {
        machines::report(&self.engines, &self.agent);
    }

    /// Checks an instance without further consequences.
    ///
    /// # Errors
    /// Errors of the engine.
    pub async fn look(&self, live: &Live, intent: Intent) -> engine_api::Result<Report> {
        self.engines.look(live, intent).await
    }

    pub fn set_state(&self, vid: Vid, state: State) {
        self.live.set_state(vid, state);
    }

    /// Enters an instance that has not started here, and returns it.
    pub fn enter(&self, vid: Vid, blueprint: &Blueprint) -> Live {
        let live = Live::new(blueprint, State::Prepared, None);
        self.live.insert(vid, live.clone());
        live
    }

    /// Waits until all remains of an earlier instance of this name are removed.
    pub async fn wait_for_departure(&self, name: &InstanceName) {
        self.departing.wait_for(name).await;
    }

    /// Writes the blueprint of an instance, so that it is found again after a restart.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write_blueprint(&self, vid: Vid, blueprint: &[u8]) -> io::Result<()> {
        self.files.write_blueprint(vid, blueprint)
    }

    /// Writes the state of the broker of the instance's last host.
    ///
    /// # Errors
    /// If the files cannot be written.
    pub fn write_carried(&self, vid: Vid, carried: &Carried) -> io::Result<()> {
        self.files.write_carried(vid, carried)
    }

    /// Adds the instance to the broker, unless it is there already.
    pub async fn add_to_broker(&self, vid: Vid, live: &Live) -> engine_api::Result<()> {
        let id = live.id(vid);
        if self.broker.carried(id).is_some() {
            return Ok(());
        }
        let network = self.engines.local(live, |local| local.network_namespace()).await?;
        self.broker.add(Config { id, network, pids: None, carried: self.files.carried(vid) });
        Ok(())
    }

    /// Listens for the processes of an instance, which has made `epoch` moves.
    ///
    /// # Errors
    /// Errors of making the instance's socket.
    pub async fn listen(&self, vid: Vid, live: &Live, epoch: Epoch) -> io::Result<()> {
        self.broker.resume(live.id(vid), epoch).await
    }

    /// Records that the instance runs with first process `pid`, and watches for its end.
    pub fn runs(self: &Arc<Self>, vid: Vid, pid: Option<i32>) {
        let Some(live) = self.get(vid) else { return };
        self.live.set_runs(vid, pid);
        let pids = pid.and_then(|pid| Namespace::of_process(pid, "pid").ok());
        if let Some(pids) = pids {
            self.broker.set_pids(live.id(vid), pids);
        }
        if self.live.begin_watch(vid) {
            tokio::spawn(self.clone().watch(vid, live.clone()));
        }
        let instances = self.clone();
        tokio::spawn(async move { instances.guests.connect(vid, &live).await });
    }

    async fn watch(self: Arc<Self>, vid: Vid, live: Live) {
        let ended = loop {
            match self.engines.local(&live, |local| local.wait(WAIT)).await {
                Ok(false) => {}
                Ok(true) => break true,
                Err(_) => break false,
            }
        };
        self.live.end_watch(vid);
        if ended {
            self.has_ended(vid);
        }
    }

    fn has_ended(&self, vid: Vid) {
        let Some(live) = self.get(vid) else { return };
        self.set_state(vid, State::Ended);
        let exit = self.exit_of(vid, &live);
        if self.reported_code(vid, &live).is_none() {
            self.shortages.report(vid);
        }
        self.agent.input(Input::Exited { vid, exit });
    }

    /// The exit code of its command, if its first process has reported one.
    fn reported_code(&self, vid: Vid, live: &Live) -> Option<i32> {
        let carried = self.broker.carried(live.id(vid));
        carried.map_or_else(|| self.files.carried(vid).exit, |carried| carried.exit)
    }

    /// The exit of an instance whose processes are gone.
    pub fn exit_of(&self, vid: Vid, live: &Live) -> Exit {
        match self.reported_code(vid, live) {
            Some(code) => Exit::Code(code),
            None if live.is_killed => Exit::Code(KILLED),
            None => Exit::Lost { reason: live.lost.clone().unwrap_or_else(|| unknown_end(live)) },
        }
    }

    /// Ends an instance at a user's request. A virtual machine is powered down, and killed if it does not end within `grace`.
    ///
    /// # Errors
    /// If it moves or is not here, or the engine cannot end it.
    pub async fn kill(&self, vid: Vid, grace: Duration) -> Result<(), String> {
        if self.is_ended(vid)? {
            return Ok(());
        }
        if !grace.is_zero() {
            if self.power_down(vid, grace).await {
                self.has_ended(vid);
                return Ok(());
            }
            // Meanwhile it may have been removed, or a coordinator that has restarted may have begun a move.
            if self.agent.entry(vid).is_none() || self.is_ended(vid)? {
                return Ok(());
            }
        }
        if let Some(live) = self.live.set_killed(vid) {
            self.shortages.report(vid);
            self.engines.destroy(&live).await.map_err(|error| error.to_string())?;
            self.has_ended(vid);
        }
        Ok(())
    }

    /// Whether an instance has ended.
    ///
    /// # Errors
    /// If it moves or is not here.
    fn is_ended(&self, vid: Vid) -> Result<bool, String> {
        match self.agent.entry(vid).map(|entry| entry.role) {
            Some(Role::Host { .. }) => Ok(false),
            Some(Role::Ended { .. }) => Ok(true),
            Some(_) => Err(wire::reason("the instance is being moved", "wait for the move, or cancel it")),
            None => Err("the instance is not on this host".into()),
        }
    }

    /// Tells the workload to end in an orderly way, if it is of a kind that can, and waits for that, for at most `grace`; returns whether
    /// it has ended.
    async fn power_down(&self, vid: Vid, grace: Duration) -> bool {
        let Some(live) = self.get(vid) else { return false };
        let ended =
            self.engines.local(&live, move |local| Ok(local.power_down()? && local.wait(grace)?)).await;
        ended.unwrap_or_else(|error| {
            tracing::warn!("`{}` cannot be powered down, and is killed: {error}", live.name);
            false
        })
    }

    /// Records the reason for an instance's end, unless a better one becomes known.
    pub fn set_lost(&self, vid: Vid, reason: &str) {
        self.live.set_lost(vid, reason);
    }

    /// Records from which host the pager of an instance fetches missing memory.
    pub fn set_fetches_from(&self, vid: Vid, source: Option<HostName>) {
        self.live.set_fetches_from(vid, source);
    }

    /// Ends an instance that cannot continue.
    ///
    /// # Errors
    /// If the engine cannot end it.
    pub async fn end(&self, vid: Vid, live: &Live) -> engine_api::Result<()> {
        self.set_state(vid, State::Ended);
        self.engines.destroy(live).await
    }

    /// Removes an instance that has moved away.
    ///
    /// # Errors
    /// If the engine cannot remove its remains.
    pub async fn leave(&self, vid: Vid, live: &Live) -> engine_api::Result<()> {
        self.guests.disconnect(vid);
        self.broker.remove(live.id(vid));
        self.shortages.report(vid);
        self.engines.destroy(live).await
    }

    /// Begins to remove an ended instance: from now on, another one of its name waits.
    pub fn begin_departure(&self, live: &Live) {
        self.departing.begin(live.name.clone());
    }

    /// Removes an ended instance, once the coordinator knows its end and after [`Instances::begin_departure`]. Its output is kept.
    /// `closing` ends what else has to do with it.
    pub async fn remove(&self, vid: Vid, live: &Live, closing: impl Future<Output = ()>) {
        // In this order, so that the output can be read at any time.
        if let Some(carried) = self.broker.carried(live.id(vid)) {
            self.ended.keep(vid, carried);
        }
        self.broker.remove(live.id(vid));
        self.guests.disconnect(vid);
        self.live.remove(vid);
        if let Err(error) = self.engines.destroy(live).await {
            tracing::warn!("{error}");
        }
        closing.await;
        self.files.remove(vid);
        self.departing.end(&live.name);
    }

    /// Forgets an instance and its files.
    pub fn forget(&self, vid: Vid) {
        self.guests.disconnect(vid);
        self.live.remove(vid);
        self.files.remove(vid);
    }

    /// The instance, restored from a checkpoint, runs here again, and so has not ended.
    pub fn runs_again(&self, vid: Vid) {
        self.ended.runs_again(vid);
    }
}

/// The reason for the end of an instance, if no other is known.
fn unknown_end(live: &Live) -> String {
    match &live.fetches_from {
        None => "its processes are gone".into(),
        // The pager ends the instance when it ends.
        Some(source) => {
            format!("its processes, or its pager that fetched memory from host {source}, are gone")
        }
    }
}
