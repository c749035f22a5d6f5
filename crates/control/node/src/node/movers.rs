//! The components around the moves of instances.

use std::sync::Arc;

use super::base::Base;
use super::residents::Residents;
use crate::moves::{
    Couriers, Destination, Fetchings, MemoryServer, Operations, Precopy, Receptions, Sides, Source,
};

pub struct Movers {
    pub operations: Arc<Operations>,
    pub receptions: Arc<Receptions>,
    pub memory: MemoryServer,
}

impl Movers {
    /// Makes the components, each of which sends at most `limit` bytes of memory a second while an instance runs.
    pub fn new(base: &Base, residents: &Residents, limit: Option<u64>) -> Self {
        let Base { agent, dialer, .. } = base;
        let Residents { host, live, engines, broker, instances, pool, .. } = residents;
        let sides = Sides::new(engines.clone());
        let couriers = Arc::new(Couriers::new(dialer.clone(), limit));
        let receptions = Arc::<Receptions>::default();
        let fetchings = Arc::new(Fetchings::new(
            host.clone(),
            instances.clone(),
            sides.clone(),
            agent.clone(),
            dialer.clone(),
        ));
        let source = Source::new(
            host.clone(),
            instances.clone(),
            broker.clone(),
            sides.clone(),
            couriers.clone(),
            agent.clone(),
            pool.clone(),
        );
        let precopy = Precopy::new(
            host.clone(),
            instances.clone(),
            sides.clone(),
            couriers.clone(),
            agent.clone(),
            dialer.clone(),
            limit,
        );
        let destination = Destination::new(
            host.clone(),
            instances.clone(),
            broker.clone(),
            sides.clone(),
            receptions.clone(),
            fetchings.clone(),
            agent.clone(),
        );
        let memory = MemoryServer::new(live.clone(), sides.clone(), agent.clone(), limit);
        let operations = Operations::new(
            (agent.clone(), instances.clone()),
            sides,
            couriers,
            fetchings,
            source,
            precopy,
            destination,
        );
        Self { operations: Arc::new(operations), receptions, memory }
    }
}
