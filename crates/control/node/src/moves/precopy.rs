//! Pre-copy: sends the memory of an instance to its destination while it runs.
//!
//! Each round reads the memory, and sends the pages that the destination does not have. Rounds repeat until so few pages are new that
//! sending them in the blackout takes little time.

use std::sync::Arc;

use engine_api::{Channels, Driver, Error, Outgoing};
use fabric::Vid;
use moves::node::{Input, Outcome};
use moves::{HostName, MoveId};
use rpc::wire::Measurement;
use tokio::runtime::Handle;
use tokio::time::interval;

use super::channels::{ChannelSet, OutgoingChannels};
use super::images::{Courier, Couriers, not_taken, why_not_taken};
use super::outcome::{PROGRESS, Reason, Result, watch};
use super::rounds::Rounds;
use super::sides::Sides;
use crate::agent::Agent;
use crate::cancel::Cancel;
use crate::dialer::Dialer;
use crate::instances::{Instances, ThisHost};

/// Sends the memory of instances that run.
pub struct Precopy {
    host: Arc<ThisHost>,
    instances: Arc<Instances>,
    sides: Sides,
    couriers: Arc<Couriers>,
    agent: Arc<Agent>,
    dialer: Dialer,
    /// The rate limit of each pre-copy, in bytes a second.
    limit: Option<u64>,
}

/// The pre-copy of one move.
struct Run {
    vid: Vid,
    id: MoveId,
    destination: HostName,
    courier: Arc<Courier>,
    channels: Arc<dyn Channels>,
    rounds: Rounds,
    cancel: Arc<Cancel>,
}

impl Precopy {
    pub fn new(
        host: Arc<ThisHost>,
        instances: Arc<Instances>,
        sides: Sides,
        couriers: Arc<Couriers>,
        agent: Arc<Agent>,
        dialer: Dialer,
        limit: Option<u64>,
    ) -> Self {
        Self { host, instances, sides, couriers, agent, dialer, limit }
    }

    /// Opens the connection for the images, and sends the memory over it.
    pub async fn send_memory(
        &self,
        vid: Vid,
        id: MoveId,
        (destination, post_copy): (HostName, bool),
        cancel: &Arc<Cancel>,
    ) -> Result<Outcome> {
        let opened = cancel.unless(self.couriers.open(vid, id, &destination)).await.ok_or("cancelled")?;
        let courier = opened.map_err(|error| Reason(not_taken(&destination, &error)))?;
        if post_copy {
            courier.leave_changes();
        }
        let channels = self.open_channels(vid, id, &destination, &courier, cancel);
        let live = self.instances.known(vid)?;
        let driver = self.sides.precopy_driver(&live).map_err(|error| self.in_words(&error))?;
        let (rounds, cancel) = (Rounds::new(self.limit), cancel.clone());
        let mut run = Run { vid, id, destination, courier, channels, rounds, cancel };
        loop {
            self.send_round(&run).await?;
            // Later changes are fetched by post-copy.
            if post_copy || driver == Driver::Engine || !run.rounds.next(run.courier.meter().read()) {
                break;
            }
        }
        let bytes = run.courier.given();
        self.agent.uplink().measured(id, Measurement::Precopied { bytes });
        Ok(Outcome::Copied { bytes })
    }

    /// The channels with which the engine can reach its counterpart.
    fn open_channels(
        &self,
        vid: Vid,
        id: MoveId,
        destination: &HostName,
        courier: &Courier,
        cancel: &Arc<Cancel>,
    ) -> Arc<dyn Channels> {
        let set = ChannelSet::new(courier.meter().clone(), self.limit);
        self.sides.keep_channels(vid, set.clone());
        Arc::new(OutgoingChannels {
            set,
            dialer: self.dialer.clone(),
            host: destination.clone(),
            id,
            vid,
            cancel: cancel.clone(),
            runtime: Handle::current(),
        })
    }

    async fn send_round(&self, run: &Run) -> Result<()> {
        let Run { vid, destination, courier, cancel, .. } = run;
        let live = self.instances.known(*vid)?;
        let (cancelled, sink, channels) = (cancel.clone(), courier.sink(cancel), run.channels.clone());
        let reading = self.sides.source(*vid, &live, move |source| {
            let to = Outgoing { memory: &sink, channels: &channels };
            source.precopy(to, &watch(&|| cancelled.is_cancelled()))
        });
        let read = self.report_during(run, reading).await;
        let sent = match read {
            Err(Error::NotTaken(error)) => Err(error),
            other => {
                other.map_err(|error| self.in_words(&error))?;
                let flushing = self.report_during(run, courier.flush());
                cancel.unless(flushing).await.ok_or("cancelled")?
            }
        };
        match sent {
            Err(_) if cancel.is_cancelled() => Err("cancelled".into()),
            Err(_) => {
                let told = cancel.unless(why_not_taken(destination, courier)).await;
                Err(Reason(told.ok_or("cancelled")?))
            }
            Ok(()) => Ok(()),
        }
    }

    /// Does `work`, and reports the progress of the pre-copy meanwhile.
    async fn report_during<T>(&self, run: &Run, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        let mut again = interval(PROGRESS);
        loop {
            tokio::select! {
                biased;
                done = &mut work => return done,
                _ = again.tick() => {
                    let now = run.courier.meter().read();
                    self.agent.uplink().measured(run.id, run.rounds.measurement(now));
                    // This reports that it continues. The total is not known yet.
                    self.agent.input(Input::Progress { vid: run.vid, bytes: now.sent, total: now.sent });
                }
            }
        }
    }

    fn in_words(&self, error: &Error) -> Reason {
        Reason(self.host.in_words(error))
    }
}
