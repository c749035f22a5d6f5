//! Answers other nodes about links to processes of this host.

use std::collections::BTreeSet;
use std::sync::Arc;

use broker::Broker;
use fabric::attach::LinkRefusal;
use fabric::link::LinkRequest;
use fabric::{Epoch, Vid};
use moves::HostName;
use moves::entry::{Entry, Role};
use rpc::wire::{LinkAnswer, LinkQuestion};
use tokio::sync::Semaphore;

use super::asking::LinkAsker;
use super::data_port::DataPort;
use super::linking::{self, Answerer, Asker, Locator, Nonce};
use super::pool::Pool;
use crate::agent::{Agent, Unanswered};
use crate::directory::{Directory, Place};
use crate::instances::LiveInstances;

/// The number of connections that are made in advance at the same time.
const MOST_AT_ONCE: usize = 16;

/// Answers the questions of other nodes.
pub struct LinkAnswerer {
    asker: LinkAsker,
    agent: Arc<Agent>,
    live: Arc<LiveInstances>,
    broker: Broker,
    data_port: Arc<DataPort>,
    pool: Arc<Pool>,
}

impl LinkAnswerer {
    pub fn new(
        asker: LinkAsker,
        agent: Arc<Agent>,
        live: Arc<LiveInstances>,
        broker: Broker,
        data_port: Arc<DataPort>,
        pool: Arc<Pool>,
    ) -> Self {
        Self { asker, agent, live, broker, data_port, pool }
    }

    /// Answers the node of `from`.
    pub async fn answer(&self, from: &HostName, question: LinkQuestion) -> LinkAnswer {
        match question {
            LinkQuestion::Open { request, nonce } => linking::answer(self, from, &request, Some(nonce)).await,
            LinkQuestion::Nudge(request) => linking::answer(self, from, &request, None).await,
            LinkQuestion::Expect { vid, peers } => self.expect_with_peers(from, vid, peers),
        }
    }

    /// Handles the list of peers from `from`, the source of an instance that comes here.
    fn expect_with_peers(&self, from: &HostName, vid: Vid, peers: BTreeSet<Vid>) -> LinkAnswer {
        let comes = |entry: Entry| matches!(entry.role, Role::Destination { source, .. } if source.is(from));
        if !self.agent.entry(vid).is_some_and(comes) {
            return LinkAnswer::NotHere;
        }
        tokio::spawn(connect_to_peers(self.asker.clone(), self.pool.clone(), peers));
        LinkAnswer::Expected
    }
}

/// Finds out the locations of instances, and connects to the nodes there.
async fn connect_to_peers(asker: LinkAsker, pool: Arc<Pool>, peers: BTreeSet<Vid>) {
    let mut hosts = linking::hosts_of(&asker, peers).await;
    hosts.remove(asker.host());
    let turns = Arc::new(Semaphore::new(MOST_AT_ONCE));
    for host in hosts {
        let Ok(turn) = turns.clone().acquire_owned().await else { return };
        let pool = pool.clone();
        tokio::spawn(async move {
            pool.warm(&host).await;
            drop(turn);
        });
    }
}

impl Locator for LinkAnswerer {
    fn directory(&self) -> &Directory {
        self.asker.directory()
    }

    async fn ask_where(&self, vid: Vid) -> Result<Option<Place>, Unanswered> {
        self.asker.ask_where(vid).await
    }
}

impl Answerer for LinkAnswerer {
    fn reachable(&self, request: &LinkRequest) -> Option<Result<Epoch, LinkRefusal>> {
        self.broker.reachable(request)
    }

    fn is_in_other_fabric(&self, request: &LinkRequest) -> bool {
        self.live.get(request.to.vid).is_some_and(|live| live.fabric != request.fabric)
    }

    fn nudge(&self, request: &LinkRequest) -> Result<(), LinkRefusal> {
        self.broker.nudge(request)
    }

    fn expect(&self, nonce: Nonce, request: LinkRequest) -> Option<u16> {
        self.data_port.expect(nonce, request)
    }
}
