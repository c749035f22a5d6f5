//! The operations of the host that an instance comes to.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use broker::Broker;
use engine_api::{Channels, Coming, Error, ImageSink, Needs, Outage, Running, State, Watch};
use fabric::{Epoch, Vid};
use instance::Blueprint;
use moves::entry::Role;
use moves::journal::Exit;
use moves::node::Outcome;
use moves::{MoveId, Side};
use rpc::frame;
use rpc::wire::{self, Measurement};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::channels::ChannelSet;
use super::images::{self, saved};
use super::outcome::{Reason, Result, micros, nothing_left, refused, report_outage, report_progress, watch};
use super::postcopy::Fetchings;
use super::receptions::Receptions;
use super::sides::Sides;
use crate::agent::Agent;
use crate::cancel::Cancel;
use crate::instances::{Instances, Live, ThisHost, unreadable};

/// How long the report that an instance runs waits for its processes to attach.
const RESUME_LIMIT: Duration = Duration::from_secs(2);

/// The pause before the node tries again to listen for a running instance.
const LISTEN_AGAIN: Duration = Duration::from_millis(100);

/// The operations of the host that an instance comes to.
pub struct Destination {
    host: Arc<ThisHost>,
    instances: Arc<Instances>,
    broker: Broker,
    sides: Sides,
    receptions: Arc<Receptions>,
    fetchings: Arc<Fetchings>,
    agent: Arc<Agent>,
}

impl Destination {
    pub fn new(
        host: Arc<ThisHost>,
        instances: Arc<Instances>,
        broker: Broker,
        sides: Sides,
        receptions: Arc<Receptions>,
        fetchings: Arc<Fetchings>,
        agent: Arc<Agent>,
    ) -> Self {
        Self { host, instances, broker, sides, receptions, fetchings, agent }
    }

    fn in_words(&self, error: &Error) -> Reason {
        Reason(self.host.in_words(error))
    }

    pub async fn check(&self, (spec, facts): (&[u8], &[u8]), post_copy: bool) -> Result<Outcome> {
        let blueprint = Blueprint::decode(spec).map_err(|error| unreadable(&error))?;
        let refusal = self.verify(&blueprint, facts, post_copy).await?;
        Ok(refusal.unwrap_or(Outcome::Checked { facts: Vec::new() }))
    }

    /// The refusal, if this host does not meet the instance's needs.
    async fn verify(&self, blueprint: &Blueprint, facts: &[u8], post_copy: bool) -> Result<Option<Outcome>> {
        let needs: Needs = frame::decode(facts)?;
        if let Err(reason) = self.host.check_network(blueprint).await {
            return Ok(Some(Outcome::Refused { reasons: vec![reason] }));
        }
        if let Err(reason) = self.host.check_room() {
            return Ok(Some(Outcome::Refused { reasons: vec![reason] }));
        }
        let blockers = self
            .sides
            .verify(&blueprint.spec, needs, post_copy)
            .await
            .map_err(|error| self.in_words(&error))?;
        Ok((!blockers.is_empty()).then(|| refused(&blockers)))
    }

    pub async fn prepare(
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
        self.instances.wait_for_departure(&blueprint.spec.name).await;
        let needs: Needs = frame::decode(facts)?;
        self.instances.write_blueprint(vid, spec).map_err(|error| self.not_recorded(&error))?;
        let live = self.instances.enter(vid, &blueprint);
        let set = ChannelSet::new(Arc::default(), None);
        self.sides.keep_channels(vid, set.clone());
        let channels = source.host().map(|_| set.clone() as Arc<dyn Channels>);
        let prepared = self.sides.destination(vid, &live, move |destination| {
            let (spec, needs) = (&blueprint.spec, &needs);
            destination.prepare(Coming { spec, needs, is_postcopy: post_copy, channels })
        });
        if let Err(error) = prepared.await {
            return Ok(Outcome::Refused { reasons: vec![self.in_words(&error).0] });
        }
        if let Side::Host(source) = source {
            self.receptions.expect(id, vid, source, set);
        }
        Ok(Outcome::Done)
    }

    /// Checks that a directory of a checkpoint on this host is complete.
    async fn check_saved(&self, vid: Vid, directory: &str, cancel: &Cancel) -> Result<()> {
        let path = PathBuf::from(directory);
        let checking = spawn_blocking(move || saved::check(&path, vid));
        let checked = cancel.unless(checking).await.ok_or("cancelled")??;
        checked.map_err(|error| self.not_loaded(directory, &error))
    }

    fn not_loaded(&self, directory: &str, error: &io::Error) -> Reason {
        let what = format!("host {} cannot read the checkpoint in {directory} ({error})", self.host.name());
        let remedy = "copy the directory of the checkpoint there unchanged, or keep it on a file system that all hosts share";
        Reason(wire::reason(&what, remedy))
    }

    pub async fn receive(&self, vid: Vid, id: MoveId, cancel: &Arc<Cancel>) -> Result<Outcome> {
        let live = self.instances.known(vid)?;
        let sink = self.sides.destination(vid, &live, |destination| destination.sink()).await?;
        if let Some(Role::Destination { source: Side::Images(saved), .. }) =
            self.agent.entry(vid).map(|entry| entry.role)
        {
            self.load(vid, saved, sink, cancel).await?;
            return self.restore(vid, id, cancel).await;
        }
        let receiving = async {
            let mut stream = self.receptions.stream(id).await.ok_or("no images are expected")?;
            let carried = match images::receive(&mut stream, sink).await {
                Ok(carried) => carried,
                Err(error) => {
                    let Reason(reason) = self.images_missing(vid, &error);
                    if let Err(error) = images::refuse(&mut stream, reason.clone()).await {
                        tracing::debug!("sending the reason to the source of instance {vid} failed: {error}");
                    }
                    return Err(Reason(reason));
                }
            };
            self.instances.write_carried(vid, &carried).map_err(|error| self.not_recorded(&error))?;
            Ok(())
        };
        let received: Result<()> = cancel.unless(receiving).await.ok_or("cancelled")?;
        self.receptions.close(id);
        received?;
        self.restore(vid, id, cancel).await
    }

    /// Takes the images of an instance from a directory of a checkpoint on this host.
    async fn load(
        &self,
        vid: Vid,
        saved: String,
        mut sink: Box<dyn ImageSink>,
        cancel: &Arc<Cancel>,
    ) -> Result<()> {
        let (from, goes_on) = (PathBuf::from(&saved), report_progress(&self.agent, vid, cancel));
        let loading = spawn_blocking(move || {
            let carried = saved::load(&from, vid, &mut |name| sink.file(name), &goes_on)?;
            sink.finish().map(|()| carried)
        });
        let loading = cancel.unless(loading).await.ok_or("cancelled")??;
        let carried = loading.map_err(|error| self.not_loaded(&saved, &error))?;
        self.instances.write_carried(vid, &carried).map_err(|error| self.not_recorded(&error))
    }

    /// The failure of receiving images.
    fn images_missing(&self, vid: Vid, error: &io::Error) -> Reason {
        let source = match self.agent.entry(vid).map(|entry| entry.role) {
            Some(Role::Destination { source, .. }) => format!("host {source}"),
            _ => "the other host".into(),
        };
        if error.kind() == io::ErrorKind::StorageFull {
            let what = format!("host {} has no room for its images ({error})", self.host.name());
            return Reason(wire::reason(&what, "make room there, or choose another host"));
        }
        let what = format!(
            "its images did not arrive completely from {source} at host {} ({error})",
            self.host.name()
        );
        let remedy =
            format!("check that the node of {source} runs and reaches the other one, then move it again");
        Reason(wire::reason(&what, &remedy))
    }

    pub async fn restore(&self, vid: Vid, id: MoveId, cancel: &Arc<Cancel>) -> Result<Outcome> {
        let live = self.instances.known(vid)?;
        // The engine knows whether a copy that was held still is.
        if live.state != State::Held {
            self.begin_to_fetch(vid, id).await?;
        }
        let began = Instant::now();
        let cancelled = cancel.clone();
        let restoring = self
            .sides
            .destination(vid, &live, move |side| side.restore(&watch(&|| cancelled.is_cancelled())));
        let phases = match restoring.await {
            Ok(phases) => phases,
            Err(Error::Lost(reason)) => {
                self.instances.set_state(vid, State::Ended);
                self.instances.set_lost(vid, &reason);
                return Ok(Outcome::Gone { exit: Exit::Lost { reason } });
            }
            Err(error) => return Err(self.in_words(&error)),
        };
        self.instances.set_state(vid, State::Held);
        // A copy that could not be released and is still held was restored before.
        if !phases.0.is_empty() {
            self.agent.uplink().measured(id, Measurement::Restored { restore_us: micros(began.elapsed()) });
        }
        self.instances.add_to_broker(vid, &live).await?;
        Ok(Outcome::Done)
    }

    /// In a post-copy move, fetches missing memory before the restore, which touches some of it.
    async fn begin_to_fetch(&self, vid: Vid, id: MoveId) -> Result<()> {
        let role = self.agent.entry(vid).map(|entry| entry.role);
        if let Some(Role::Destination { source: Side::Host(source), post_copy: true, .. }) = role {
            self.fetchings.begin(vid, id, source).await?;
        }
        Ok(())
    }

    pub async fn release(&self, vid: Vid, id: MoveId, epoch: Epoch) -> Result<Outcome> {
        let ordered = Instant::now();
        let Some(live) = self.instances.get(vid) else { return Ok(nothing_left(self.host.name())) };
        match live.state {
            State::Held | State::Running => {}
            State::Ended => return Ok(Outcome::Gone { exit: self.instances.exit_of(vid, &live) }),
            State::Prepared | State::Stopped => return Err(Reason("the restored copy is gone".into())),
        }
        self.instances.add_to_broker(vid, &live).await?;
        self.host.has_station(vid, epoch);
        let began = Instant::now();
        let pid = match live.state {
            State::Held => match self.release_copy(vid, (id, ordered), &live).await? {
                Ok(pid) => pid,
                Err(exit) => return Ok(Outcome::Gone { exit }),
            },
            _ => live.first,
        };
        // The node does not listen for a tree that may be restored again. From here on, the tree runs.
        self.instances.runs_again(vid);
        self.instances.runs(vid, pid);
        self.listen_for(vid, &live, epoch).await;
        let release_us = micros(began.elapsed());
        let resumed = timeout(RESUME_LIMIT, self.broker.resumed(live.id(vid))).await;
        if let Ok(Ok(report)) = resumed {
            let (slowest_us, round_us) = (report.slowest_us, micros(report.elapsed));
            self.agent.uplink().measured(id, Measurement::Resumed { release_us, slowest_us, round_us });
        }
        let postcopy = self.sides.destination(vid, &live, |destination| destination.postcopy()).await;
        if postcopy.is_ok_and(|postcopy| postcopy.is_some()) {
            return Ok(Outcome::Incomplete);
        }
        self.sides.close(vid).await;
        Ok(Outcome::Done)
    }

    /// Releases the held copy, as `ordered`. Returns its first process, or how it was lost.
    async fn release_copy(
        &self,
        vid: Vid,
        (id, ordered): (MoveId, Instant),
        live: &Live,
    ) -> Result<std::result::Result<Option<i32>, Exit>> {
        let before = ordered.elapsed();
        match self.sides.destination(vid, live, |destination| destination.release(&Watch::QUIET)).await {
            Ok(Running { pid, outage, .. }) => {
                let since_ordered = |Outage { processors, link }| Outage {
                    processors: before + processors,
                    link: before + link,
                };
                report_outage(&self.agent, id, outage.map(since_ordered));
                Ok(Ok(pid))
            }
            Err(Error::Lost(reason)) => {
                self.instances.set_state(vid, State::Ended);
                Ok(Err(Exit::Lost { reason }))
            }
            Err(error) => {
                self.instances.set_state(vid, State::Prepared);
                self.broker.remove(live.id(vid));
                Err(self.in_words(&error))
            }
        }
    }

    /// Listens for the processes of a running instance. Repeats this until it succeeds: the instance cannot go back.
    async fn listen_for(&self, vid: Vid, live: &Live, epoch: Epoch) {
        while let Err(error) = self.instances.listen(vid, live, epoch).await {
            tracing::warn!("instance {vid}: its socket: {error}");
            if self.instances.get(vid).is_none_or(|live| live.state == State::Ended) {
                return;
            }
            tokio::time::sleep(LISTEN_AGAIN).await;
        }
    }

    /// Undoes the preparations of a move here.
    pub async fn abort(&self, vid: Vid, id: MoveId) -> Result<()> {
        self.receptions.close(id);
        if let Some(live) = self.instances.get(vid) {
            self.broker.remove(live.id(vid));
            // The engine may wait for data that no longer arrives.
            self.sides.close_channels(vid);
            self.sides.destination(vid, &live, |destination| destination.abort()).await?;
        }
        Ok(())
    }

    /// The failure to record the instance's state.
    fn not_recorded(&self, error: &io::Error) -> Reason {
        let what = format!("host {} cannot write its records of the instance: {error}", self.host.name());
        Reason(wire::reason(&what, "make room there, or choose another host"))
    }
}
