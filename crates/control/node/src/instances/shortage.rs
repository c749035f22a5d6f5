//! Processes of instances that the kernel has killed for lack of memory.

use std::sync::Arc;

use engine_api::Shortage;
use fabric::Vid;
use rpc::wire::FromNode;

use super::engines::Engines;
use super::live::LiveInstances;
use crate::agent::Agent;

/// Reports lack of memory to the coordinator.
pub struct Shortages {
    live: Arc<LiveInstances>,
    engines: Arc<Engines>,
    agent: Arc<Agent>,
}

impl Shortages {
    pub fn new(live: Arc<LiveInstances>, engines: Arc<Engines>, agent: Arc<Agent>) -> Self {
        Self { live, engines, agent }
    }

    /// Tells the coordinator if the kernel has killed processes of the instance on this host for lack of memory: before it learns
    /// that the instance has ended, or after the instance has left.
    pub fn report(&self, vid: Vid) {
        let Some(live) = self.live.get(vid) else { return };
        let Shortage { kills, limit } = self.engines.shortage(&live);
        if kills > 0 {
            self.agent.uplink().send(&FromNode::OutOfMemory { vid, processes: kills, limit });
        }
    }
}
