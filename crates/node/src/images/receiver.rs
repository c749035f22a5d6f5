//! Receives images at the destination.

use std::io;
use std::path::{Path, PathBuf};

use blake3::Hasher;
use engines::{Archives, MemoryImages, Owner, PAGE};
use instance::{Carried, ImageFile};
use rpc::frame;
use rpc::wire::{ImageMessage, Manifest, Received};
use tokio::fs::{File, OpenOptions};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::task::spawn_blocking;

use super::{MAX_IMAGES, PART, is_plain, part_of};

/// Receives images from `stream` into `directory`, and returns the broker's state that came beside them.
pub async fn receive(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    directory: &Path,
) -> io::Result<Carried> {
    let mut receiver = Receiver {
        directory: directory.to_owned(),
        places: Places::new(directory),
        digest: Hasher::new(),
        part: Vec::new(),
    };
    let Manifest { carried, images } = loop {
        match frame::receive(stream).await? {
            ImageMessage::Begin => receiver.places.memory.begin(),
            ImageMessage::Pages { region, runs } => {
                receiver.take_pages(stream, Owner::of(region)?, runs).await?
            }
            ImageMessage::Layout { region, runs } => receiver.take_layout(Owner::of(region)?, &runs)?,
            ImageMessage::Left { region, runs } => receiver.take_left(Owner::of(region)?, &runs)?,
            ImageMessage::Rest(manifest) => break manifest,
        }
    };
    // Those of memory are made here.
    let is_of_memory = |name: &str| name.starts_with("pages-") || name.starts_with("pagemap-");
    let is_right = |image: &ImageFile| is_plain(&image.name) && !is_of_memory(&image.name);
    if images.len() > MAX_IMAGES || !images.iter().all(is_right) {
        return Err(unacceptable());
    }
    for image in &images {
        receiver.take_image(stream, image).await?;
    }
    let Receiver { places, digest, .. } = receiver;
    spawn_blocking(move || places.finish()).await.map_err(io::Error::other)??;
    frame::send(stream, &Received::Whole { digest: *digest.finalize().as_bytes() }).await?;
    Ok(carried)
}

struct Receiver {
    directory: PathBuf,
    places: Places,
    digest: Hasher,
    part: Vec<u8>,
}

/// Where pages are put.
struct Places {
    memory: MemoryImages,
    archives: Archives,
}

impl Receiver {
    async fn take_pages(
        &mut self,
        stream: &mut (impl AsyncRead + Unpin),
        owner: Owner,
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
        let places = std::mem::replace(&mut self.places, Places::new(&self.directory));
        let part = std::mem::take(&mut self.part);
        let writing = spawn_blocking(move || write(places, owner, &runs, part));
        (self.places, self.part) = writing.await.map_err(io::Error::other)??;
        Ok(())
    }

    fn take_layout(&mut self, owner: Owner, runs: &[(u64, u64)]) -> io::Result<()> {
        let Places { memory, archives } = &mut self.places;
        if let Owner::Archive(number) = owner {
            return runs.iter().try_for_each(|(address, pages)| archives.keep(number, *address, *pages));
        }
        memory.open(owner);
        runs.iter().try_for_each(|(address, pages)| memory.keep(owner, *address, *pages))
    }

    fn take_left(&mut self, owner: Owner, runs: &[(u64, u64)]) -> io::Result<()> {
        let memory = &mut self.places.memory;
        runs.iter().try_for_each(|(address, pages)| memory.leave(owner, *address, *pages))
    }

    async fn take_image(
        &mut self,
        stream: &mut (impl AsyncRead + Unpin),
        image: &ImageFile,
    ) -> io::Result<()> {
        let mut file = self.begin(&image.name).await?;
        let mut left = image.size;
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

    /// A new file, which an earlier one does not become: that may be somebody's still.
    async fn begin(&self, name: &str) -> io::Result<File> {
        OpenOptions::new().write(true).create_new(true).open(self.directory.join(name)).await
    }
}

impl Places {
    /// In a directory in which nothing is yet.
    fn new(directory: &Path) -> Self {
        Self { memory: MemoryImages::new(directory), archives: Archives::new(directory) }
    }

    fn write(&mut self, owner: Owner, address: u64, pages: &[u8]) -> io::Result<()> {
        match owner {
            Owner::Archive(number) => self.archives.write(number, address, pages),
            Owner::Process(_) | Owner::Shared(_) => self.memory.write(owner, address, pages),
        }
    }

    fn finish(self) -> io::Result<()> {
        self.archives.finish()?;
        self.memory.finish()
    }
}

/// Writes runs of pages that lie in `part` one behind the other, and gives both back.
fn write(
    mut places: Places,
    owner: Owner,
    runs: &[(u64, u32)],
    part: Vec<u8>,
) -> io::Result<(Places, Vec<u8>)> {
    let mut left = part.as_slice();
    for (address, pages) in runs {
        let (now, rest) = left.split_at(*pages as usize * PAGE);
        places.write(owner, *address, now)?;
        left = rest;
    }
    Ok((places, part))
}

fn unacceptable() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the source's description of its images is invalid")
}

fn ends_early() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the images end too early")
}

#[cfg(test)]
mod tests;
