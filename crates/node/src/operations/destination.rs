//! The operations of the host that an instance comes to.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine_api::{Channels, Coming, Error, ImageSink, Needs, Running, State, Watch};
use fabric::{Epoch, NetworkKind, Vid};
use instance::Blueprint;
use moves::entry::Role;
use moves::journal::Exit;
use moves::node::Outcome;
use moves::{MoveId, Side};
use rpc::frame;
use rpc::wire::{self, Measurement};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::{Reason, Result, micros, refused, unreadable, watch};
use crate::cancel::Cancel;
use crate::channels::ChannelSet;
use crate::images::{self, saved};
use crate::instances::Live;
use crate::node::Node;

/// How long the report that an instance runs waits for its processes to attach.
const RESUME_LIMIT: Duration = Duration::from_secs(2);

/// The pause before the node tries again to listen for a running instance.
const LISTEN_AGAIN: Duration = Duration::from_millis(100);

/// How long a node that has just started may take to join the overlay.
const JOIN_LIMIT: Duration = Duration::from_secs(5);

impl Node {
    pub async fn check_destination(&self, (spec, facts): (&[u8], &[u8]), post_copy: bool) -> Result<Outcome> {
        let blueprint = Blueprint::decode(spec).map_err(|error| unreadable(&error))?;
        let refusal = self.verify(&blueprint, facts, post_copy).await?;
        Ok(refusal.unwrap_or(Outcome::Checked { facts: Vec::new() }))
    }

    /// The refusal, if this host does not meet the instance's needs.
    async fn verify(&self, blueprint: &Blueprint, facts: &[u8], post_copy: bool) -> Result<Option<Outcome>> {
        let needs: Needs = frame::decode(facts)?;
        if let Err(reason) = self.has_network(blueprint).await {
            return Ok(Some(Outcome::Refused { reasons: vec![reason] }));
        }
        if let Some(refusal) = self.no_room() {
            return Ok(Some(refusal));
        }
        let (name, kind) = (blueprint.spec.name.clone(), blueprint.spec.workload.kind());
        let verifying = self.engine(kind, move |engine| engine.destination(&name)?.verify(&needs, post_copy));
        let blockers = verifying.await.map_err(|error| self.in_words(&error))?;
        Ok((!blockers.is_empty()).then(|| refused(&blockers)))
    }

    /// Checks that this host has the network that the instance's device plugs into.
    pub async fn has_network(&self, blueprint: &Blueprint) -> std::result::Result<(), String> {
        match blueprint.spec.network_kind {
            NetworkKind::Bridge => Ok(()),
            NetworkKind::Overlay => {
                let ready = self.nics.ready(JOIN_LIMIT).await;
                ready.map_err(|reason| self.at_home(&reason))
            }
        }
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
        self.departing.wait_for(&blueprint.spec.name).await;
        let needs: Needs = frame::decode(facts)?;
        self.files.write_blueprint(vid, spec).map_err(|error| self.not_noted(&error))?;
        let live = Live::new(&blueprint, State::Prepared, None);
        self.lives().insert(vid, live.clone());
        let set = ChannelSet::new(Arc::default(), None);
        self.sides.keep_channels(vid, set.clone());
        let channels = source.host().map(|_| set.clone() as Arc<dyn Channels>);
        let prepared = self.destination(vid, &live, move |destination| {
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
        let what = format!("host {} cannot read the checkpoint in {directory} ({error})", self.host);
        let remedy = "copy the directory of the checkpoint there unchanged, or keep it on a file system that all hosts share";
        Reason(wire::reason(&what, remedy))
    }

    pub async fn receive(self: &Arc<Self>, vid: Vid, id: MoveId, cancel: &Arc<Cancel>) -> Result<Outcome> {
        let live = self.known(vid)?;
        let sink = self.destination(vid, &live, |destination| destination.sink()).await?;
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
        mut sink: Box<dyn ImageSink>,
        cancel: &Arc<Cancel>,
    ) -> Result<()> {
        let (from, goes_on) = (PathBuf::from(&saved), self.telling(vid, cancel));
        let loading = spawn_blocking(move || {
            let carried = saved::load(&from, vid, &mut |name| sink.file(name), &goes_on)?;
            sink.finish().map(|()| carried)
        });
        let loading = cancel.unless(loading).await.ok_or("cancelled")??;
        let carried = loading.map_err(|error| self.not_loaded(&saved, &error))?;
        self.files.write_carried(vid, &carried).map_err(|error| self.not_noted(&error))
    }

    /// The failure of receiving images.
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

    pub async fn restore(self: &Arc<Self>, vid: Vid, id: MoveId, cancel: &Arc<Cancel>) -> Result<Outcome> {
        let live = self.known(vid)?;
        if live.state == State::Held {
            return Ok(Outcome::Done);
        }
        self.await_left_behind(vid, id).await?;
        let began = Instant::now();
        let cancelled = cancel.clone();
        let restoring =
            self.destination(vid, &live, move |side| side.restore(&watch(&|| cancelled.is_cancelled())));
        let phases = restoring.await.map_err(|error| self.in_words(&error))?;
        self.set_state(vid, State::Held);
        // A copy that could not be released and is still held was restored before.
        if !phases.0.is_empty() {
            self.uplink.measured(id, Measurement::Restored { restore_us: micros(began.elapsed()) });
        }
        self.add_to_broker(vid, &live).await?;
        Ok(Outcome::Done)
    }

    /// In a post-copy move, fetches missing memory before the restore, which touches some of it.
    async fn await_left_behind(self: &Arc<Self>, vid: Vid, id: MoveId) -> Result<()> {
        let role = self.agent.entry(vid).map(|entry| entry.role);
        if let Some(Role::Destination { source: Side::Host(source), post_copy: true, .. }) = role {
            self.begin_to_fetch(vid, id, source).await?;
        }
        Ok(())
    }

    pub async fn release(self: &Arc<Self>, vid: Vid, id: MoveId, epoch: Epoch) -> Result<Outcome> {
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
                Ok(pid) => pid,
                Err(exit) => return Ok(Outcome::Gone { exit }),
            },
            _ => live.first,
        };
        // The node does not listen for a tree that may be restored again. From here on, the tree runs.
        self.ended().lives_again(vid);
        self.runs(vid, pid);
        self.listen_for(vid, &live, epoch).await;
        let release_us = micros(began.elapsed());
        let resumed = timeout(RESUME_LIMIT, self.broker.resumed(live.id(vid))).await;
        if let Ok(Ok(report)) = resumed {
            let (slowest_us, round_us) = (report.slowest_us, micros(report.elapsed));
            self.uplink.measured(id, Measurement::Resumed { release_us, slowest_us, round_us });
        }
        let postcopy = self.destination(vid, &live, |destination| destination.postcopy()).await;
        if postcopy.is_ok_and(|postcopy| postcopy.is_some()) {
            return Ok(Outcome::Incomplete);
        }
        self.close_sides(vid).await;
        Ok(Outcome::Done)
    }

    /// Releases the held copy. Returns its first process, or how it was lost.
    async fn let_go(&self, vid: Vid, live: &Live) -> Result<std::result::Result<Option<i32>, Exit>> {
        match self.destination(vid, live, |destination| destination.release(&Watch::QUIET)).await {
            Ok(Running { pid, .. }) => Ok(Ok(pid)),
            Err(Error::Lost(reason)) => {
                self.set_state(vid, State::Ended);
                Ok(Err(Exit::Lost { reason }))
            }
            Err(error) => {
                self.set_state(vid, State::Prepared);
                self.broker.remove(live.id(vid));
                Err(self.in_words(&error))
            }
        }
    }

    /// Listens for the processes of a running instance. Repeats this until it succeeds: the instance cannot go back.
    async fn listen_for(&self, vid: Vid, live: &Live, epoch: Epoch) {
        while let Err(error) = self.broker.resume(live.id(vid), epoch).await {
            tracing::warn!("instance {vid}: its socket: {error}");
            if self.live(vid).is_none_or(|live| live.state == State::Ended) {
                return;
            }
            tokio::time::sleep(LISTEN_AGAIN).await;
        }
    }

    pub async fn abort(&self, vid: Vid, id: MoveId) -> Result<Outcome> {
        self.receptions.close(id);
        if let Some(live) = self.live(vid) {
            self.broker.remove(live.id(vid));
            // The engine may wait for data that no longer arrives.
            self.sides.close_channels(vid);
            self.destination(vid, &live, |destination| destination.abort()).await?;
        }
        self.forget(vid);
        Ok(Outcome::Done)
    }
}
