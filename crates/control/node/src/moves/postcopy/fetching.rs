//! The destination of a post-copy move: fetches the instance's missing memory from the source.
//!
//! ```text
//! engine ──Wanted──▶ a thread ──▶ relay ──MemoryQuestion──▶ source      over TLS, reopened whenever it breaks
//!        ◀─supply───────────────── reader ◀──MemoryAnswer──
//! ```
//!
//! It begins before the engine restores, since a restore touches some of the memory, and continues until no page is missing, even if the
//! connection to the source or to the coordinator is lost meanwhile.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use engine_api::{Error, Fetched, Postcopy};
use fabric::Vid;
use moves::journal::Exit;
use moves::node::{Input, Outcome};
use moves::{HostName, MoveId};
use rpc::wire::{Measurement, Opening};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::relay::{FetchState, Relay};
use crate::agent::Agent;
use crate::cancel::Cancel;
use crate::dialer::Dialer;
use crate::instances::{Instances, ThisHost, blocking};
use crate::lock::lock;
use crate::moves::outcome::{Reason, Result};
use crate::moves::sides::Sides;

/// The task that fetches memory for one instance. Dropping it ends the task.
struct Fetching {
    postcopy: Arc<dyn Postcopy>,
    state: watch::Receiver<FetchState>,
    relaying: JoinHandle<()>,
}

impl Drop for Fetching {
    fn drop(&mut self) {
        self.relaying.abort();
    }
}

/// Fetches the missing memory of the instances of this host.
pub struct Fetchings {
    host: Arc<ThisHost>,
    instances: Arc<Instances>,
    sides: Sides,
    agent: Arc<Agent>,
    dialer: Dialer,
    running: Mutex<HashMap<Vid, Fetching>>,
}

impl Fetchings {
    pub fn new(
        host: Arc<ThisHost>,
        instances: Arc<Instances>,
        sides: Sides,
        agent: Arc<Agent>,
        dialer: Dialer,
    ) -> Self {
        Self { host, instances, sides, agent, dialer, running: Mutex::default() }
    }

    fn running(&self) -> MutexGuard<'_, HashMap<Vid, Fetching>> {
        lock(&self.running)
    }

    fn in_words(&self, error: &Error) -> Reason {
        Reason(self.host.in_words(error))
    }

    /// Starts to fetch the instance's missing memory, if any is missing. An earlier task for the instance ends.
    pub async fn begin(&self, vid: Vid, id: MoveId, source: HostName) -> Result<()> {
        self.stop(vid);
        let live = self.instances.known(vid)?;
        let found = self.sides.destination(vid, &live, |destination| destination.postcopy()).await;
        let Some(postcopy) = found.map_err(|error| self.in_words(&error))? else { return Ok(()) };
        let (reports, state) = watch::channel(FetchState::Fetching(Fetched::default(), None));
        let opening = Opening::Memory { id, vid };
        let relay = Relay::new(self.dialer.clone(), source.clone(), opening, postcopy.clone(), reports);
        let relaying = tokio::spawn(relay.run());
        self.running().insert(vid, Fetching { postcopy, state, relaying });
        self.instances.set_fetches_from(vid, Some(source));
        Ok(())
    }

    /// Stops fetching for the instance.
    pub fn stop(&self, vid: Vid) {
        if self.running().remove(&vid).is_some() {
            self.instances.set_fetches_from(vid, None);
        }
    }

    /// Waits until no page is missing.
    pub async fn fetch(&self, vid: Vid, id: MoveId, source: HostName, cancel: &Cancel) -> Result<Outcome> {
        if !self.running().contains_key(&vid) {
            self.begin(vid, id, source.clone()).await?;
        }
        let Some(mut state) = self.running().get(&vid).map(|fetching| fetching.state.clone()) else {
            // The end is already recorded.
            return Ok(Outcome::Done);
        };
        loop {
            let now = state.borrow_and_update().clone();
            match now {
                FetchState::Fetching(_, Some(trouble)) => return Err(Reason(trouble)),
                FetchState::Fetching(Fetched { demanded, pushed, left }, None) => {
                    let bytes = demanded + pushed;
                    self.agent.input(Input::Progress { vid, bytes, total: bytes + left });
                }
                FetchState::Whole(fetched) => return self.finish(vid, id, fetched).await,
                FetchState::Lost => return self.end_without_memory(vid, &source).await,
                FetchState::Unpaged => return Err(Reason("its pager has ended".into())),
            }
            let changed = cancel.unless(state.changed()).await.ok_or("cancelled")?;
            changed.map_err(|_| "its memory is not fetched any more")?;
        }
    }

    /// Ends the post-copy: no page is missing.
    async fn finish(&self, vid: Vid, id: MoveId, fetched: Fetched) -> Result<Outcome> {
        let postcopy = self.running().get(&vid).map(|fetching| fetching.postcopy.clone());
        if let Some(postcopy) = postcopy {
            let finished = blocking(move || postcopy.finish()).await;
            finished.map_err(|error| self.in_words(&error))?;
        }
        self.stop(vid);
        self.sides.close(vid).await;
        let Fetched { demanded, pushed, .. } = fetched;
        self.agent.uplink().measured(id, Measurement::Fetched { demanded, pushed });
        Ok(Outcome::Done)
    }

    /// Ends the instance, which cannot continue without the lost memory.
    async fn end_without_memory(&self, vid: Vid, source: &HostName) -> Result<Outcome> {
        let live = self.instances.known(vid)?;
        let name = &live.name;
        let reason = format!("a part of the memory of {name} was still on host {source}, which has lost it");
        self.instances.set_lost(vid, &reason);
        self.stop(vid);
        self.instances.end(vid, &live).await.map_err(|error| self.in_words(&error))?;
        Ok(Outcome::Gone { exit: Exit::Lost { reason } })
    }
}
