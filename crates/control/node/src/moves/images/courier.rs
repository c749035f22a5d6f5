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
use rpc::wire::{ImageMessage, Received};
use rpc::{Stream, frame};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};

use super::known::Known;
use super::parts::{PART, in_time};
use super::sending::{Changed, Part, Sent, Task, send};
use crate::cancel::Cancel;
use crate::lock::lock;
use crate::moves::meter::Meter;

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
        let answer = Task::spawn(async move {
            let answer = frame::receive(&mut back).await;
            answered.store(true, Ordering::Release);
            answer
        });
        let answer = tokio::sync::Mutex::new(Some(answer));
        let (parts, queue) = mpsc::channel(QUEUE);
        let (sent, meter) = (Sent::new(stream), Arc::new(Meter::default()));
        let sending = Task::spawn(send(sent, queue, limit, meter.clone()));
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
            Ok(sent.into_digest())
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

fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, "the connection to the destination is closed")
}
