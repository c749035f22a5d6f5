//! Sends images from the source: memory while the instance runs, then changed memory and the other images when it is stopped.

use std::collections::BTreeMap;
use std::io;
use std::mem;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use blake3::Hasher;
use engine_api::{MemorySink, PAGE};
use instance::{Carried, ImageFile, Region};
use rpc::wire::{ImageMessage, Manifest, Received};
use rpc::{Stream, frame};
use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncWriteExt, WriteHalf};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::known::Known;
use super::meter::Meter;
use super::pacing::Pacing;
use super::{LAYOUT, PART, in_time, part_of};
use crate::cancel::Cancel;
use crate::lock::lock;

/// The number of parts that may wait to be sent.
const QUEUE: usize = 8;

/// Sends the images of one move.
pub struct Courier {
    /// The queue of the sending task.
    parts: mpsc::Sender<Part>,
    sending: Task<Sent>,
    /// The destination's answer: at the end, or earlier if the destination refuses the images.
    answer: tokio::sync::Mutex<Option<Task<Received>>>,
    is_answered: Arc<AtomicBool>,
    told: Mutex<Told>,
    meter: Arc<Meter>,
    /// Whether changed pages stay at the source if the instance can be restored without them.
    leaves_changes: AtomicBool,
}

/// The memory of the instance according to its engine.
struct Told {
    known: Known,
    changed: Changed,
    /// The runs of pages of each region, in the present account.
    layout: BTreeMap<Region, Vec<(u64, u64)>>,
    /// The pages of these that are fetched later.
    left: BTreeMap<Region, Vec<(u64, u64)>>,
}

/// Pages that are not sent yet.
#[derive(Default)]
struct Changed {
    region: Option<Region>,
    /// The address of each run, and how many pages it has.
    runs: Vec<(u64, u32)>,
    pages: Vec<u8>,
}

/// A part of the transfer; parts are sent in order.
enum Part {
    Begin,
    Pages(Changed),
    /// The instance is stopped, and waits for the parts that follow.
    Hurry,
    /// Requests a notice when all earlier parts are sent.
    Flush(oneshot::Sender<()>),
}

/// The result of the sending task.
struct Sent {
    stream: WriteHalf<Stream>,
    digest: Hasher,
}

impl Courier {
    /// Makes a courier that sends images over `stream`, and memory at a limited rate.
    ///
    /// # Errors
    /// If the system has no random numbers.
    pub fn new(stream: Stream, limit: Option<u64>) -> io::Result<Self> {
        let (layout, left) = (BTreeMap::new(), BTreeMap::new());
        let told = Told { known: Known::new()?, changed: Changed::default(), layout, left };
        let (mut back, stream) = tokio::io::split(stream);
        let is_answered = Arc::new(AtomicBool::new(false));
        let answered = is_answered.clone();
        let answer = Task(tokio::spawn(async move {
            let answer = frame::receive(&mut back).await;
            answered.store(true, Ordering::Release);
            answer
        }));
        let answer = tokio::sync::Mutex::new(Some(answer));
        let (parts, queue) = mpsc::channel(QUEUE);
        let (sent, meter) = (Sent { stream, digest: Hasher::new() }, Arc::new(Meter::default()));
        let sending = Task(tokio::spawn(send(sent, queue, limit, meter.clone())));
        let leaves_changes = AtomicBool::new(false);
        Ok(Self { parts, sending, answer, is_answered, told: Mutex::new(told), meter, leaves_changes })
    }

    /// How many bytes of pages have been sent so far, or are about to be.
    pub fn given(&self) -> u64 {
        self.meter.read().given
    }

    /// The courier's counters.
    pub fn meter(&self) -> &Arc<Meter> {
        &self.meter
    }

    /// From now on, changed pages stay at the source if post-copy can fetch them later.
    pub fn leave_changes(&self) {
        self.leaves_changes.store(true, Ordering::Relaxed);
    }

    /// Lifts the rate limit, since the instance is stopped.
    pub async fn hurry(&self) {
        let _closed = self.parts.send(Part::Hurry).await;
    }

    /// Waits until all pages that it was given are sent.
    ///
    /// # Errors
    /// If the courier cannot send any more.
    pub async fn flush(&self) -> io::Result<()> {
        let (flushed, is_flushed) = oneshot::channel();
        self.meter.begin_to_wait();
        self.parts.send(Part::Flush(flushed)).await.map_err(|_| closed())?;
        is_flushed.await.map_err(|_| closed())?;
        self.meter.end_to_wait();
        Ok(())
    }

    /// A sink for the instance's memory, for use in threads that may block, until `cancel`.
    pub fn sink(self: &Arc<Self>, cancel: &Arc<Cancel>) -> Sink {
        Sink { courier: self.clone(), cancel: cancel.clone(), runtime: Handle::current() }
    }

    /// Sends the layout of the memory and the other images, and returns the destination's answer. Calls `progress` with the number
    /// of bytes of these images that are sent.
    ///
    /// # Errors
    /// If sending fails, or the answer does not arrive in time.
    pub async fn finish(
        self,
        directory: &Path,
        carried: Carried,
        images: Vec<ImageFile>,
        progress: impl Fn(u64),
    ) -> io::Result<Received> {
        let Self { parts, mut sending, answer, told, .. } = self;
        drop(parts);
        let mut answer = answer.into_inner().ok_or_else(closed)?;
        let Told { layout, left, .. } = told.into_inner().expect("no thread panics while it holds the lock");
        let rest = async {
            let mut sent = sending.end().await?;
            sent.runs(layout, |region, runs| ImageMessage::Layout { region, runs }).await?;
            sent.runs(left, |region, runs| ImageMessage::Left { region, runs }).await?;
            sent.rest(directory, carried, images, progress).await?;
            Ok(sent.digest)
        };
        let digest: io::Result<Hasher> = tokio::select! {
            biased;
            early = answer.end() => return early,
            digest = rest => digest,
        };
        let digest = digest?;
        match in_time(answer.end()).await? {
            Received::Whole { digest: theirs } if theirs != *digest.finalize().as_bytes() => Err(
                io::Error::new(io::ErrorKind::InvalidData, "the received images differ from the sent ones"),
            ),
            answer => Ok(answer),
        }
    }

    /// The destination's reason for refusing images, which it sends before it closes the connection.
    ///
    /// # Errors
    /// If it sends none.
    pub async fn why(&self) -> io::Result<Received> {
        let mut answer = self.answer.lock().await.take().ok_or_else(closed)?;
        in_time(answer.end()).await
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        lock(&self.told)
    }
}

/// Accepts an instance's memory for a [`Courier`].
pub struct Sink {
    courier: Arc<Courier>,
    cancel: Arc<Cancel>,
    runtime: Handle,
}

impl Sink {
    fn give(&self, part: Part) -> io::Result<()> {
        // A destination that refuses the images still reads until the source has received its answer.
        if self.courier.is_answered.load(Ordering::Acquire) {
            return Err(closed());
        }
        self.courier.meter.begin_to_wait();
        let given = self.runtime.block_on(self.cancel.unless(self.courier.parts.send(part)));
        self.courier.meter.end_to_wait();
        given.ok_or(io::ErrorKind::Interrupted)?.map_err(|_| closed())
    }

    fn give_changed(&self, changed: &mut Changed) -> io::Result<()> {
        if changed.pages.is_empty() {
            return Ok(());
        }
        self.courier.meter.give(changed.pages.len() as u64);
        self.give(Part::Pages(mem::take(changed)))
    }
}

impl MemorySink for Sink {
    fn begin(&self) -> io::Result<()> {
        let mut told = self.courier.told();
        told.layout.clear();
        told.left.clear();
        self.give_changed(&mut told.changed)?;
        self.give(Part::Begin)
    }

    fn open(&self, region: Region) -> io::Result<()> {
        self.courier.told().layout.entry(region).or_default();
        Ok(())
    }

    fn expect(&self, bytes: u64) {
        self.courier.meter.expect(bytes);
    }

    fn take(&self, region: Region, address: u64, pages: &[u8]) -> io::Result<()> {
        self.courier.meter.see(pages.len() as u64);
        let mut told = self.courier.told();
        let Told { known, changed, layout, .. } = &mut *told;
        add(layout.entry(region).or_default(), address, pages.len() / PAGE);
        known.update(region, address, pages, |address, page| {
            if changed.region != Some(region) || changed.pages.len() + PAGE > PART {
                self.give_changed(changed)?;
            }
            changed.add(region, address, page);
            Ok(())
        })
    }

    fn leaves_pages(&self) -> bool {
        self.courier.leaves_changes.load(Ordering::Relaxed)
    }

    fn take_later(&self, region: Region, address: u64, pages: &[u8]) -> io::Result<()> {
        if !self.leaves_pages() {
            return self.take(region, address, pages);
        }
        self.courier.meter.see(pages.len() as u64);
        let mut told = self.courier.told();
        let Told { known, layout, left, .. } = &mut *told;
        add(layout.entry(region).or_default(), address, pages.len() / PAGE);
        known.compare(region, address, pages, |address| add(left.entry(region).or_default(), address, 1));
        Ok(())
    }

    fn end(&self) -> io::Result<()> {
        self.give_changed(&mut self.courier.told().changed)
    }
}

/// Appends pages to runs.
fn add(runs: &mut Vec<(u64, u64)>, address: u64, pages: usize) {
    match runs.last_mut() {
        Some((start, count)) if *start + *count * PAGE as u64 == address => *count += pages as u64,
        _ => runs.push((address, pages as u64)),
    }
}

impl Changed {
    fn add(&mut self, region: Region, address: u64, page: &[u8]) {
        self.region = Some(region);
        match self.runs.last_mut() {
            Some((start, count)) if *start + u64::from(*count) * PAGE as u64 == address => *count += 1,
            _ => self.runs.push((address, 1)),
        }
        self.pages.extend_from_slice(page);
    }
}

/// Sends the parts that arrive, until the channel of parts is closed.
async fn send(
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
    async fn pages(&mut self, Changed { region, runs, pages }: Changed) -> io::Result<()> {
        let Some(region) = region else { return Ok(()) };
        frame::write(&mut self.stream, &frame::encode(&ImageMessage::Pages { region, runs })?).await?;
        self.digest.update(&pages);
        frame::write(&mut self.stream, &pages).await
    }

    async fn runs(
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

    async fn rest(
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

fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, "the connection to the destination is closed")
}

/// A task that ends with its owner. When both tasks of a courier end, its connection closes.
struct Task<T>(JoinHandle<io::Result<T>>);

impl<T> Task<T> {
    async fn end(&mut self) -> io::Result<T> {
        (&mut self.0).await.map_err(io::Error::other)?
    }
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}
