//! The relays to the agents in virtual machines.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use broker::Broker;
use engine_api::{Error, Result};
use fabric::Vid;
use guest_relay::{Machine, Relay};
use instance::Kind;

use super::engines::Engines;
use super::live::Live;
use crate::lock::lock;

/// The relays of all machines that run here.
pub struct Guests {
    engines: Arc<Engines>,
    broker: Broker,
    relays: Mutex<HashMap<Vid, Relay>>,
}

impl Guests {
    pub fn new(engines: Arc<Engines>, broker: Broker) -> Self {
        Self { engines, broker, relays: Mutex::default() }
    }

    /// Connects the programs in an instance that is a virtual machine and runs here, unless they are connected already. Without that,
    /// the machine runs, and its programs have no RDMA.
    pub async fn connect(&self, vid: Vid, live: &Live) {
        if live.kind != Kind::Vm || lock(&self.relays).contains_key(&vid) {
            return;
        }
        match self.relay(vid, live).await {
            Ok(relay) => drop(lock(&self.relays).insert(vid, relay)),
            Err(error) => tracing::warn!(
                "programs in the machine {vid} cannot use RDMA, nor can `exec` run any: {error}"
            ),
        }
    }

    async fn relay(&self, vid: Vid, live: &Live) -> Result<Relay> {
        let guest = self.engines.local(live, |local| local.guest()).await?;
        let guest = guest.ok_or_else(|| Error::Other("its engine offers no port".into()))?;
        let machine = Machine { port: guest.port, links: guest.links, mac: guest.mac };
        let (broker, id) = (self.broker.clone(), live.id(vid));
        let relay = Relay::start(machine, move |pid, role| broker.connect(id, pid, role));
        relay.map_err(|error| Error::Other(format!("its relay does not start: {error}")))
    }

    /// Disconnects the programs of an instance.
    pub fn disconnect(&self, vid: Vid) {
        lock(&self.relays).remove(&vid);
    }
}
