//! Images of an instance on their way from its old host to its new one.
//!
//! The source opens the connection before the instance is suspended, and says for which move it is. The
//! destination takes it from the host that the coordinator named for that move, and from no other. What there is most of, the
//! pages of memory, is sent while CRIU writes it ([`sender`]). Those of a checkpoint stay on the host ([`saved`]).

mod receiver;
pub mod saved;
mod sender;

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use broker::Carried;
use engines::Image;
use fabric::Vid;
use moves::node::Input;
use moves::{HostName, MoveId};
use rpc::wire::{self, Opening, Received};
use rpc::{Stream, frame};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;

pub use self::receiver::receive;
use self::sender::Sender;
use crate::node::Node;

/// The most bytes in one frame of a file.
const PART: usize = 1024 * 1024;

/// How long the destination may take for a part, and for its answer at the end.
const STALL: Duration = Duration::from_secs(4);

/// The most files that are sent before they are complete: each is held open meanwhile.
const MAX_EARLY: usize = 256;

/// The most files of one instance.
const MAX_IMAGES: usize = 100_000;

/// What this host expects from others.
#[derive(Debug, Default)]
pub struct Receptions {
    expected: Mutex<HashMap<MoveId, Expected>>,
    /// Connections that this host opens as a source, before they are needed.
    opening: Mutex<HashMap<Vid, (MoveId, Opened)>>,
}

type Opened = JoinHandle<io::Result<Stream>>;

#[derive(Debug)]
struct Expected {
    vid: Vid,
    source: HostName,
    arrived: mpsc::Sender<Stream>,
    arrival: Arc<tokio::sync::Mutex<mpsc::Receiver<Stream>>>,
}

impl Receptions {
    /// Expects images of `vid` from `source`.
    pub fn expect(&self, id: MoveId, vid: Vid, source: HostName) {
        let (arrived, arrival) = mpsc::channel(1);
        let arrival = Arc::new(tokio::sync::Mutex::new(arrival));
        self.lock().insert(id, Expected { vid, source, arrived, arrival });
    }

    /// Takes the connection that `from` has opened for a move, if it is expected.
    pub fn arrive(&self, id: MoveId, vid: Vid, from: &str, stream: Stream) {
        let expected = self.lock();
        match expected.get(&id) {
            Some(expected) if expected.vid == vid && expected.source.as_str() == from => {
                // One is enough; a second one waits for nobody and is closed.
                let _ = expected.arrived.try_send(stream);
            }
            _ => tracing::warn!("{from} offers images of instance {vid} for {id}, which are not expected"),
        }
    }

    /// The connection for a move, when it arrives; `None` if none is expected.
    pub async fn stream(&self, id: MoveId) -> Option<Stream> {
        let arrival = self.lock().get(&id)?.arrival.clone();
        arrival.lock().await.recv().await
    }

    /// Expects nothing more for a move.
    pub fn close(&self, id: MoveId) {
        self.lock().remove(&id);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<MoveId, Expected>> {
        self.expected.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn opening(&self) -> MutexGuard<'_, HashMap<Vid, (MoveId, Opened)>> {
        self.opening.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Node {
    /// Begins to open the connection for a move before it is needed.
    pub fn open_image_stream(self: &Arc<Self>, vid: Vid, id: MoveId, destination: HostName) {
        let node = self.clone();
        let opening = tokio::spawn(async move { node.connect_for_images(vid, id, &destination).await });
        self.receptions.opening().insert(vid, (id, opening));
    }

    pub fn close_image_stream(&self, vid: Vid) {
        self.receptions.opening().remove(&vid);
    }

    async fn image_stream(&self, vid: Vid, id: MoveId, destination: &HostName) -> io::Result<Stream> {
        let opening = self.receptions.opening().remove(&vid);
        match opening {
            Some((of, opening)) if of == id => opening.await.map_err(io::Error::other)?,
            _ => self.connect_for_images(vid, id, destination).await,
        }
    }

    async fn connect_for_images(&self, vid: Vid, id: MoveId, destination: &HostName) -> io::Result<Stream> {
        let address = self.directory.address(destination).ok_or_else(|| {
            io::Error::new(io::ErrorKind::NotFound, format!("the address of host {destination} is not known"))
        })?;
        let mut stream = self.endpoint.connect(address, destination.as_str()).await?;
        frame::send(&mut stream, &Opening::Images { id, vid }).await?;
        Ok(stream)
    }

    /// Sends images while they are written to `directory`, until `is_complete` says that all are.
    pub async fn send_early(
        &self,
        vid: Vid,
        (id, destination): (MoveId, &HostName),
        directory: &Path,
        is_complete: &AtomicBool,
    ) -> io::Result<Sender> {
        let mut sender = Sender::new(self.image_stream(vid, id, destination).await?, directory);
        sender.follow(is_complete).await?;
        Ok(sender)
    }

    /// Sends the rest of images, and returns their size when the destination has verified them; otherwise why not, in words.
    pub async fn send_rest(
        self: &Arc<Self>,
        vid: Vid,
        destination: &HostName,
        sender: io::Result<Sender>,
        carried: Carried,
        images: Vec<Image>,
    ) -> Result<u64, String> {
        let total = images.iter().map(|image| image.size).sum();
        let progress = |bytes| self.input(Input::Progress { vid, bytes, total });
        let sending = async { sender?.finish(carried, images, progress).await };
        match sending.await {
            Ok(Received::Whole { .. }) => Ok(total),
            Ok(Received::Refused { reason }) => Err(reason),
            Err(error) => {
                let what = format!("host {destination} did not take the images ({error})");
                Err(wire::reason(&what, "see that its node runs, or choose another"))
            }
        }
    }
}

/// What `step` comes to, if the destination lets it go forward: the instance is stopped meanwhile.
async fn in_time<T>(step: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    timeout(STALL, step).await?
}

/// Tells the source why its images are not taken. What is on its way is read until it has heard that: closed
/// with bytes unread, the connection would be reset, and the answer lost.
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
