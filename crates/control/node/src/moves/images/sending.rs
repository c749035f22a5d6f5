//! The task that sends the parts of a courier, and the remaining images after them.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

use blake3::Hasher;
use engine_api::PAGE;
use instance::{Carried, ImageFile, Region};
use rpc::wire::{ImageMessage, Manifest};
use rpc::{Stream, frame};
use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncWriteExt, WriteHalf};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::parts::{LAYOUT, PART, in_time, part_of};
use crate::moves::meter::Meter;
use crate::moves::pacing::Pacing;

/// Pages that are not sent yet.
#[derive(Default)]
pub struct Changed {
    pub region: Option<Region>,
    /// The address of each run, and how many pages it has.
    runs: Vec<(u64, u32)>,
    pub pages: Vec<u8>,
}

/// A part of the transfer; parts are sent in order.
pub enum Part {
    Begin,
    Pages(Changed),
    /// The instance is stopped, and waits for the parts that follow.
    Hurry,
    /// Requests a notice when all earlier parts are sent.
    Flush(oneshot::Sender<()>),
}

/// The result of the sending task.
pub struct Sent {
    stream: WriteHalf<Stream>,
    digest: Hasher,
}

impl Changed {
    pub fn add(&mut self, region: Region, address: u64, page: &[u8]) {
        self.region = Some(region);
        match self.runs.last_mut() {
            Some((start, count)) if *start + u64::from(*count) * PAGE as u64 == address => *count += 1,
            _ => self.runs.push((address, 1)),
        }
        self.pages.extend_from_slice(page);
    }
}

/// Sends the parts that arrive, until the channel of parts is closed.
pub async fn send(
    mut sent: Sent,
    mut parts: mpsc::Receiver<Part>,
    limit: Option<u64>,
    meter: Arc<Meter>,
) -> io::Result<Sent> {
    let mut pacing = Pacing::new(limit);
    while let Some(part) = parts.recv().await {
        match part {
            Part::Begin => in_time(frame::send(&mut sent.stream, &ImageMessage::Begin)).await?,
            Part::Pages(changed) => {
                let (bytes, began) = (changed.pages.len() as u64, Instant::now());
                pacing.ready().await;
                in_time(sent.pages(changed)).await?;
                meter.send(bytes, began.elapsed());
                pacing.sent(bytes);
            }
            Part::Hurry => pacing.lift(),
            Part::Flush(flushed) => {
                in_time(sent.stream.flush()).await?;
                let _gone = flushed.send(());
            }
        }
    }
    Ok(sent)
}

impl Sent {
    /// Sends over `stream`.
    pub fn new(stream: WriteHalf<Stream>) -> Self {
        Self { stream, digest: Hasher::new() }
    }

    /// The digest of all that was sent.
    pub fn into_digest(self) -> Hasher {
        self.digest
    }

    async fn pages(&mut self, Changed { region, runs, pages }: Changed) -> io::Result<()> {
        let Some(region) = region else { return Ok(()) };
        frame::write(&mut self.stream, &frame::encode(&ImageMessage::Pages { region, runs })?).await?;
        self.digest.update(&pages);
        frame::write(&mut self.stream, &pages).await
    }

    pub async fn runs(
        &mut self,
        all: BTreeMap<Region, Vec<(u64, u64)>>,
        message: impl Fn(Region, Vec<(u64, u64)>) -> ImageMessage,
    ) -> io::Result<()> {
        for (region, runs) in all {
            // Also for a region without pages.
            let mut pieces = runs.chunks(LAYOUT);
            let mut piece = pieces.next().unwrap_or_default();
            loop {
                let message = frame::encode(&message(region, piece.to_vec()))?;
                in_time(frame::write(&mut self.stream, &message)).await?;
                let Some(next) = pieces.next() else { break };
                piece = next;
            }
        }
        Ok(())
    }

    pub async fn rest(
        &mut self,
        directory: &Path,
        carried: Carried,
        images: Vec<ImageFile>,
        progress: impl Fn(u64),
    ) -> io::Result<()> {
        let manifest = ImageMessage::Rest(Manifest { carried, images: images.clone() });
        in_time(frame::send(&mut self.stream, &manifest)).await?;
        let mut all = 0;
        let mut part = vec![0; PART];
        for image in images {
            let mut file = File::open(directory.join(&image.name)).await?;
            let mut left = image.size;
            while left > 0 {
                let part = &mut part[..part_of(left)];
                file.read_exact(part).await?;
                self.digest.update(part);
                in_time(frame::write(&mut self.stream, part)).await?;
                left -= part.len() as u64;
                all += part.len() as u64;
                if part.len() == PART {
                    progress(all);
                }
            }
        }
        in_time(self.stream.flush()).await
    }
}

/// A task that ends with its owner. When both tasks of a courier end, its connection closes.
pub struct Task<T>(JoinHandle<io::Result<T>>);

impl<T: Send + 'static> Task<T> {
    pub fn spawn(work: impl Future<Output = io::Result<T>> + Send + 'static) -> Self {
        Self(tokio::spawn(work))
    }

    pub async fn end(&mut self) -> io::Result<T> {
        (&mut self.0).await.map_err(io::Error::other)?
    }
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}
