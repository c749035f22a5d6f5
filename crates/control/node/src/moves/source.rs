//! The operations of the host that an instance leaves.

use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use broker::Broker;
use engine_api::{Dump, Error, Intent, Report, State};
use fabric::{Epoch, InstanceId, Vid};
use instance::Kind;
use moves::journal::Exit;
use moves::node::{Input, Outcome};
use moves::protocol::Suspension;
use moves::{HostName, MoveId, Side};
use rpc::frame;
use rpc::wire::{self, Measurement};
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use super::images::{Couriers, saved, send_rest, why_not_taken};
use super::outcome::{Reason, Result, micros, nothing_left, refused, report_outage, report_progress, watch};
use super::sides::Sides;
use crate::agent::Agent;
use crate::cancel::Cancel;
use crate::instances::{Instances, Live, ThisHost};
use crate::links::Pool;

/// How long the instance's processes may take to suspend.
const SUSPEND_LIMIT: Duration = Duration::from_secs(5);

/// The same for programs in a guest, whose processors may be emulated and many times slower.
const SUSPEND_LIMIT_IN_GUESTS: Duration = Duration::from_secs(15);

/// How often to look whether a guest stands still, while its programs suspend.
const LOOK: Duration = Duration::from_millis(20);

fn suspend_limit(kind: Kind) -> Duration {
    if kind == Kind::Vm { SUSPEND_LIMIT_IN_GUESTS } else { SUSPEND_LIMIT }
}

/// The operations of the host that an instance leaves.
pub struct Source {
    host: Arc<ThisHost>,
    instances: Arc<Instances>,
    broker: Broker,
    sides: Sides,
    couriers: Arc<Couriers>,
    agent: Arc<Agent>,
    pool: Arc<Pool>,
}

impl Source {
    pub fn new(
        host: Arc<ThisHost>,
        instances: Arc<Instances>,
        broker: Broker,
        sides: Sides,
        couriers: Arc<Couriers>,
        agent: Arc<Agent>,
        pool: Arc<Pool>,
    ) -> Self {
        Self { host, instances, broker, sides, couriers, agent, pool }
    }

    pub async fn check(
        &self,
        vid: Vid,
        destination: &Side,
        dry_run: bool,
        cancel: &Arc<Cancel>,
    ) -> Result<Outcome> {
        let live = self.instances.known(vid)?;
        if let Err(reason) = self.host.check_room() {
            return Ok(Outcome::Refused { reasons: vec![reason] });
        }
        let intent = Intent { leaves: !dry_run, is_saved: destination.host().is_none() };
        let report = if dry_run {
            self.instances.look(&live, intent).await
        } else {
            self.sides.close(vid).await;
            // While the destination prepares itself, the engine prepares the suspension.
            self.sides.source(vid, &live, move |source| source.check(intent)).await
        };
        let Report { blockers, needs } = report.map_err(|error| self.in_words(&error))?;
        if !blockers.is_empty() {
            return Ok(refused(&blockers));
        }
        if !dry_run {
            self.await_whole(live.id(vid), cancel).await?;
        }
        Ok(Outcome::Checked { facts: frame::encode(&needs)? })
    }

    pub async fn suspend(
        &self,
        vid: Vid,
        leaving: Option<(MoveId, Side)>,
        cancel: &Arc<Cancel>,
    ) -> Result<Outcome> {
        let live = self.instances.known(vid)?;
        let asked = Instant::now();
        // Needed only if this node has restarted since the check.
        self.await_whole(live.id(vid), cancel).await?;
        self.await_ready(vid, &live, cancel).await.map_err(|error| self.in_words(&error))?;
        if let Some((id, _)) = leaving {
            self.agent.uplink().measured(id, Measurement::Turn { waited_us: micros(asked.elapsed()) });
        }
        // Processes that have suspended by then attach again when the broker listens again.
        let suspending = async {
            tokio::select! {
                report = self.broker.suspend(live.id(vid), suspend_limit(live.kind)) => report,
                never = self.part_from_stopped(vid, &live) => match never {},
            }
        };
        let report = cancel.unless(suspending).await.ok_or("cancelled")??;
        if let Some((_, Side::Host(destination))) = &leaving {
            let active = report.processes.iter().flat_map(|process| &process.active_peers);
            let peers = active.map(|peer| peer.vid).filter(|peer| *peer != vid).collect();
            let (pool, destination) = (self.pool.clone(), destination.clone());
            tokio::spawn(async move { pool.announce_peers(&destination, vid, peers).await });
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
            self.agent.uplink().measured(id, measurement);
        }
        Ok(Outcome::Suspended(suspension))
    }

    /// Parts with the programs of a guest that stands still.
    async fn part_from_stopped(&self, vid: Vid, live: &Live) -> Infallible {
        if live.kind == Kind::Vm {
            while !self.stands_still(vid, live).await {
                sleep(LOOK).await;
            }
            self.broker.part_without_word(live.id(vid));
        }
        pending().await
    }

    async fn stands_still(&self, vid: Vid, live: &Live) -> bool {
        self.sides.source(vid, live, |source| Ok(source.stands_still())).await.unwrap_or(false)
    }

    fn in_words(&self, error: &Error) -> Reason {
        Reason(self.host.in_words(error))
    }

    /// Waits for processes that have not attached since this node started, or since the last move. The instance works meanwhile.
    async fn await_whole(&self, id: InstanceId, cancel: &Cancel) -> Result<()> {
        let whole = self.broker.whole(id, SUSPEND_LIMIT);
        Ok(cancel.unless(whole).await.ok_or("cancelled")??)
    }

    /// Waits until the engine can stop the instance at once; the instance works meanwhile.
    async fn await_ready(&self, vid: Vid, live: &Live, cancel: &Arc<Cancel>) -> engine_api::Result<()> {
        let cancelled = cancel.clone();
        self.sides.source(vid, live, move |source| source.ready(&watch(&|| cancelled.is_cancelled()))).await
    }

    pub async fn send(
        &self,
        vid: Vid,
        id: MoveId,
        destination: HostName,
        cancel: &Arc<Cancel>,
    ) -> Result<Outcome> {
        let live = self.instances.known(vid)?;
        let began = Instant::now();
        let courier = self.couriers.take(vid, id).ok_or("its memory has not been sent")?;
        let cancelled = cancel.clone();
        courier.hurry().await;
        self.sides.hurry(vid);
        let sink = courier.sink(cancel);
        let dumping = self.sides.source(vid, &live, move |source| {
            source.suspend(Some(&sink), &watch(&|| cancelled.is_cancelled()))
        });
        let Dump { directory, images, outage, .. } = match dumping.await {
            Ok(dumped) => dumped,
            Err(Error::NotTaken(_)) if !cancel.is_cancelled() => {
                return Err(Reason(why_not_taken(&destination, &courier).await));
            }
            Err(error) => {
                // The destination does not know the reason. If the connection closed now, its report would come first.
                self.couriers.keep(vid, id, courier);
                return Err(self.in_words(&error));
            }
        };
        self.instances.set_state(vid, State::Stopped);
        self.agent.uplink().measured(id, Measurement::Dumped { dump_us: micros(began.elapsed()) });
        let dumped = Instant::now();
        report_outage(&self.agent, id, outage);
        let carried = self.broker.carried(live.id(vid)).unwrap_or_default();
        let courier = Arc::into_inner(courier).ok_or("its memory is still being sent")?;
        let progress = |bytes, total| self.agent.input(Input::Progress { vid, bytes, total });
        let sending = send_rest(&destination, courier, &directory, (carried, images), progress);
        let bytes = cancel.unless(sending).await.ok_or("cancelled")??;
        self.agent.uplink().measured(id, Measurement::Sent { transfer_us: micros(dumped.elapsed()), bytes });
        Ok(Outcome::Sent { bytes })
    }

    /// Dumps an instance into a directory of this host, where the images stay.
    pub async fn save(&self, vid: Vid, id: MoveId, saved: String, cancel: &Arc<Cancel>) -> Result<Outcome> {
        let live = self.instances.known(vid)?;
        let began = Instant::now();
        let cancelled = cancel.clone();
        let dumping = self
            .sides
            .source(vid, &live, move |source| source.suspend(None, &watch(&|| cancelled.is_cancelled())));
        let Dump { directory, images, .. } = dumping.await.map_err(|error| self.in_words(&error))?;
        self.instances.set_state(vid, State::Stopped);
        self.agent.uplink().measured(id, Measurement::Dumped { dump_us: micros(began.elapsed()) });
        let dumped = Instant::now();
        let carried = self.broker.carried(live.id(vid)).unwrap_or_default();
        let bytes = images.iter().map(|image| image.size).sum();
        let dumped_images = saved::Dumped { vid, carried, directory, images };
        let (to, goes_on) = (PathBuf::from(&saved), report_progress(&self.agent, vid, cancel));
        let saving = spawn_blocking(move || saved::save(dumped_images, &to, &goes_on));
        // A file system that hangs does not delay the instance: when it continues, the written files are removed.
        let saving = cancel.unless(saving).await.ok_or("cancelled")??;
        saving.map_err(|error| self.not_saved(&saved, &error))?;
        self.agent.uplink().measured(id, Measurement::Sent { transfer_us: micros(dumped.elapsed()), bytes });
        Ok(Outcome::Sent { bytes })
    }

    fn not_saved(&self, directory: &str, error: &io::Error) -> Reason {
        let what = format!("host {} cannot save the checkpoint in {directory} ({error})", self.host.name());
        Reason(wire::reason(&what, "fix this, or choose another directory"))
    }

    /// Lets the instance run on here, after a rollback or a restart of the node.
    pub async fn carry_on(&self, vid: Vid, epoch: Epoch) -> Result<Outcome> {
        let Some(live) = self.instances.get(vid) else { return Ok(nothing_left(self.host.name())) };
        self.couriers.discard(vid);
        self.host.has_station(vid, epoch);
        let pid = match live.state {
            State::Running => live.first,
            State::Stopped => match self.resume_stopped(vid, &live).await? {
                Ok(pid) => pid,
                Err(exit) => return Ok(Outcome::Gone { exit }),
            },
            State::Ended | State::Prepared | State::Held => {
                return Ok(Outcome::Gone { exit: self.instances.exit_of(vid, &live) });
            }
        };
        self.instances.add_to_broker(vid, &live).await?;
        self.instances.runs(vid, pid);
        self.instances.listen(vid, &live, epoch).await?;
        Ok(Outcome::Done)
    }

    /// Resumes the stopped instance. Returns its first process, or how it was lost.
    async fn resume_stopped(&self, vid: Vid, live: &Live) -> Result<std::result::Result<Option<i32>, Exit>> {
        let resumed = match self.sides.source(vid, live, |source| source.resume()).await {
            Ok(running) => Ok(running.pid),
            Err(Error::Lost(reason)) => {
                self.instances.set_state(vid, State::Ended);
                Err(Exit::Lost { reason })
            }
            Err(error) => return Err(error.into()),
        };
        self.sides.close(vid).await;
        Ok(resumed)
    }
}
