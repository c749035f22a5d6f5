//! This host, as its instances need it.

use std::sync::Arc;
use std::time::Duration;

use engine_api::Error;
use fabric::{Epoch, NetworkKind, Vid, network};
use instance::Blueprint;
use moves::HostName;
use overlay::Mac;
use rpc::wire;

use crate::agent::Agent;
use crate::network::Nics;

/// How long a node that has just started may take to join the overlay.
const JOIN_LIMIT: Duration = Duration::from_secs(5);

/// The host of a node: its name, its room for records, and its network.
pub struct ThisHost {
    name: HostName,
    agent: Arc<Agent>,
    nics: Nics,
}

impl ThisHost {
    pub fn new(name: HostName, agent: Arc<Agent>, nics: Nics) -> Self {
        Self { name, agent, nics }
    }

    pub fn name(&self) -> &HostName {
        &self.name
    }

    /// Checks that this host has room for the records of an instance or a move.
    pub fn check_room(&self) -> Result<(), String> {
        self.agent.ready().map_err(|reason| self.on_this_host(&reason))
    }

    /// Checks that this host has the network that the instance's device plugs into.
    pub async fn check_network(&self, blueprint: &Blueprint) -> Result<(), String> {
        match blueprint.spec.network_kind {
            NetworkKind::Bridge => Ok(()),
            NetworkKind::Overlay => {
                let ready = self.nics.ready(JOIN_LIMIT).await;
                ready.map_err(|reason| self.on_this_host(&reason))
            }
        }
    }

    /// `reason`, prefixed with this host's name.
    fn on_this_host(&self, reason: &str) -> String {
        format!("host {}: {reason}", self.name)
    }

    /// Says that the instance's station, if it is one, is on this host with `epoch`.
    pub fn has_station(&self, vid: Vid, epoch: Epoch) {
        self.nics.set_here(Mac(network::mac_of(vid)), epoch);
    }

    /// An engine's error, with the remedy.
    pub fn in_words(&self, error: &Error) -> String {
        let what = error.on_host(self.name.as_str());
        match error.remedy() {
            Some(remedy) => wire::reason(&what, remedy),
            None => what,
        }
    }
}
