//! A source's images on their way: what CRIU writes most of goes while it writes.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use blake3::Hasher;
use broker::Carried;
use engines::Image;
use rpc::wire::{ImageMessage, Manifest, Received, SentImage};
use rpc::{Stream, frame};
use tokio::fs::{self, File};
use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt, WriteHalf};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::{MAX_EARLY, PART, in_time, part_of};

/// How the images with the pages of memory begin, to which CRIU only ever appends.
const PAGES: &str = "pages-";

/// How soon it is looked again whether there is more of them.
const LOOK: Duration = Duration::from_millis(1);

/// See the module.
pub struct Sender {
    stream: WriteHalf<Stream>,
    /// The destination's answer, which comes at the end, or before it if it cannot take them.
    answer: JoinHandle<io::Result<Received>>,
    directory: PathBuf,
    digest: Hasher,
    part: Vec<u8>,
    /// By name.
    early: BTreeMap<String, Early>,
}

/// A file that is sent before it is complete.
struct Early {
    file: File,
    sent: u64,
    /// Its name is another file's by now, of a dump that was begun anew, and what was sent is void.
    is_void: bool,
}

impl Sender {
    /// For images in `directory`.
    pub fn new(stream: Stream, directory: &Path) -> Self {
        let (mut back, stream) = tokio::io::split(stream);
        let answer = tokio::spawn(async move { frame::receive(&mut back).await });
        Self {
            stream,
            answer,
            directory: directory.to_owned(),
            digest: Hasher::new(),
            part: vec![0; PART],
            early: BTreeMap::new(),
        }
    }

    /// Sends what is written meanwhile, until `is_complete` says that all is, or the destination does not take it.
    pub async fn follow(&mut self, is_complete: &AtomicBool) -> io::Result<()> {
        loop {
            if is_complete.load(Ordering::Acquire) || self.answer.is_finished() {
                return Ok(());
            }
            if !self.send_new().await? {
                sleep(LOOK).await;
            }
        }
    }

    /// Sends a part of each file that has grown; `false` if there is none.
    async fn send_new(&mut self) -> io::Result<bool> {
        match self.find_new().await {
            // The directory is made anew with each dump.
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut more = false;
        for (name, early) in self.early.iter_mut().filter(|(_, early)| !early.is_void) {
            if !early.is_at(&self.directory.join(name)).await? {
                early.is_void = true;
                continue;
            }
            let Early { file, sent, .. } = early;
            let length = file.read(&mut self.part).await?;
            if length > 0 {
                let part = &self.part[..length];
                in_time(send_early(&mut self.stream, name, part)).await?;
                self.digest.update(part);
                *sent += length as u64;
                more = true;
            }
        }
        Ok(more)
    }

    async fn find_new(&mut self) -> io::Result<()> {
        let mut entries = fs::read_dir(&self.directory).await?;
        while let Some(entry) = entries.next_entry().await? {
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_new = name.starts_with(PAGES) && !self.early.contains_key(&name);
            if is_new && self.early.len() < MAX_EARLY {
                let file = File::open(entry.path()).await?;
                self.early.insert(name, Early { file, sent: 0, is_void: false });
            }
        }
        Ok(())
    }

    /// Sends the rest of all images, and returns the destination's answer.
    pub async fn finish(
        mut self,
        carried: Carried,
        images: Vec<Image>,
        progress: impl Fn(u64),
    ) -> io::Result<Received> {
        let mut sent = Vec::new();
        for image in images {
            let early = self.early_of(&image).await?;
            sent.push(SentImage { image, early });
        }
        let rest = async {
            in_time(frame::send(
                &mut self.stream,
                &ImageMessage::Rest(Manifest { carried, images: sent.clone() }),
            ))
            .await?;
            let mut all = 0;
            for SentImage { image, early } in &sent {
                let mut file = File::open(self.directory.join(&image.name)).await?;
                file.seek(io::SeekFrom::Start(*early)).await?;
                all += early;
                let mut left = image.size - early;
                while left > 0 {
                    let length = part_of(left);
                    file.read_exact(&mut self.part[..length]).await?;
                    self.digest.update(&self.part[..length]);
                    in_time(frame::write(&mut self.stream, &self.part[..length])).await?;
                    left -= length as u64;
                    all += length as u64;
                    if length == PART {
                        progress(all);
                    }
                }
            }
            in_time(self.stream.flush()).await
        };
        tokio::select! {
            biased;
            early = &mut self.answer => return early.map_err(io::Error::other)?,
            sent = rest => sent?,
        }
        let answer = async { (&mut self.answer).await.map_err(io::Error::other)? };
        match in_time(answer).await? {
            Received::Whole { digest } if digest != *self.digest.finalize().as_bytes() => {
                Err(io::Error::new(io::ErrorKind::InvalidData, "what arrived is not what was sent"))
            }
            answer => Ok(answer),
        }
    }

    /// How much of `image` was sent already. What was sent of a dump that was begun anew is another file's.
    async fn early_of(&self, image: &Image) -> io::Result<u64> {
        let early = self.early.get(&image.name).filter(|early| !early.is_void && early.sent <= image.size);
        let Some(early) = early else { return Ok(0) };
        Ok(if early.is_at(&self.directory.join(&image.name)).await? { early.sent } else { 0 })
    }
}

impl Early {
    /// Whether the file has the name still by which it was found.
    async fn is_at(&self, path: &Path) -> io::Result<bool> {
        let opened = self.file.metadata().await?;
        match fs::metadata(path).await {
            Ok(present) => Ok((opened.dev(), opened.ino()) == (present.dev(), present.ino())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// A part of a file that is not complete.
async fn send_early(stream: &mut WriteHalf<Stream>, name: &str, part: &[u8]) -> io::Result<()> {
    let message = frame::encode(&ImageMessage::Early { name: name.to_owned() })?;
    frame::write(stream, &message).await?;
    frame::write(stream, part).await
}

impl Drop for Sender {
    fn drop(&mut self) {
        // With it goes the connection.
        self.answer.abort();
    }
}
