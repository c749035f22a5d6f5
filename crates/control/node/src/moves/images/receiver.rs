//! Receives images at the destination, and passes them to the engine's sink.

use std::io;

use blake3::Hasher;
use engine_api::{ImageSink, PAGE};
use instance::{Carried, ImageFile, Region};
use rpc::wire::{ImageMessage, Manifest, Received};
use rpc::{Stream, frame};
use tokio::fs::File;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::task::spawn_blocking;

use super::parts::{MAX_IMAGES, PART, in_time, is_plain, part_of};

/// Receives images from `stream` into `sink`, and returns the broker's state that came beside them.
pub async fn receive(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    sink: Box<dyn ImageSink>,
) -> io::Result<Carried> {
    let mut receiver = Receiver { sink: Some(sink), digest: Hasher::new(), part: Vec::new() };
    let Manifest { carried, images } = loop {
        match frame::receive(stream).await? {
            ImageMessage::Begin => receiver.sink()?.begin(),
            ImageMessage::Pages { region, runs } => receiver.take_pages(stream, region, runs).await?,
            ImageMessage::Layout { region, runs } => receiver.sink()?.lay_out(region, &runs)?,
            ImageMessage::Left { region, runs } => receiver.sink()?.leave(region, &runs)?,
            ImageMessage::Rest(manifest) => break manifest,
        }
    };
    if images.len() > MAX_IMAGES || !images.iter().all(|image| is_plain(&image.name)) {
        return Err(unacceptable());
    }
    for image in images {
        receiver.take_image(stream, image).await?;
    }
    let Receiver { sink, digest, .. } = receiver;
    let sink = sink.ok_or_else(unacceptable)?;
    spawn_blocking(move || sink.finish()).await.map_err(io::Error::other)??;
    frame::send(stream, &Received::Whole { digest: *digest.finalize().as_bytes() }).await?;
    Ok(carried)
}

/// Sends the source the reason for refusing its images. Data in flight is read until the source has received the reason: closing with
/// unread bytes would reset the connection, and lose the answer.
pub async fn refuse(stream: &mut Stream, reason: String) -> io::Result<()> {
    in_time(frame::send(stream, &Received::Refused { reason })).await?;
    in_time(tokio::io::copy(stream, &mut tokio::io::sink())).await.map(drop)
}

struct Receiver {
    /// `None` while a thread that may block uses it.
    sink: Option<Box<dyn ImageSink>>,
    digest: Hasher,
    part: Vec<u8>,
}

impl Receiver {
    fn sink(&mut self) -> io::Result<&mut Box<dyn ImageSink>> {
        self.sink.as_mut().ok_or_else(unacceptable)
    }

    /// The result of `work` with the sink, which may block.
    async fn with_sink<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&mut dyn ImageSink) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let mut sink = self.sink.take().ok_or_else(unacceptable)?;
        let working = spawn_blocking(move || {
            let worked = work(&mut *sink);
            (sink, worked)
        });
        let (sink, worked) = working.await.map_err(io::Error::other)?;
        self.sink = Some(sink);
        worked
    }

    async fn take_pages(
        &mut self,
        stream: &mut (impl AsyncRead + Unpin),
        region: Region,
        runs: Vec<(u64, u32)>,
    ) -> io::Result<()> {
        if !frame::read(stream, &mut self.part).await? {
            return Err(ends_early());
        }
        let pages: u64 = runs.iter().map(|(_, pages)| u64::from(*pages)).sum();
        let (count, rest) = ((self.part.len() / PAGE) as u64, self.part.len() % PAGE);
        if self.part.len() > PART || pages != count || rest != 0 {
            return Err(unacceptable());
        }
        self.digest.update(&self.part);
        let part = std::mem::take(&mut self.part);
        self.part = self.with_sink(move |sink| write(sink, region, &runs, part)).await?;
        Ok(())
    }

    async fn take_image(
        &mut self,
        stream: &mut (impl AsyncRead + Unpin),
        ImageFile { name, size }: ImageFile,
    ) -> io::Result<()> {
        let mut file = File::from_std(self.with_sink(move |sink| sink.file(&name)).await?);
        let mut left = size;
        while left > 0 {
            if !frame::read(stream, &mut self.part).await? || self.part.len() != part_of(left) {
                return Err(ends_early());
            }
            self.digest.update(&self.part);
            file.write_all(&self.part).await?;
            left -= self.part.len() as u64;
        }
        file.flush().await
    }
}

/// Writes runs of pages, which are consecutive in `part`, and returns `part`.
fn write(
    sink: &mut dyn ImageSink,
    region: Region,
    runs: &[(u64, u32)],
    part: Vec<u8>,
) -> io::Result<Vec<u8>> {
    let mut left = part.as_slice();
    for (address, pages) in runs {
        let (now, rest) = left.split_at(*pages as usize * PAGE);
        sink.write(region, *address, now)?;
        left = rest;
    }
    Ok(part)
}

fn unacceptable() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the source's description of its images is invalid")
}

fn ends_early() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the images end too early")
}

#[cfg(test)]
mod tests;
