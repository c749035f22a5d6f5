//! Connections to other nodes, kept open.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fabric::Vid;
use moves::HostName;
use rpc::Caller;
use rpc::wire::{LinkAnswer, LinkQuestion, Opening};

use super::linking::Unreachable;
use crate::dialer::Dialer;
use crate::directory::Directory;
use crate::lock::lock;

/// The pause before an unreachable node is tried again.
const RETRY: Duration = Duration::from_millis(500);

/// How long a node may take to answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);

type LinkCaller = Caller<LinkQuestion, LinkAnswer>;

/// One connection to each node.
pub struct Pool {
    dialer: Dialer,
    directory: Arc<Directory>,
    slots: Mutex<HashMap<HostName, Arc<tokio::sync::Mutex<Slot>>>>,
}

#[derive(Default)]
struct Slot {
    caller: Option<Arc<LinkCaller>>,
    failed: Option<Instant>,
}

impl Pool {
    pub fn new(dialer: Dialer, directory: Arc<Directory>) -> Self {
        Self { dialer, directory, slots: Mutex::default() }
    }

    fn slot(&self, host: &HostName) -> Arc<tokio::sync::Mutex<Slot>> {
        lock(&self.slots).entry(host.clone()).or_default().clone()
    }

    /// The answer of the node of `host`.
    pub async fn ask_node(&self, host: &HostName, question: LinkQuestion) -> Result<LinkAnswer, Unreachable> {
        let caller = self.caller(host).await?;
        caller.call(question, ANSWER_LIMIT).await.map_err(|error| {
            tracing::debug!("{host}: {error}");
            Unreachable
        })
    }

    /// Connects to `host`, so that the first link need not wait for it.
    pub async fn warm(&self, host: &HostName) {
        // An unknown host does not count as unreachable.
        if self.directory.address(host).is_some() {
            let _ = self.caller(host).await;
        }
    }

    /// Tells the destination of a move the instance's peers, so that it prepares for their links while the images travel.
    pub async fn announce_peers(&self, to: &HostName, vid: Vid, peers: BTreeSet<Vid>) {
        if !peers.is_empty() {
            // If this fails, the links take longer.
            let _ = self.ask_node(to, LinkQuestion::Expect { vid, peers }).await;
        }
    }

    async fn caller(&self, host: &HostName) -> Result<Arc<LinkCaller>, Unreachable> {
        let slot = self.slot(host);
        let mut slot = slot.lock().await;
        if let Some(caller) = slot.caller.as_ref().filter(|caller| !caller.is_closed()) {
            return Ok(caller.clone());
        }
        if slot.failed.is_some_and(|failed| failed.elapsed() < RETRY) {
            return Err(Unreachable);
        }
        match self.dialer.open(host, &Opening::Links).await {
            Ok(stream) => {
                let caller = Arc::new(Caller::new(stream));
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
}
