//! The transfer of an instance's images from its source to its destination.
//!
//! The source opens the connection before the instance is suspended, and names the move. The destination accepts it only from the
//! host that the coordinator named for that move. Most pages of memory are sent while the instance runs, and the changed ones when
//! it is stopped ([`courier`], [`known`]). Regions and image files are opaque here: only the engines know their meaning. Images of
//! a checkpoint stay on the host ([`saved`]).

mod courier;
mod known;
mod meter;
mod pacing;
mod receiver;
pub mod saved;

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use fabric::Vid;
use instance::{Carried, ImageFile};
use moves::node::Input;
use moves::{HostName, MoveId};
use rpc::wire::{self, Opening, Received};
use rpc::{Stream, frame};
use tokio::sync::mpsc;
use tokio::time::timeout;

pub use self::courier::Courier;
pub use self::meter::{Meter, Reading};
pub use self::pacing::Pacing;
pub use self::receiver::receive;
use crate::channels::ChannelSet;
use crate::lock::lock;
use crate::node::Node;

/// The length limit of one frame of a file, in bytes.
const PART: usize = 1024 * 1024;

/// How long the destination may take for a part, and for its answer at the end.
const STALL: Duration = Duration::from_secs(4);

/// The limit of runs of pages in one message.
const LAYOUT: usize = 100_000;

/// The limit of files of one instance.
const MAX_IMAGES: usize = 100_000;

/// The connections that this host expects from sources of moves.
#[derive(Default)]
pub struct Receptions {
    expected: Mutex<HashMap<MoveId, Expected>>,
    /// Couriers of instances that leave this host, before they are suspended.
    couriers: Mutex<HashMap<Vid, (MoveId, Arc<Courier>)>>,
}

struct Expected {
    vid: Vid,
    source: HostName,
    channels: Arc<ChannelSet>,
    arrived: mpsc::Sender<Stream>,
    arrival: Arc<tokio::sync::Mutex<mpsc::Receiver<Stream>>>,
}

impl Receptions {
    /// Expects images of `vid` from `source`, and channels.
    pub fn expect(&self, id: MoveId, vid: Vid, source: HostName, channels: Arc<ChannelSet>) {
        let (arrived, arrival) = mpsc::channel(1);
        let arrival = Arc::new(tokio::sync::Mutex::new(arrival));
        self.lock().insert(id, Expected { vid, source, channels, arrived, arrival });
    }

    /// Accepts the connection that `from` has opened for a move, if it is expected.
    pub fn arrive(&self, id: MoveId, vid: Vid, from: &str, stream: Stream) {
        let expected = self.lock();
        match expected.get(&id) {
            Some(expected) if expected.vid == vid && expected.source.as_str() == from => {
                // One connection is enough: a second one is closed.
                let _ = expected.arrived.try_send(stream);
            }
            _ => tracing::warn!("{from} offers unexpected images of instance {vid} for {id}"),
        }
    }

    /// Accepts a channel that `from` has opened for a move, if the move is expected.
    pub fn channel(
        &self,
        (id, vid): (MoveId, Vid),
        from: &str,
        name: &str,
        stream: Stream,
    ) -> io::Result<()> {
        let channels = match self.lock().get(&id) {
            Some(expected) if expected.vid == vid && expected.source.as_str() == from => {
                expected.channels.clone()
            }
            _ => {
                return Err(io::Error::other(format!(
                    "a channel of instance {vid} for {id} is not expected"
                )));
            }
        };
        channels.arrive(name, stream)
    }

    /// The connection for a move, when it arrives; `None` if none is expected.
    pub async fn stream(&self, id: MoveId) -> Option<Stream> {
        let arrival = self.lock().get(&id)?.arrival.clone();
        arrival.lock().await.recv().await
    }

    /// Stops expecting a connection for a move.
    pub fn close(&self, id: MoveId) {
        self.lock().remove(&id);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<MoveId, Expected>> {
        lock(&self.expected)
    }

    fn couriers(&self) -> MutexGuard<'_, HashMap<Vid, (MoveId, Arc<Courier>)>> {
        lock(&self.couriers)
    }
}

impl Node {
    /// Opens the connection for a move before the instance is suspended, and keeps its courier.
    pub async fn open_courier(
        &self,
        vid: Vid,
        id: MoveId,
        destination: &HostName,
    ) -> io::Result<Arc<Courier>> {
        let stream = self.connect_for_images(vid, id, destination).await?;
        let courier = Arc::new(Courier::new(stream, self.move_bandwidth)?);
        self.keep_courier(vid, id, courier.clone());
        Ok(courier)
    }

    /// Keeps the courier of a move until it is taken, or the instance stays.
    pub fn keep_courier(&self, vid: Vid, id: MoveId, courier: Arc<Courier>) {
        self.receptions.couriers().insert(vid, (id, courier));
    }

    /// Takes the courier of a move.
    pub fn take_courier(&self, vid: Vid, id: MoveId) -> Option<Arc<Courier>> {
        self.receptions.couriers().remove(&vid).filter(|(of, _)| *of == id).map(|(_, courier)| courier)
    }

    pub fn drop_courier(&self, vid: Vid) {
        self.receptions.couriers().remove(&vid);
    }

    /// The address of a host.
    pub fn address_of(&self, host: &HostName) -> io::Result<SocketAddr> {
        self.directory.address(host).ok_or_else(|| {
            io::Error::new(io::ErrorKind::NotFound, format!("the address of host {host} is not known"))
        })
    }

    async fn connect_for_images(&self, vid: Vid, id: MoveId, destination: &HostName) -> io::Result<Stream> {
        let address = self.address_of(destination)?;
        let mut stream = self.endpoint.connect(address, destination.as_str()).await?;
        frame::send(&mut stream, &Opening::Images { id, vid }).await?;
        Ok(stream)
    }

    /// Sends the remaining images, and returns the size of all that was sent once the destination has verified it; otherwise the reason for the failure.
    pub async fn send_rest(
        self: &Arc<Self>,
        vid: Vid,
        destination: &HostName,
        courier: Courier,
        directory: &Path,
        (carried, images): (Carried, Vec<ImageFile>),
    ) -> Result<u64, String> {
        let of_memory = courier.given();
        let total = of_memory + images.iter().map(|image| image.size).sum::<u64>();
        let progress = |bytes| self.agent.input(Input::Progress { vid, bytes: of_memory + bytes, total });
        let answer = courier.finish(directory, carried, images, progress).await;
        self.taken(destination, answer).map(|()| total)
    }

    /// The reason why the courier cannot send any more.
    pub async fn why_not_taken(&self, destination: &HostName, courier: &Courier) -> String {
        let untold = || self.images_not_taken(destination, &io::ErrorKind::BrokenPipe.into());
        self.taken(destination, courier.why().await).err().unwrap_or_else(untold)
    }

    fn taken(&self, destination: &HostName, answer: io::Result<Received>) -> Result<(), String> {
        match answer {
            Ok(Received::Whole { .. }) => Ok(()),
            Ok(Received::Refused { reason }) => Err(reason),
            Err(error) => Err(self.images_not_taken(destination, &error)),
        }
    }

    /// The reason why sending to `destination` failed, with a remedy.
    pub fn images_not_taken(&self, destination: &HostName, error: &io::Error) -> String {
        let what = format!("host {destination} did not accept the images ({error})");
        wire::reason(&what, "check that its node runs, or choose another host")
    }
}

/// The result of `step`, if the destination accepts data in time: the instance is stopped meanwhile.
async fn in_time<T>(step: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    timeout(STALL, step).await?
}

/// Sends the source the reason for refusing its images. Data in flight is read until the source has received the reason: closing with
/// unread bytes would reset the connection, and lose the answer.
pub async fn refuse(stream: &mut Stream, reason: String) -> io::Result<()> {
    in_time(frame::send(stream, &Received::Refused { reason })).await?;
    in_time(tokio::io::copy(stream, &mut tokio::io::sink())).await.map(drop)
}

fn is_plain(name: &str) -> bool {
    !matches!(name, "" | "." | "..") && name.len() <= 255 && !name.contains(['/', '\0'])
}

fn part_of(left: u64) -> usize {
    usize::try_from(left).unwrap_or(PART).min(PART)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_lead_elsewhere_are_not_plain() {
        assert!(is_plain("pages-1.img"));
        for name in ["", ".", "..", "../x", "a/b"] {
            assert!(!is_plain(name), "{name}");
        }
    }
}
