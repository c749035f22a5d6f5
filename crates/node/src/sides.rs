//! The sides of moves that are open on this host, and their channels.
//!
//! A side is opened when it is first needed, also after a restart of the node, and stays open until the move is over on this host:
//! the engine may have prepared something for it, or may still send data.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use engine_api::{Destination, Result, Source};
use fabric::Vid;
use tokio::task::spawn_blocking;

use crate::channels::ChannelSet;
use crate::lock::lock;
use crate::node::Node;

/// The open sides, and their channels.
#[derive(Default)]
pub struct Sides(Mutex<Open>);

#[derive(Default)]
struct Open {
    sources: HashMap<Vid, Arc<dyn Source>>,
    destinations: HashMap<Vid, Arc<dyn Destination>>,
    /// The channels of the open side.
    channels: HashMap<Vid, Arc<ChannelSet>>,
}

/// The open sides of an instance: at most one of them, except while the other is being closed.
type Both = (Option<Arc<dyn Source>>, Option<Arc<dyn Destination>>);

impl Sides {
    fn lock(&self) -> MutexGuard<'_, Open> {
        lock(&self.0)
    }

    /// The source side of `vid`, which `open` opens if it is not open.
    pub fn source(
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

    /// The destination side of `vid`, which `open` opens if it is not open.
    pub fn destination(
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

    /// Removes both sides of `vid`, and ends their channels.
    fn close(&self, vid: Vid) -> Both {
        self.close_channels(vid);
        let mut open = self.lock();
        (open.sources.remove(&vid), open.destinations.remove(&vid))
    }
}

impl Node {
    /// The instance's move is over here: closes its side at once, and waits until the engine has undone its preparations.
    pub fn close_sides(&self, vid: Vid) -> impl Future<Output = ()> + Send + use<> {
        let sides = self.sides.close(vid);
        async move {
            // Closing may have to end a program.
            let _dropped = spawn_blocking(move || drop(sides)).await;
        }
    }
}
