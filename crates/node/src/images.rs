//! Images of an instance on their way from its old host to its new one.
//!
//! The source opens the connection before the instance is suspended, and says for which move it is. The
//! destination takes it from the host that the coordinator named for that move, and from no other.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use blake3::Hasher;
use broker::Carried;
use engines::Image;
use fabric::Vid;
use moves::node::Input;
use moves::{HostName, MoveId};
use rpc::wire::{self, Manifest, Opening, Received};
use rpc::{Stream, frame};
use tokio::fs::{File, OpenOptions};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, WriteHalf};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::node::Node;

/// The most bytes in one frame of a file.
const PART: usize = 1024 * 1024;

/// How long the destination may take for a part, and for its answer at the end.
const STALL: Duration = Duration::from_secs(4);

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

    /// Sends images, and returns their size when the destination has verified them; otherwise why not, in words.
    pub async fn send_images(
        self: &Arc<Self>,
        vid: Vid,
        (id, destination): (MoveId, HostName),
        carried: Carried,
        images: Vec<Image>,
        directory: &Path,
    ) -> Result<u64, String> {
        let total = images.iter().map(|image| image.size).sum();
        let progress = |bytes| self.input(Input::Progress { vid, bytes, total });
        let sending = async {
            let stream = self.image_stream(vid, id, &destination).await?;
            send(stream, carried, images, directory, progress).await
        };
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

/// Sends images until the destination answers, which it does before their end if it cannot take them.
async fn send(
    stream: Stream,
    carried: Carried,
    images: Vec<Image>,
    directory: &Path,
    progress: impl Fn(u64),
) -> io::Result<Received> {
    let (mut back, mut forth) = tokio::io::split(stream);
    let manifest = Manifest { carried, images };
    let mut answer = pin!(frame::receive(&mut back));
    let digest = tokio::select! {
        biased;
        early = &mut answer => return early,
        sent = send_all(&mut forth, &manifest, directory, progress) => sent?,
    };
    match in_time(answer).await? {
        Received::Whole { digest: arrived } if arrived != digest => {
            Err(io::Error::new(io::ErrorKind::InvalidData, "what arrived is not what was sent"))
        }
        answer => Ok(answer),
    }
}

/// Sends the manifest and its images, and returns their digest.
async fn send_all(
    stream: &mut WriteHalf<Stream>,
    manifest: &Manifest,
    directory: &Path,
    progress: impl Fn(u64),
) -> io::Result<[u8; 32]> {
    in_time(frame::send(stream, manifest)).await?;
    let mut digest = Hasher::new();
    let mut part = vec![0; PART];
    let mut sent = 0;
    for image in &manifest.images {
        let mut file = File::open(directory.join(&image.name)).await?;
        let mut left = image.size;
        while left > 0 {
            let length = part_of(left);
            file.read_exact(&mut part[..length]).await?;
            digest.update(&part[..length]);
            in_time(frame::write(stream, &part[..length])).await?;
            left -= length as u64;
            sent += length as u64;
            if length == PART {
                progress(sent);
            }
        }
    }
    in_time(stream.flush()).await?;
    Ok(*digest.finalize().as_bytes())
}

/// What `step` comes to, if the destination lets it go forward: the instance is stopped meanwhile.
async fn in_time<T>(step: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    timeout(STALL, step).await?
}

/// Takes images from `stream` into `directory`, and returns what came beside them.
pub async fn receive(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    directory: &Path,
) -> io::Result<Carried> {
    let manifest: Manifest = frame::receive(stream).await?;
    let plain = |image: &Image| is_plain(&image.name);
    if manifest.images.len() > MAX_IMAGES || !manifest.images.iter().all(plain) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the images' names are not acceptable"));
    }
    let mut digest = Hasher::new();
    let mut part = Vec::new();
    for image in &manifest.images {
        let path = directory.join(&image.name);
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).open(path).await?;
        let mut left = image.size;
        while left > 0 {
            if !frame::read(stream, &mut part).await? || part.len() != part_of(left) {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "they end too early"));
            }
            digest.update(&part);
            file.write_all(&part).await?;
            left -= part.len() as u64;
        }
        file.flush().await?;
    }
    frame::send(stream, &Received::Whole { digest: *digest.finalize().as_bytes() }).await?;
    Ok(manifest.carried)
}

/// Tells the source why its images are not taken. What is on its way is read until it has heard that: closed
/// with bytes unread, the connection would be reset, and the answer lost.
pub async fn refuse(stream: &mut Stream, reason: String) -> io::Result<()> {
    in_time(frame::send(stream, &Received::Refused { reason })).await?;
    in_time(tokio::io::copy(stream, &mut tokio::io::sink())).await.map(drop)
}

fn part_of(left: u64) -> usize {
    usize::try_from(left).unwrap_or(PART).min(PART)
}

fn is_plain(name: &str) -> bool {
    !matches!(name, "" | "." | "..") && name.len() <= 255 && !name.contains(['/', '\0'])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The names and sizes of files, and the frames behind them.
    type Said<'a> = (&'a [(&'a str, u64)], &'a [&'a [u8]]);

    /// What comes of a manifest with these files and the frames behind it, after which the source ends.
    async fn received(images: &[(&str, u64)], frames: &[&[u8]]) -> io::Result<Vec<u8>> {
        let directory = tempfile::tempdir().unwrap();
        let images = images.iter().map(|(name, size)| Image { name: (*name).into(), size: *size }).collect();
        let (mut near, mut far) = tokio::io::duplex(1 << 20);
        frame::send(&mut near, &Manifest { carried: Carried::default(), images }).await.unwrap();
        for bytes in frames {
            frame::write(&mut near, bytes).await.unwrap();
        }
        let (_answers, mut writer) = tokio::io::split(near);
        writer.shutdown().await.unwrap();
        receive(&mut far, directory.path()).await?;
        std::fs::read(directory.path().join("a"))
    }

    #[tokio::test]
    async fn a_source_that_does_not_send_what_it_said_is_refused() {
        assert_eq!(received(&[("a", 3)], &[b"abc"]).await.unwrap(), b"abc");
        let wrong: [Said<'_>; 6] = [
            (&[("../a", 3)], &[b"abc"]),
            (&[("a", 3), ("/etc/a", 3)], &[b"abc", b"abc"]),
            (&[("a", 3)], &[b"ab"]),
            (&[("a", 3)], &[b"abcd"]),
            (&[("a", 3)], &[]),
            (&[("a", u64::MAX)], &[b"abc"]),
        ];
        for (images, frames) in wrong {
            assert!(received(images, frames).await.is_err(), "{images:?}");
        }
        let many = vec![("a", 0); MAX_IMAGES + 1];
        assert_eq!(received(&many, &[]).await.unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn names_that_lead_elsewhere_are_not_plain() {
        assert!(is_plain("pages-1.img"));
        for name in ["", ".", "..", "../x", "a/b"] {
            assert!(!is_plain(name), "{name}");
        }
    }
}
