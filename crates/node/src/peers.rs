//! Connections to other nodes, kept open.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fabric::Vid;
use moves::HostName;
use moves::entry::{Entry, Role};
use rpc::wire::{LinkAnswer, LinkQuestion, Opening};
use rpc::{Caller, frame};
use tokio::sync::Semaphore;

use crate::linking;
use crate::lock::lock;
use crate::node::Node;

/// The pause before an unreachable node is tried again.
const RETRY: Duration = Duration::from_millis(500);

/// The number of connections that are made in advance at the same time.
const MOST_AT_ONCE: usize = 16;

/// How long a node may take to answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);

type LinkCaller = Caller<LinkQuestion, LinkAnswer>;

/// One connection to each node.
#[derive(Default)]
pub struct Pool {
    slots: Mutex<HashMap<HostName, Arc<tokio::sync::Mutex<Slot>>>>,
}

#[derive(Default)]
struct Slot {
    caller: Option<Arc<LinkCaller>>,
    failed: Option<Instant>,
}

/// A node did not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreachable;

impl Pool {
    fn slot(&self, host: &HostName) -> Arc<tokio::sync::Mutex<Slot>> {
        lock(&self.slots).entry(host.clone()).or_default().clone()
    }
}

impl Node {
    /// The answer of the node of `host`.
    pub async fn ask_node(&self, host: &HostName, question: LinkQuestion) -> Result<LinkAnswer, Unreachable> {
        let caller = self.caller(host).await?;
        caller.call(question, ANSWER_LIMIT).await.map_err(|error| {
            tracing::debug!("{host}: {error}");
            Unreachable
        })
    }

    /// Connects to `host`, so that the first link need not wait for it.
    pub async fn warm(self: Arc<Self>, host: HostName) {
        // An unknown host does not count as unreachable.
        if self.directory.address(&host).is_some() {
            let _ = self.caller(&host).await;
        }
    }

    /// Tells the destination of a move the instance's peers, so that it prepares for their links while the images travel.
    pub async fn announce_peers(self: Arc<Self>, to: HostName, vid: Vid, peers: BTreeSet<Vid>) {
        if !peers.is_empty() {
            // If this fails, the links take longer.
            let _ = self.ask_node(&to, LinkQuestion::Expect { vid, peers }).await;
        }
    }

    /// Handles the list of peers from `from`, the source of an instance that comes here.
    pub fn expect_with_peers(self: Arc<Self>, from: &HostName, vid: Vid, peers: BTreeSet<Vid>) -> LinkAnswer {
        let comes = |entry: Entry| matches!(entry.role, Role::Destination { source, .. } if source.is(from));
        if !self.agent.entry(vid).is_some_and(comes) {
            return LinkAnswer::NotHere;
        }
        tokio::spawn(self.get_ready_for(peers));
        LinkAnswer::Expected
    }

    /// Finds out the locations of instances, and connects to the nodes there.
    async fn get_ready_for(self: Arc<Self>, peers: BTreeSet<Vid>) {
        let mut hosts = linking::hosts_of(&self, peers).await;
        hosts.remove(&self.host);
        let turns = Arc::new(Semaphore::new(MOST_AT_ONCE));
        for host in hosts {
            let Ok(turn) = turns.clone().acquire_owned().await else { return };
            let node = self.clone();
            tokio::spawn(async move {
                node.warm(host).await;
                drop(turn);
            });
        }
    }

    async fn caller(&self, host: &HostName) -> Result<Arc<LinkCaller>, Unreachable> {
        let slot = self.pool.slot(host);
        let mut slot = slot.lock().await;
        if let Some(caller) = slot.caller.as_ref().filter(|caller| !caller.is_closed()) {
            return Ok(caller.clone());
        }
        if slot.failed.is_some_and(|failed| failed.elapsed() < RETRY) {
            return Err(Unreachable);
        }
        match self.connect_for_links(host).await {
            Ok(caller) => {
                *slot = Slot { caller: Some(caller.clone()), failed: None };
                Ok(caller)
            }
            Err(error) => {
                tracing::debug!("{host} cannot be reached: {error}");
                *slot = Slot { caller: None, failed: Some(Instant::now()) };
                Err(Unreachable)
            }
        }
    }

    async fn connect_for_links(&self, host: &HostName) -> std::io::Result<Arc<LinkCaller>> {
        let address = self.directory.address(host).ok_or(std::io::ErrorKind::NotFound)?;
        let mut stream = self.endpoint.connect(address, host.as_str()).await?;
        frame::send(&mut stream, &Opening::Links).await?;
        Ok(Arc::new(Caller::new(stream)))
    }
}
