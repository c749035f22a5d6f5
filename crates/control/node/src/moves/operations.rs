//! Carries out the orders of the state machine of moves.

use std::sync::Arc;

use fabric::Vid;
use moves::node::{Input, Operation, Outcome};
use moves::{MoveId, Side};

use super::destination::Destination;
use super::images::Couriers;
use super::outcome::{Reason, Result};
use super::postcopy::Fetchings;
use super::precopy::Precopy;
use super::sides::Sides;
use super::source::Source;
use crate::agent::{Agent, Order, Performer};
use crate::instances::Instances;

/// The operations of both sides of moves.
pub struct Operations {
    agent: Arc<Agent>,
    instances: Arc<Instances>,
    sides: Sides,
    couriers: Arc<Couriers>,
    fetchings: Arc<Fetchings>,
    source: Source,
    precopy: Precopy,
    destination: Destination,
}

impl Operations {
    /// Operations on `instances`, which are carried out by the others.
    pub fn new(
        (agent, instances): (Arc<Agent>, Arc<Instances>),
        sides: Sides,
        couriers: Arc<Couriers>,
        fetchings: Arc<Fetchings>,
        source: Source,
        precopy: Precopy,
        destination: Destination,
    ) -> Self {
        Self { agent, instances, sides, couriers, fetchings, source, precopy, destination }
    }

    async fn outcome_of(&self, Order { vid, operation, leaving, cancel }: Order) -> Outcome {
        let cancel = &cancel;
        let done = match operation {
            Operation::CheckSource { destination, dry_run } => {
                self.source.check(vid, &destination, dry_run, cancel).await
            }
            Operation::CheckDestination { spec, facts, post_copy } => {
                self.destination.check((&spec, &facts), post_copy).await
            }
            Operation::Prepare { id, source, spec, facts, post_copy, .. } => {
                self.destination.prepare(vid, (id, source), (&spec, &facts), post_copy, cancel).await
            }
            Operation::Receive { id } => self.destination.receive(vid, id, cancel).await,
            Operation::Restore { id } => self.destination.restore(vid, id, cancel).await,
            Operation::Release { id, epoch } => self.destination.release(vid, id, epoch).await,
            Operation::Precopy { id, destination, post_copy } => {
                self.precopy.send_memory(vid, id, (destination, post_copy), cancel).await
            }
            Operation::Fetch { id, source } => self.fetchings.fetch(vid, id, source, cancel).await,
            Operation::Suspend => self.source.suspend(vid, leaving, cancel).await,
            Operation::Send { id, destination: Side::Host(host) } => {
                self.source.send(vid, id, host, cancel).await
            }
            Operation::Send { id, destination: Side::Images(directory) } => {
                self.source.save(vid, id, directory, cancel).await
            }
            Operation::Continue { epoch } => self.source.carry_on(vid, epoch).await,
            Operation::Abort { id } => self.abort(vid, id).await,
            Operation::Destroy { .. } => self.destroy(vid).await,
        };
        done.unwrap_or_else(|Reason(reason)| Outcome::Failed { reason })
    }

    async fn abort(&self, vid: Vid, id: MoveId) -> Result<Outcome> {
        self.destination.abort(vid, id).await?;
        self.forget(vid);
        Ok(Outcome::Done)
    }

    async fn destroy(&self, vid: Vid) -> Result<Outcome> {
        self.couriers.discard(vid);
        if let Some(live) = self.instances.get(vid) {
            self.instances.leave(vid, &live).await?;
        }
        self.forget(vid);
        Ok(Outcome::Done)
    }

    fn forget(&self, vid: Vid) {
        self.fetchings.stop(vid);
        tokio::spawn(self.sides.close(vid));
        self.instances.forget(vid);
    }
}

impl Performer for Operations {
    fn operate(self: Arc<Self>, order: Order) {
        tokio::spawn(async move {
            let vid = order.vid;
            tracing::debug!("{vid}: {:?} begins", order.operation);
            let outcome = self.outcome_of(order).await;
            tracing::debug!("{vid}: {outcome:?}");
            self.agent.input(Input::Ended { vid, outcome });
        });
    }

    fn stays(self: Arc<Self>, vid: Vid) {
        // At once: later events may belong to the next move.
        self.couriers.discard(vid);
        tokio::spawn(self.sides.close(vid));
    }

    fn farewell(self: Arc<Self>, vid: Vid) {
        self.couriers.discard(vid);
        let Some(live) = self.instances.get(vid) else { return };
        self.instances.begin_departure(&live);
        tokio::spawn(async move {
            let closing = async { self.sides.close(vid).await };
            self.instances.remove(vid, &live, closing).await;
        });
    }
}
