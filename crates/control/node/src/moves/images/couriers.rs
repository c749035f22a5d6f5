//! The couriers of instances that leave this host, before they are suspended.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};

use fabric::Vid;
use instance::{Carried, ImageFile};
use moves::{HostName, MoveId};
use rpc::wire::{self, Opening, Received};

use super::courier::Courier;
use crate::dialer::Dialer;
use crate::lock::lock;

/// The couriers, by instance.
pub struct Couriers {
    dialer: Dialer,
    /// The rate limit of each, in bytes a second.
    limit: Option<u64>,
    kept: Mutex<HashMap<Vid, (MoveId, Arc<Courier>)>>,
}

impl Couriers {
    pub fn new(dialer: Dialer, limit: Option<u64>) -> Self {
        Self { dialer, limit, kept: Mutex::default() }
    }

    /// Opens the connection for a move before the instance is suspended, and keeps its courier.
    pub async fn open(&self, vid: Vid, id: MoveId, destination: &HostName) -> io::Result<Arc<Courier>> {
        let stream = self.dialer.open(destination, &Opening::Images { id, vid }).await?;
        let courier = Arc::new(Courier::new(stream, self.limit)?);
        self.keep(vid, id, courier.clone());
        Ok(courier)
    }

    /// Keeps the courier of a move until it is taken, or the instance stays.
    pub fn keep(&self, vid: Vid, id: MoveId, courier: Arc<Courier>) {
        lock(&self.kept).insert(vid, (id, courier));
    }

    /// Takes the courier of a move.
    pub fn take(&self, vid: Vid, id: MoveId) -> Option<Arc<Courier>> {
        lock(&self.kept).remove(&vid).filter(|(of, _)| *of == id).map(|(_, courier)| courier)
    }

    /// Drops the courier of a move, which ends its connection.
    pub fn discard(&self, vid: Vid) {
        lock(&self.kept).remove(&vid);
    }
}

/// Sends the remaining images, and returns the size of all that was sent once the destination has verified it. Calls `progress` with the
/// bytes that are sent, and the total.
///
/// # Errors
/// The reason for the failure.
pub async fn send_rest(
    destination: &HostName,
    courier: Courier,
    directory: &Path,
    (carried, images): (Carried, Vec<ImageFile>),
    progress: impl Fn(u64, u64),
) -> Result<u64, String> {
    let of_memory = courier.given();
    let total = of_memory + images.iter().map(|image| image.size).sum::<u64>();
    let progress = |bytes| progress(of_memory + bytes, total);
    let answer = courier.finish(directory, carried, images, progress).await;
    taken(destination, answer).map(|()| total)
}

/// The reason why the courier cannot send any more.
pub async fn why_not_taken(destination: &HostName, courier: &Courier) -> String {
    let untold = || not_taken(destination, &io::ErrorKind::BrokenPipe.into());
    taken(destination, courier.why().await).err().unwrap_or_else(untold)
}

fn taken(destination: &HostName, answer: io::Result<Received>) -> Result<(), String> {
    match answer {
        Ok(Received::Whole { .. }) => Ok(()),
        Ok(Received::Refused { reason }) => Err(reason),
        Err(error) => Err(not_taken(destination, &error)),
    }
}

/// The reason why sending to `destination` failed, with a remedy.
pub fn not_taken(destination: &HostName, error: &io::Error) -> String {
    let what = format!("host {destination} did not accept the images ({error})");
    wire::reason(&what, "check that its node runs, or choose another host")
}
