//! The instances of this host: starts them, finds them after a restart, and removes them.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use broker::{Config, Namespace};
use engine_api::{Error, Intent, Recovered, Shortage, State};
use fabric::{Epoch, FabricId, InstanceId, Vid, network};
use instance::{Blueprint, InstanceName, Kind};
use moves::entry::Role;
use moves::journal::Exit;
use moves::node::Input;
use moves::protocol::ToCoordinator;
use overlay::Mac;
use rpc::wire::{self, Answer, FromNode, Question};
use tokio::sync::{oneshot, watch};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::engines::blocking;
use crate::fetching::Fetching;
use crate::images::saved;
use crate::node::{Node, Start};
use crate::operations::unreadable;

/// How often to ask the engine again whether an instance has ended; each call returns at once when it ends.
const WAIT: Duration = Duration::from_secs(60);

/// The exit code that a shell reports for a killed command.
const KILLED: i32 = 137;

/// The engine's part of an instance's state.
#[derive(Clone, Debug)]
pub struct Live {
    pub name: InstanceName,
    pub kind: Kind,
    pub fabric: FabricId,
    pub state: State,
    /// Its first process, if it was found again.
    pub first: Option<i32>,
    killed: bool,
    /// The reason of its loss, if it is known.
    lost: Option<String>,
    watched: bool,
}

impl Live {
    pub fn new(blueprint: &Blueprint, state: State, first: Option<i32>) -> Self {
        Self {
            name: blueprint.spec.name.clone(),
            kind: blueprint.spec.workload.kind(),
            fabric: blueprint.fabric,
            state,
            first,
            killed: false,
            lost: None,
            watched: false,
        }
    }

    pub fn id(&self, vid: Vid) -> InstanceId {
        InstanceId { fabric: self.fabric, vid }
    }
}

/// Instances whose remains are being removed. A new instance of the same name, or a restored one of the same VID, must wait for that.
#[derive(Debug, Default)]
pub struct Departing(watch::Sender<HashSet<InstanceName>>);

impl Departing {
    pub fn begin(&self, name: InstanceName) {
        self.0.send_modify(|names| {
            names.insert(name);
        });
    }

    pub fn end(&self, name: &InstanceName) {
        self.0.send_modify(|names| {
            names.remove(name);
        });
    }

    /// Waits until all remains of an instance called `name` are removed.
    pub async fn wait_for(&self, name: &InstanceName) {
        // The channel is never closed while a task waits.
        let _ = self.0.subscribe().wait_for(|names| !names.contains(name)).await;
    }
}

impl Node {
    pub fn live(&self, vid: Vid) -> Option<Live> {
        self.lives().get(&vid).cloned()
    }

    pub fn set_state(&self, vid: Vid, state: State) {
        if let Some(live) = self.lives().get_mut(&vid) {
            live.state = state;
        }
    }

    /// Records the reason for an instance's end, unless a better one becomes known.
    pub fn is_lost(&self, vid: Vid, reason: &str) {
        if let Some(live) = self.lives().get_mut(&vid) {
            live.lost.get_or_insert_with(|| reason.to_owned());
        }
    }

    /// Matches the engine's instances with the node's records, and removes the others.
    pub async fn recover(self: &Arc<Self>) -> engine_api::Result<()> {
        let mut found = HashMap::new();
        for engine in self.engines.all() {
            let here = engine.clone();
            for Recovered { spec, state, pid } in blocking(move || here.recover()).await? {
                found.insert(spec.name, (engine.clone(), state, pid));
            }
        }
        for vid in self.agent.here() {
            match self.read_blueprint(vid) {
                Ok(blueprint) => {
                    let here = found.remove(&blueprint.spec.name);
                    let (state, first) = here.map_or((State::Ended, None), |(_, state, pid)| (state, pid));
                    self.lives().insert(vid, Live::new(&blueprint, state, first));
                    if matches!(state, State::Running | State::Stopped)
                        && let Err(error) = self.files.note_death(vid)
                    {
                        tracing::warn!(
                            "instance {vid}: recording that its output is incomplete failed: {error}"
                        );
                    }
                }
                Err(error) => tracing::warn!("instance {vid}: its blueprint cannot be read: {error}"),
            }
        }
        for (name, (engine, ..)) in found {
            tracing::info!("removing instance {name}, which is no longer needed");
            if let Err(error) = blocking(move || engine.destroy(&name)).await {
                tracing::warn!("{error}");
            }
        }
        Ok(())
    }

    /// Reads the blueprint of an instance. The store of a destination has it as well.
    fn read_blueprint(&self, vid: Vid) -> std::io::Result<Blueprint> {
        let read = |bytes: Vec<u8>| Blueprint::decode(&bytes).map_err(std::io::Error::other);
        match (self.files.blueprint(vid).and_then(read), self.agent.entry(vid).map(|entry| entry.role)) {
            (Err(_), Some(Role::Destination { spec, .. })) => read(spec),
            (kept, _) => kept,
        }
    }

    /// Adds the instance to the broker, unless it is there already.
    pub async fn add_to_broker(&self, vid: Vid, live: &Live) -> engine_api::Result<()> {
        let id = live.id(vid);
        if self.broker.carried(id).is_some() {
            return Ok(());
        }
        let network = self.local(live, |local| local.network_namespace()).await?;
        self.broker.add(Config { id, network, pids: None, carried: self.files.carried(vid) });
        Ok(())
    }

    /// Says that the instance's station, if it is one, is on this host with `epoch`.
    pub fn lives_here(&self, vid: Vid, epoch: Epoch) {
        self.nics.lives_here(Mac(network::mac_of(vid)), epoch);
    }

    /// Records that the instance runs with first process `pid`, and watches for its end.
    pub fn runs(self: &Arc<Self>, vid: Vid, pid: Option<i32>) {
        let Some(live) = self.live(vid) else { return };
        self.set_state(vid, State::Running);
        let pids = pid.and_then(|pid| Namespace::of_process(pid, "pid").ok());
        if let Some(pids) = pids {
            self.broker.set_pids(live.id(vid), pids);
        }
        let watched = self.lives().get_mut(&vid).map(|live| std::mem::replace(&mut live.watched, true));
        if watched == Some(false) {
            tokio::spawn(self.clone().watch(vid, live));
        }
    }

    async fn watch(self: Arc<Self>, vid: Vid, live: Live) {
        let ended = loop {
            match self.local(&live, |local| local.wait(WAIT)).await {
                Ok(false) => {}
                Ok(true) => break true,
                Err(_) => break false,
            }
        };
        if let Some(live) = self.lives().get_mut(&vid) {
            live.watched = false;
        }
        if ended {
            self.has_ended(vid);
        }
    }

    fn has_ended(self: &Arc<Self>, vid: Vid) {
        let Some(live) = self.live(vid) else { return };
        self.set_state(vid, State::Ended);
        let exit = self.exit_of(vid, &live);
        if self.said_code(vid, &live).is_none() {
            self.tell_of_shortage(vid);
        }
        self.agent.input(Input::Exited { vid, exit });
    }

    /// Tells the coordinator if the kernel has killed processes of the instance on this host for lack of memory: before it learns
    /// that the instance has ended, or after the instance has left.
    pub fn tell_of_shortage(&self, vid: Vid) {
        let Some(live) = self.live(vid) else { return };
        let Shortage { kills, limit } = self.shortage(&live);
        if kills > 0 {
            self.uplink.send(&FromNode::OutOfMemory { vid, processes: kills, limit });
        }
    }

    fn shortage(&self, live: &Live) -> Shortage {
        let local = self.engines.of(live.kind).and_then(|engine| engine.local(&live.name));
        local.map_or_else(|_| Shortage::default(), |local| local.shortage())
    }

    /// The exit code of its command, if its first process has reported one.
    fn said_code(&self, vid: Vid, live: &Live) -> Option<i32> {
        let carried = self.broker.carried(live.id(vid));
        carried.map_or_else(|| self.files.carried(vid).exit, |carried| carried.exit)
    }

    /// The exit of an instance whose processes are gone.
    pub fn exit_of(&self, vid: Vid, live: &Live) -> Exit {
        match self.said_code(vid, live) {
            Some(code) => Exit::Code(code),
            None if live.killed => Exit::Code(KILLED),
            None => Exit::Lost { reason: live.lost.clone().unwrap_or_else(|| self.is_gone(vid)) },
        }
    }

    /// The reason for the end of an instance, if no other is known.
    fn is_gone(&self, vid: Vid) -> String {
        match self.fetching().get(&vid) {
            None => "its processes are gone".into(),
            // The pager ends the instance when it ends.
            Some(Fetching { source, .. }) => {
                format!("its processes, or its pager that fetched memory from host {source}, are gone")
            }
        }
    }

    /// Removes an ended instance once the coordinator knows its end: only its output is kept.
    pub async fn farewell(&self, vid: Vid, live: &Live) {
        // In this order, so that the output can be read at any time.
        if let Some(carried) = self.broker.carried(live.id(vid)) {
            self.ended().keep(vid, carried);
        }
        self.broker.remove(live.id(vid));
        self.lives().remove(&vid);
        if let Err(error) = self.destroy_instance(live).await {
            tracing::warn!("{error}");
        }
        self.close_sides(vid).await;
        self.files.remove(vid);
    }

    pub async fn answer(self: &Arc<Self>, question: Question) -> Result<Answer, String> {
        match question {
            Question::Start { vid, blueprint, followed } => self.start(vid, &blueprint, followed).await,
            Question::Output { vid, from, follower } => self.output(vid, from, follower).await,
            Question::Unfollow { vid, follower } => {
                if let Some(live) = self.live(vid) {
                    self.broker.unfollow(live.id(vid), follower);
                }
                Ok(Answer::Done)
            }
            Question::Kill { vid } => self.kill(vid).await,
            Question::DiscardImages { vid, images } => {
                let discarding = spawn_blocking(move || saved::discard(Path::new(&images), vid));
                discarding.await.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
                Ok(Answer::Done)
            }
            Question::Weigh { vid } => self.weigh(vid).await,
        }
    }

    async fn start(self: &Arc<Self>, vid: Vid, bytes: &[u8], followed: bool) -> Result<Answer, String> {
        let blueprint = self.acceptable(bytes).inspect_err(|_| self.never_starts(vid))?;
        self.agent.enter_instance(vid).map_err(|error| error.to_string())?;
        self.departing.wait_for(&blueprint.spec.name).await;
        let live = Live::new(&blueprint, State::Prepared, None);
        self.lives().insert(vid, live.clone());
        let (waiter, word) = oneshot::channel();
        self.starts().insert(vid, waiter);
        let answer = match self.start_entered(vid, &live, blueprint, bytes, followed).await {
            Ok(()) => Ok(self.hear_start(word).await),
            Err(reason) => {
                self.agent.input(Input::Exited { vid, exit: Exit::NotStarted });
                Err(reason)
            }
        };
        self.starts().remove(&vid);
        answer
    }

    /// Decodes the blueprint of an instance, if there is room for its records.
    fn acceptable(&self, bytes: &[u8]) -> Result<Blueprint, String> {
        let blueprint = Blueprint::decode(bytes).map_err(|error| unreadable(&error))?;
        self.agent.ready().map_err(|reason| self.at_home(&reason))?;
        Ok(blueprint)
    }

    /// Tells the coordinator that an instance without a record on this host has ended. The coordinator receives this before the
    /// answer.
    fn never_starts(&self, vid: Vid) {
        let (epoch, exit) = (Epoch::default(), Exit::NotStarted);
        self.uplink.send(&FromNode::Moves(ToCoordinator::Exited { vid, epoch, exit }));
    }

    /// The report of the instance's first process about the start of the command. Without a report in time, the command counts as
    /// started; a failure may be reported later.
    async fn hear_start(&self, word: oneshot::Receiver<Start>) -> Answer {
        match timeout(self.start_patience, word).await {
            Ok(Ok(Err(why))) => Answer::NotStarted(why),
            _ => Answer::Done,
        }
    }

    async fn start_entered(
        self: &Arc<Self>,
        vid: Vid,
        live: &Live,
        blueprint: Blueprint,
        bytes: &[u8],
        followed: bool,
    ) -> Result<(), String> {
        self.has_network(&blueprint).await?;
        let in_words = |error: Error| self.engine_failed(&error);
        self.files
            .write_blueprint(vid, bytes)
            .map_err(|error| format!("the node's state directory: {error}"))?;
        self.engine(live.kind, move |engine| engine.create(&blueprint.spec)).await.map_err(in_words)?;
        self.add_to_broker(vid, live).await.map_err(in_words)?;
        if followed {
            self.broker.expect_follower(live.id(vid));
        }
        let listening = self.broker.resume(live.id(vid), Epoch::default()).await;
        listening.map_err(|error| format!("the instance's socket: {error}"))?;
        self.lives_here(vid, Epoch::default());
        let running = self.local(live, |local| local.start()).await.map_err(in_words)?;
        self.runs(vid, running.pid);
        Ok(())
    }

    async fn kill(self: &Arc<Self>, vid: Vid) -> Result<Answer, String> {
        match self.agent.entry(vid).map(|entry| entry.role) {
            Some(Role::Host { .. }) => {}
            Some(Role::Ended { .. }) => return Ok(Answer::Done),
            Some(_) => {
                return Err(wire::reason("the instance is being moved", "wait for the move, or cancel it"));
            }
            None => return Err("the instance is not on this host".into()),
        }
        let live = self.lives().get_mut(&vid).map(|live| {
            live.killed = true;
            live.clone()
        });
        if let Some(live) = live {
            self.tell_of_shortage(vid);
            self.destroy_instance(&live).await.map_err(|error| error.to_string())?;
            self.has_ended(vid);
        }
        Ok(Answer::Done)
    }

    async fn weigh(&self, vid: Vid) -> Result<Answer, String> {
        let live = self.live(vid).ok_or("the instance is not on this host")?;
        let report = self.look(&live, Intent { leaves: false, is_saved: false }).await;
        report.map(|report| Answer::Weight { bytes: report.needs.memory }).map_err(|error| error.to_string())
    }
}
