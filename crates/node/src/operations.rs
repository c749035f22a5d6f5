//! The operations that the state machine of moves orders, carried out with the engine and the broker.

use std::fmt::Display;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use engines::{Needs, Report, Running, State, Watch};
use fabric::{Epoch, InstanceId, NetworkKind, Vid};
use instance::{Blocker, Blueprint, BlueprintError, InstanceName};
use moves::entry::Role;
use moves::journal::Exit;
use moves::node::{Input, Operation, Outcome};
use moves::protocol::Suspension;
use moves::{HostName, MoveId, Side};
use rpc::frame;
use rpc::wire::{self, Measurement};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::cancel::Cancel;
use crate::images::{self, saved};
use crate::instances::Live;
use crate::node::Node;

/// How long the instance's processes may take to let go.
const SUSPEND_LIMIT: Duration = Duration::from_secs(5);

/// How long the report that an instance runs waits for its processes to attach.
const RESUME_LIMIT: Duration = Duration::from_secs(2);

/// Before the socket of an instance that runs is tried again.
const LISTEN_AGAIN: Duration = Duration::from_millis(100);

/// How long a node that was just started may take to be joined to the overlay.
const JOIN_LIMIT: Duration = Duration::from_secs(5);

/// How long a dump may take, and a restore.
const ENGINE_LIMIT: Duration = Duration::from_secs(300);

/// How often it is told how far a pre-copy is.
pub const PROGRESS: Duration = Duration::from_millis(250);

/// Why an operation failed, in words.
pub struct Reason(pub String);

impl<E: Display> From<E> for Reason {
    fn from(error: E) -> Self {
        Self(error.to_string())
    }
}

pub type Result<T> = std::result::Result<T, Reason>;

impl Node {
    /// Does `operation`; `leaving` is the move in which this host is the source, if it is.
    pub async fn perform_operation(
        self: &Arc<Self>,
        vid: Vid,
        operation: Operation,
        leaving: Option<(MoveId, Side)>,
        cancel: &Arc<Cancel>,
    ) -> Outcome {
        let done = match operation {
            Operation::CheckSource { destination, dry_run } => {
                self.check_source(vid, &destination, dry_run, cancel).await
            }
            Operation::CheckDestination { spec, facts, post_copy } => {
                self.check_destination((&spec, &facts), post_copy).await
            }
            Operation::Prepare { id, source, spec, facts, post_copy, .. } => {
                self.prepare(vid, (id, source), (&spec, &facts), post_copy, cancel).await
            }
            Operation::Receive { id } => self.receive(vid, id, cancel).await,
            Operation::Restore { id } => self.restore(vid, id, cancel).await,
            Operation::Release { id, epoch } => self.release(vid, id, epoch).await,
            Operation::Precopy { id, destination, post_copy } => {
                self.precopy(vid, id, (destination, post_copy), cancel).await
            }
            Operation::Fetch { id, source } => self.fetch(vid, id, source, cancel).await,
            Operation::Suspend => self.suspend(vid, leaving, cancel).await,
            Operation::Send { id, destination: Side::Host(host) } => self.send(vid, id, host, cancel).await,
            Operation::Send { id, destination: Side::Images(directory) } => {
                self.save(vid, id, directory, cancel).await
            }
            Operation::Continue { epoch } => self.carry_on(vid, epoch).await,
            Operation::Abort { id } => self.abort(vid, id).await,
            Operation::Destroy { .. } => self.destroy(vid).await,
        };
        done.unwrap_or_else(|Reason(reason)| Outcome::Failed { reason })
    }

    pub fn known(&self, vid: Vid) -> Result<Live> {
        self.live(vid).ok_or_else(|| Reason(format!("instance {vid} is not on host {}", self.host)))
    }

    /// The node has an entry of the instance and nothing else, so nothing of it runs: it ended before the
    /// instance was started, or has lost its files.
    fn nothing_left(&self) -> Outcome {
        let host = &self.host;
        let reason =
            format!("host {host} restarted before it had started the instance, or has lost its files");
        Outcome::Gone { exit: Exit::Lost { reason } }
    }

    async fn check_source(
        self: &Arc<Self>,
        vid: Vid,
        destination: &Side,
        dry_run: bool,
        cancel: &Arc<Cancel>,
    ) -> Result<Outcome> {
        let live = self.known(vid)?;
        let name = live.name.clone();
        if let Some(refusal) = self.no_room() {
            return Ok(refusal);
        }
        let (checked, is_saved) = (name.clone(), destination.host().is_none());
        let report = self.engine(move |engine| engine.check(&checked, is_saved)).await;
        let Report { blockers, needs } = report.map_err(|error| self.in_words(error))?;
        if !blockers.is_empty() {
            return Ok(refused(&blockers));
        }
        if !dry_run {
            self.await_whole(live.id(vid), cancel).await?;
            // While the destination prepares itself. What fails is tried again when it is needed.
            let arming = self.clone();
            tokio::spawn(async move { arming.engine(move |engine| engine.arm(&name)).await });
        }
        Ok(Outcome::Checked { facts: frame::encode(&needs)? })
    }

    /// Takes back what a check has got ready for a move, which is over.
    pub async fn disarm(&self, vid: Vid) {
        let Some(live) = self.live(vid) else { return };
        if let Err(error) = self.engine(move |engine| engine.disarm(&live.name)).await {
            tracing::warn!("{error}");
        }
    }

    async fn check_destination(&self, (spec, facts): (&[u8], &[u8]), post_copy: bool) -> Result<Outcome> {
        let blueprint = Blueprint::decode(spec).map_err(|error| unreadable(&error))?;
        let refusal = self.verify(&blueprint, facts, post_copy).await?;
        Ok(refusal.unwrap_or(Outcome::Checked { facts: Vec::new() }))
    }

    /// The refusal, if this host does not have what the instance needs.
    async fn verify(&self, blueprint: &Blueprint, facts: &[u8], post_copy: bool) -> Result<Option<Outcome>> {
        let needs: Needs = frame::decode(facts)?;
        if let Err(reason) = self.has_network(blueprint).await {
            return Ok(Some(Outcome::Refused { reasons: vec![reason] }));
        }
        if let Some(refusal) = self.no_room() {
            return Ok(Some(refusal));
        }
        let blockers = self.engine(move |engine| engine.verify(&needs)).await;
        let mut blockers = blockers.map_err(|error| self.in_words(error))?;
        blockers.extend(engines::pager::unavailable().filter(|_| post_copy));
        Ok((!blockers.is_empty()).then(|| refused(&blockers)))
    }

    /// Checks that this host has what the instance's network device is to be plugged into.
    pub async fn has_network(&self, blueprint: &Blueprint) -> std::result::Result<(), String> {
        match blueprint.spec.network_kind {
            NetworkKind::Bridge => Ok(()),
            NetworkKind::Overlay => {
                let ready = self.network.nics.ready(JOIN_LIMIT).await;
                ready.map_err(|reason| self.at_home(&reason))
            }
        }
    }

    /// The refusal, if this host has no room for the records of a move.
    fn no_room(&self) -> Option<Outcome> {
        self.agent.ready().err().map(|reason| Outcome::Refused { reasons: vec![self.at_home(&reason)] })
    }

    /// `reason` with this host's name.
    pub fn at_home(&self, reason: &str) -> String {
        format!("host {}: {reason}", self.host)
    }

    async fn prepare(
        &self,
        vid: Vid,
        (id, source): (MoveId, Side),
        (spec, facts): (&[u8], &[u8]),
        post_copy: bool,
        cancel: &Cancel,
    ) -> Result<Outcome> {
        let blueprint = Blueprint::decode(spec).map_err(|error| unreadable(&error))?;
        if let Some(refusal) = self.verify(&blueprint, facts, post_copy).await? {
            return Ok(refusal);
        }
        if let Side::Images(directory) = &source
            && let Err(reason) = self.check_saved(vid, directory, cancel).await
        {
            return Ok(Outcome::Refused { reasons: vec![reason.0] });
        }
        self.departing.wait_for(&blueprint.spec.name).await;
        let needed = frame::decode::<Needs>(facts)?.images();
        self.files.write_blueprint(vid, spec).map_err(|error| self.not_noted(&error))?;
        let live = Live::new(&blueprint, State::Prepared, None);
        let name = live.name.clone();
        self.lives().insert(vid, live);
        let prepared = self.engine(move |engine| {
            engine.prepare(&blueprint.spec, needed)?;
            if post_copy {
                engine.await_memory(&name)?;
            }
            engine.arm(&name)
        });
        if let Err(error) = prepared.await {
            return Ok(Outcome::Refused { reasons: vec![self.in_words(error).0] });
        }
        if let Side::Host(source) = source {
            self.receptions.expect(id, vid, source);
        }
        Ok(Outcome::Done)
    }

    async fn suspend(
        self: &Arc<Self>,
        vid: Vid,
        leaving: Option<(MoveId, Side)>,
        cancel: &Arc<Cancel>,
    ) -> Result<Outcome> {
        let live = self.known(vid)?;
        let asked = Instant::now();
        // Only if this node has started again since the check.
        self.await_whole(live.id(vid), cancel).await?;
        self.await_turn(&live, cancel).await.map_err(|error| self.in_words(error))?;
        if let Some((id, _)) = leaving {
            self.measured(id, Measurement::Turn { waited_us: micros(asked.elapsed()) });
        }
        // Who has let go by then comes back when the broker listens again.
        let suspending = self.broker.suspend(live.id(vid), SUSPEND_LIMIT);
        let report = cancel.unless(suspending).await.ok_or("cancelled")??;
        if let Some((_, Side::Host(destination))) = &leaving {
            let active = report.processes.iter().flat_map(|process| &process.active_peers);
            let peers = active.map(|peer| peer.vid).filter(|peer| *peer != vid).collect();
            tokio::spawn(self.clone().announce_peers(destination.clone(), vid, peers));
        }
        let sum = |of: fn(&broker::SuspendedProcess) -> u32| report.processes.iter().map(of).sum();
        let suspension = Suspension {
            elapsed: report.elapsed,
            queue_pairs: sum(|process| process.queue_pairs),
            memory_regions: sum(|process| process.memory_regions),
        };
        if let Some((id, _)) = leaving {
            let slowest = report.processes.iter().map(|process| process.elapsed_us).max();
            let measurement = Measurement::Suspended {
                slowest_us: slowest.unwrap_or_default(),
                round_us: micros(report.elapsed),
                processes: u32::try_from(report.processes.len()).unwrap_or(u32::MAX),
                queue_pairs: suspension.queue_pairs,
                memory_regions: suspension.memory_regions,
            };
            self.measured(id, measurement);
        }
        Ok(Outcome::Suspended(suspension))
    }

    /// Waits for processes that have not come back since this node was started, or since the last move, while the instance still
    /// works and holds nobody up.
    async fn await_whole(&self, id: InstanceId, cancel: &Cancel) -> Result<()> {
        let whole = self.broker.whole(id, SUSPEND_LIMIT);
        Ok(cancel.unless(whole).await.ok_or("cancelled")??)
    }

    /// Waits for other dumps while the instance still works.
    async fn await_turn(&self, live: &Live, cancel: &Arc<Cancel>) -> engines::Result<()> {
        let (name, cancelled) = (live.name.clone(), cancel.clone());
        self.engine(move |engine| engine.await_turn(&name, &watch(&|| cancelled.is_cancelled()))).await
    }

    async fn send(
        self: &Arc<Self>,
        vid: Vid,
        id: MoveId,
        destination: HostName,
        cancel: &Arc<Cancel>,
    ) -> Result<Outcome> {
        let live = self.known(vid)?;
        let began = Instant::now();
        let courier = self.take_courier(vid, id).ok_or("its memory has not been sent")?;
        let (name, cancelled) = (live.name.clone(), cancel.clone());
        courier.hurry().await;
        let sink = courier.sink(cancel);
        let dumping = self.engine(move |engine| {
            let dump = engine.suspend(&name, Some(&sink), &watch(&|| cancelled.is_cancelled()))?;
            Ok((engine.image_directory(&name)?, dump))
        });
        let (directory, dump) = match dumping.await {
            Ok(dumped) => dumped,
            Err(engines::Error::NotTaken(_)) if !cancel.is_cancelled() => {
                return Err(Reason(self.why_not_taken(&destination, &courier).await));
            }
            Err(error) => {
                // The destination does not know why, and would be the first to say that nothing more comes.
                self.keep_courier(vid, id, courier);
                return Err(self.in_words(error));
            }
        };
        self.set_state(vid, State::Stopped);
        self.measured(id, Measurement::Dumped { dump_us: micros(began.elapsed()) });
        let dumped = Instant::now();
        let carried = self.broker.carried(live.id(vid)).unwrap_or_default();
        let courier = Arc::into_inner(courier).ok_or("its memory is still being sent")?;
        let sending = self.send_rest(vid, &destination, courier, &directory, (carried, dump.images));
        let bytes = cancel.unless(sending).await.ok_or("cancelled")??;
        self.measured(id, Measurement::Sent { transfer_us: micros(dumped.elapsed()), bytes });
        Ok(Outcome::Sent { bytes })
    }

    /// Dumps an instance into a directory of this host, where it stays.
    async fn save(
        self: &Arc<Self>,
        vid: Vid,
        id: MoveId,
        saved: String,
        cancel: &Arc<Cancel>,
    ) -> Result<Outcome> {
        let live = self.known(vid)?;
        let began = Instant::now();
        let (name, cancelled) = (live.name.clone(), cancel.clone());
        let (from, dump) = self
            .engine(move |engine| {
                let dump = engine.suspend(&name, None, &watch(&|| cancelled.is_cancelled()))?;
                Ok((engine.image_directory(&name)?, dump))
            })
            .await
            .map_err(|error| self.in_words(error))?;
        self.set_state(vid, State::Stopped);
        self.measured(id, Measurement::Dumped { dump_us: micros(began.elapsed()) });
        let dumped = Instant::now();
        let carried = self.broker.carried(live.id(vid)).unwrap_or_default();
        let bytes = dump.images.iter().map(|image| image.size).sum();
        let dumped_images = saved::Dumped { vid, carried, directory: from, images: dump.images };
        let (to, goes_on) = (PathBuf::from(&saved), self.telling(vid, cancel));
        let saving = spawn_blocking(move || saved::save(dumped_images, &to, &goes_on));
        // A file system that hangs does not hold the instance up: what is written is removed when that goes on.
        let saving = cancel.unless(saving).await.ok_or("cancelled")??;
        saving.map_err(|error| self.not_saved(&saved, &error))?;
        self.measured(id, Measurement::Sent { transfer_us: micros(dumped.elapsed()), bytes });
        Ok(Outcome::Sent { bytes })
    }

    /// Checks that a directory of a checkpoint on this host is complete.
    async fn check_saved(&self, vid: Vid, directory: &str, cancel: &Cancel) -> Result<()> {
        let path = PathBuf::from(directory);
        let checking = spawn_blocking(move || saved::check(&path, vid));
        let checked = cancel.unless(checking).await.ok_or("cancelled")??;
        checked.map_err(|error| self.not_loaded(directory, &error))
    }

    fn not_saved(&self, directory: &str, error: &io::Error) -> Reason {
        let what = format!("host {} cannot save the checkpoint in {directory} ({error})", self.host);
        Reason(wire::reason(&what, "fix this, or choose another directory"))
    }

    fn not_loaded(&self, directory: &str, error: &io::Error) -> Reason {
        let what = format!("host {} cannot read the checkpoint in {directory} ({error})", self.host);
        let remedy = "copy the directory of the checkpoint there unchanged, or keep it on a file system that all hosts share";
        Reason(wire::reason(&what, remedy))
    }

    async fn receive(self: &Arc<Self>, vid: Vid, id: MoveId, cancel: &Arc<Cancel>) -> Result<Outcome> {
        let name = self.known(vid)?.name;
        let directory = self.engine(move |engine| engine.image_directory(&name)).await?;
        if let Some(Role::Destination { source: Side::Images(saved), .. }) =
            self.agent.entry(vid).map(|entry| entry.role)
        {
            self.load(vid, saved, directory, cancel).await?;
            return self.restore(vid, id, cancel).await;
        }
        let receiving = async {
            let mut stream = self.receptions.stream(id).await.ok_or("no images are expected")?;
            let carried = match images::receive(&mut stream, &directory).await {
                Ok(carried) => carried,
                Err(error) => {
                    let Reason(reason) = self.images_missing(vid, &error);
                    if let Err(error) = images::refuse(&mut stream, reason.clone()).await {
                        tracing::debug!("sending the reason to the source of instance {vid} failed: {error}");
                    }
                    return Err(Reason(reason));
                }
            };
            self.files.write_carried(vid, &carried).map_err(|error| self.not_noted(&error))?;
            Ok(())
        };
        let received: Result<()> = cancel.unless(receiving).await.ok_or("cancelled")?;
        self.receptions.close(id);
        received?;
        self.restore(vid, id, cancel).await
    }

    /// Takes the images of an instance from a directory of a checkpoint on this host.
    async fn load(
        self: &Arc<Self>,
        vid: Vid,
        saved: String,
        to: PathBuf,
        cancel: &Arc<Cancel>,
    ) -> Result<()> {
        let (from, goes_on) = (PathBuf::from(&saved), self.telling(vid, cancel));
        let loading = spawn_blocking(move || saved::load(&from, vid, &to, &goes_on));
        let loading = cancel.unless(loading).await.ok_or("cancelled")??;
        let carried = loading.map_err(|error| self.not_loaded(&saved, &error))?;
        self.files.write_carried(vid, &carried).map_err(|error| self.not_noted(&error))
    }

    /// Tells how far the copying of images is, which goes on until it is cancelled.
    fn telling(self: &Arc<Self>, vid: Vid, cancel: &Arc<Cancel>) -> impl Fn(u64, u64) -> bool + Send + use<> {
        let (node, cancelled) = (self.clone(), cancel.clone());
        move |bytes, total| {
            node.input(Input::Progress { vid, bytes, total });
            !cancelled.is_cancelled()
        }
    }

    /// What has gone wrong while images came.
    fn images_missing(&self, vid: Vid, error: &io::Error) -> Reason {
        let source = match self.agent.entry(vid).map(|entry| entry.role) {
            Some(Role::Destination { source, .. }) => format!("host {source}"),
            _ => "the other host".into(),
        };
        if error.kind() == io::ErrorKind::StorageFull {
            let what = format!("host {} has no room for its images ({error})", self.host);
            return Reason(wire::reason(&what, "make room there, or choose another host"));
        }
        let what =
            format!("its images did not arrive completely from {source} at host {} ({error})", self.host);
        let remedy =
            format!("check that the node of {source} runs and reaches the other one, then move it again");
        Reason(wire::reason(&what, &remedy))
    }

    /// What must be remembered of the instance cannot be written.
    fn not_noted(&self, error: &io::Error) -> Reason {
        let what = format!("host {} cannot write its records of the instance: {error}", self.host);
        Reason(wire::reason(&what, "make room there, or choose another host"))
    }

    /// What has gone wrong in the engine.
    pub fn in_words(&self, error: engines::Error) -> Reason {
        Reason(self.engine_failed(&error))
    }

    /// What has gone wrong in the engine, with its way out. What CRIU says of it comes last: it is meant for those
    /// who know CRIU.
    pub fn engine_failed(&self, error: &engines::Error) -> String {
        let host = &self.host;
        let what = match error {
            engines::Error::NoRoom(_) => {
                return wire::reason(
                    &self.at_home(&error.to_string()),
                    "free space there, or choose another host",
                );
            }
            engines::Error::Unusable { what, remedy } => {
                return wire::reason(&self.at_home(what), remedy);
            }
            engines::Error::Pinned { blocker, .. } => return wire::reason(&blocker.what, &blocker.remedy),
            engines::Error::Criu { doing: "dump", reason, .. } => {
                format!("its processes could not be dumped on host {host} (CRIU says: {reason})")
            }
            engines::Error::Criu { reason, .. } => {
                format!("it could not be restored on host {host} (CRIU says: {reason})")
            }
            _ => return error.to_string(),
        };
        // CRIU compares what is open with what it was when that was written down.
        let remedy = if what.contains(" has bad size ") {
            "restore that file to its contents at the time of the checkpoint, or save the instance again"
        } else {
            "move it again; if that fails too, close or end the object that CRIU names, or choose another host"
        };
        wire::reason(&what, remedy)
    }

    async fn restore(self: &Arc<Self>, vid: Vid, id: MoveId, cancel: &Arc<Cancel>) -> Result<Outcome> {
        let live = self.known(vid)?;
        if live.state == State::Held {
            return Ok(Outcome::Done);
        }
        self.await_left_behind(vid, id, &live).await?;
        let began = Instant::now();
        let (name, cancelled) = (live.name.clone(), cancel.clone());
        let restored =
            self.engine(move |engine| engine.restore(&name, &watch(&|| cancelled.is_cancelled()))).await;
        let phases = restored.map_err(|error| self.in_words(error))?;
        self.set_state(vid, State::Held);
        // A copy that could not be let go and is held still was restored before.
        if !phases.0.is_empty() {
            self.measured(id, Measurement::Restored { restore_us: micros(began.elapsed()) });
        }
        self.add_to_broker(vid, &live).await?;
        Ok(Outcome::Done)
    }

    /// Of a post-copy move: who restores the instance will touch memory that is not here.
    async fn await_left_behind(self: &Arc<Self>, vid: Vid, id: MoveId, live: &Live) -> Result<()> {
        let role = self.agent.entry(vid).map(|entry| entry.role);
        if let Some(Role::Destination { source: Side::Host(source), post_copy: true, .. }) = role {
            let name = live.name.clone();
            self.engine(move |engine| engine.arm(&name)).await.map_err(|error| self.in_words(error))?;
            self.begin_to_fetch(vid, id, source).await?;
        }
        Ok(())
    }

    async fn release(self: &Arc<Self>, vid: Vid, id: MoveId, epoch: Epoch) -> Result<Outcome> {
        let Some(live) = self.live(vid) else { return Ok(self.nothing_left()) };
        match live.state {
            State::Held | State::Running => {}
            State::Ended => return Ok(Outcome::Gone { exit: self.exit_of(vid, &live) }),
            State::Prepared | State::Stopped => return Err(Reason("the restored copy is gone".into())),
        }
        self.add_to_broker(vid, &live).await?;
        self.lives_here(vid, epoch);
        let began = Instant::now();
        let pid = match live.state {
            State::Held => match self.let_go(vid, &live).await? {
                Ok(pid) => Some(pid),
                Err(exit) => return Ok(Outcome::Gone { exit }),
            },
            _ => live.first,
        };
        // Nobody listens for a tree that may yet be restored again. From here on it runs.
        self.ended().lives_again(vid);
        self.runs(vid, pid);
        self.listen_for(vid, &live, epoch).await;
        let release_us = micros(began.elapsed());
        let resumed = timeout(RESUME_LIMIT, self.broker.resumed(live.id(vid))).await;
        if let Ok(Ok(report)) = resumed {
            let (slowest_us, round_us) = (report.slowest_us, micros(report.elapsed));
            self.measured(id, Measurement::Resumed { release_us, slowest_us, round_us });
        }
        let name = live.name.clone();
        let lacks = self.engine(move |engine| engine.pager(&name)).await.is_ok_and(|pager| pager.is_some());
        Ok(if lacks { Outcome::Incomplete } else { Outcome::Done })
    }

    /// Lets the held copy run: its first process, or how it was lost.
    async fn let_go(&self, vid: Vid, live: &Live) -> Result<std::result::Result<i32, Exit>> {
        let name = live.name.clone();
        match self.engine(move |engine| engine.release(&name, &Watch::QUIET)).await {
            Ok(Running { pid, .. }) => Ok(Ok(pid)),
            Err(engines::Error::Lost { reason, .. }) => {
                self.set_state(vid, State::Ended);
                Ok(Err(Exit::Lost { reason }))
            }
            Err(error) => {
                self.set_state(vid, State::Prepared);
                self.broker.remove(live.id(vid));
                Err(self.in_words(error))
            }
        }
    }

    /// Listens for the processes of an instance that runs. It is tried until it succeeds: there is no way
    /// back.
    async fn listen_for(&self, vid: Vid, live: &Live, epoch: Epoch) {
        while let Err(error) = self.broker.resume(live.id(vid), epoch).await {
            tracing::warn!("instance {vid}: its socket: {error}");
            if self.live(vid).is_none_or(|live| live.state == State::Ended) {
                return;
            }
            tokio::time::sleep(LISTEN_AGAIN).await;
        }
    }

    /// Makes the instance run on here, after a rollback or the node's restart.
    async fn carry_on(self: &Arc<Self>, vid: Vid, epoch: Epoch) -> Result<Outcome> {
        let Some(live) = self.live(vid) else { return Ok(self.nothing_left()) };
        self.drop_courier(vid);
        self.lives_here(vid, epoch);
        let pid = match live.state {
            State::Running => live.first,
            State::Stopped => Some(self.resume_stopped(live.name.clone()).await?),
            State::Ended | State::Prepared | State::Held => {
                return Ok(Outcome::Gone { exit: self.exit_of(vid, &live) });
            }
        };
        self.add_to_broker(vid, &live).await?;
        self.runs(vid, pid);
        self.broker.resume(live.id(vid), epoch).await?;
        Ok(Outcome::Done)
    }

    async fn resume_stopped(&self, name: InstanceName) -> Result<i32> {
        Ok(self.engine(move |engine| engine.resume(&name)).await?.pid)
    }

    async fn abort(&self, vid: Vid, id: MoveId) -> Result<Outcome> {
        self.receptions.close(id);
        if let Some(live) = self.live(vid) {
            self.broker.remove(live.id(vid));
            self.engine(move |engine| engine.abort(&live.name)).await?;
        }
        self.forget(vid);
        Ok(Outcome::Done)
    }

    async fn destroy(&self, vid: Vid) -> Result<Outcome> {
        self.drop_courier(vid);
        if let Some(live) = self.live(vid) {
            self.broker.remove(live.id(vid));
            self.tell_of_shortage(vid);
            self.engine(move |engine| engine.destroy(&live.name)).await?;
        }
        self.forget(vid);
        Ok(Outcome::Done)
    }

    fn forget(&self, vid: Vid) {
        self.stop_fetching(vid);
        self.lives().remove(&vid);
        self.files.remove(vid);
    }
}

pub fn watch<'a>(cancelled: &'a (dyn Fn() -> bool + Sync)) -> Watch<'a> {
    Watch { cancelled, timeout: ENGINE_LIMIT, ..Watch::QUIET }
}

/// The reason why a blueprint cannot be decoded, with the remedy.
pub fn unreadable(error: &BlueprintError) -> String {
    wire::reason(&error.to_string(), error.remedy())
}

fn refused(blockers: &[Blocker]) -> Outcome {
    let reason = |blocker: &Blocker| wire::reason(&blocker.what, &blocker.remedy);
    Outcome::Refused { reasons: blockers.iter().map(reason).collect() }
}

pub fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
