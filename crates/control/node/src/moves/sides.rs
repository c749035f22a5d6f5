//! The sides of moves that are open on this host, and their channels.
//!
//! A side is opened when it is first needed, also after a restart of the node, and stays open until the move is over on this host:
//! the engine may have prepared something for it, or may still send data.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use engine_api::{Destination, Driver, Engine, Needs, Result, Source};
use fabric::Vid;
use instance::{Blocker, InstanceSpec};
use tokio::task::spawn_blocking;

use super::channels::ChannelSet;
use crate::instances::{Engines, Live};
use crate::lock::lock;

/// The open sides, and their channels. Clones are the same.
#[derive(Clone)]
pub struct Sides {
    engines: Arc<Engines>,
    open: Arc<Mutex<Open>>,
}

#[derive(Default)]
struct Open {
    sources: HashMap<Vid, Arc<dyn Source>>,
    destinations: HashMap<Vid, Arc<dyn Destination>>,
    /// The channels of the open side.
    channels: HashMap<Vid, Arc<ChannelSet>>,
}

impl Sides {
    /// No open sides; `engines` open them.
    pub fn new(engines: Arc<Engines>) -> Self {
        Self { engines, open: Arc::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        lock(&self.open)
    }

    /// The result of `work` with the source side of a move of the instance, which is opened if it is not open. `work` may block.
    pub async fn source<T: Send + 'static>(
        &self,
        vid: Vid,
        live: &Live,
        work: impl FnOnce(&dyn Source) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (sides, name) = (self.clone(), live.name.clone());
        let working = move |engine: Arc<dyn Engine>| work(&*sides.open_source(vid, || engine.source(&name))?);
        self.engines.run(live.kind, working).await
    }

    /// The result of `work` with the destination side of a move of the instance, which is opened if it is not open. `work` may block.
    pub async fn destination<T: Send + 'static>(
        &self,
        vid: Vid,
        live: &Live,
        work: impl FnOnce(&dyn Destination) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (sides, name) = (self.clone(), live.name.clone());
        let working =
            move |engine: Arc<dyn Engine>| work(&*sides.open_destination(vid, || engine.destination(&name))?);
        self.engines.run(live.kind, working).await
    }

    /// Verifies that this host meets the needs of an instance, without opening a side.
    pub async fn verify(&self, spec: &InstanceSpec, needs: Needs, post_copy: bool) -> Result<Vec<Blocker>> {
        let (name, kind) = (spec.name.clone(), spec.workload.kind());
        self.engines.run(kind, move |engine| engine.destination(&name)?.verify(&needs, post_copy)).await
    }

    /// Whether the node or the engine decides on the rounds of a pre-copy.
    pub fn precopy_driver(&self, live: &Live) -> Result<Driver> {
        Ok(self.engines.of(live.kind)?.capabilities().precopy)
    }

    fn open_source(
        &self,
        vid: Vid,
        open: impl FnOnce() -> Result<Box<dyn Source>>,
    ) -> Result<Arc<dyn Source>> {
        if let Some(source) = self.lock().sources.get(&vid) {
            return Ok(source.clone());
        }
        let opened: Arc<dyn Source> = Arc::from(open()?);
        Ok(self.lock().sources.entry(vid).or_insert(opened).clone())
    }

    fn open_destination(
        &self,
        vid: Vid,
        open: impl FnOnce() -> Result<Box<dyn Destination>>,
    ) -> Result<Arc<dyn Destination>> {
        if let Some(destination) = self.lock().destinations.get(&vid) {
            return Ok(destination.clone());
        }
        let opened: Arc<dyn Destination> = Arc::from(open()?);
        Ok(self.lock().destinations.entry(vid).or_insert(opened).clone())
    }

    /// Keeps the channels of the open side. Those of an earlier move end.
    pub fn keep_channels(&self, vid: Vid, channels: Arc<ChannelSet>) {
        let earlier = self.lock().channels.insert(vid, channels);
        earlier.iter().for_each(|channels| channels.close());
    }

    /// The instance is stopped: lifts the rate limit of its channels.
    pub fn hurry(&self, vid: Vid) {
        self.lock().channels.get(&vid).iter().for_each(|channels| channels.hurry());
    }

    /// Ends the channels of the open side.
    pub fn close_channels(&self, vid: Vid) {
        let channels = self.lock().channels.remove(&vid);
        channels.iter().for_each(|channels| channels.close());
    }

    /// The instance's move is over here: closes both sides and their channels at once. The result waits until the engine has undone its
    /// preparations.
    pub fn close(&self, vid: Vid) -> impl Future<Output = ()> + Send + use<> {
        self.close_channels(vid);
        let mut open = self.lock();
        let sides = (open.sources.remove(&vid), open.destinations.remove(&vid));
        async move {
            // Closing may have to end a program.
            let _dropped = spawn_blocking(move || drop(sides)).await;
        }
    }
}
