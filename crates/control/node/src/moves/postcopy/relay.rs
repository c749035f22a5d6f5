//! Relays requests for missing memory from the engine to the source, and pages back.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use engine_api::{Fetched, MAX_PAGES, PAGE, Postcopy, PostcopyEvent, Wanted};
use instance::Region;
use moves::HostName;
use rpc::wire::{MemoryAnswer, MemoryQuestion, Opening};
use rpc::{Stream, frame};
use tokio::io::{ReadHalf, WriteHalf};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{sleep, timeout};

use crate::dialer::Dialer;

/// How long the source may take to answer before the relay opens another connection.
const STALL: Duration = Duration::from_secs(4);

/// The pause before the node connects to an unreachable source again.
const AGAIN: Duration = Duration::from_millis(200);

/// The number of the engine's events that may wait to be relayed.
const QUEUE: usize = 64;

/// The progress of fetching.
#[derive(Clone, Debug)]
pub enum FetchState {
    /// In progress; with the reason if it is stalled.
    Fetching(Fetched, Option<String>),
    /// Nothing is missing.
    Whole(Fetched),
    /// The source has lost the missing memory.
    Lost,
    /// The pager of the instance has ended, and the instance with it.
    Unpaged,
}

/// Relays requests and pages between the engine and the source.
pub struct Relay {
    dialer: Dialer,
    source: HostName,
    opening: Opening,
    postcopy: Arc<dyn Postcopy>,
    state: watch::Sender<FetchState>,
}

/// The reason why a connection has ended.
enum End {
    /// The source has lost it.
    Lost,
    /// It broke.
    Broken(io::Error),
}

impl Relay {
    /// A relay to the node of `source`, which is told `opening`. It reports to `state`.
    pub fn new(
        dialer: Dialer,
        source: HostName,
        opening: Opening,
        postcopy: Arc<dyn Postcopy>,
        state: watch::Sender<FetchState>,
    ) -> Self {
        Self { dialer, source, opening, postcopy, state }
    }

    /// Relays until nothing is missing, or the source has lost it.
    pub async fn run(self) {
        let mut events = listen(self.postcopy.clone());
        loop {
            let end = match self.connect().await {
                Ok(stream) => match self.relay(stream, &mut events).await {
                    Some(end) => end,
                    // The engine has reported the end, or the instance has ended.
                    None => return,
                },
                Err(error) => End::Broken(error),
            };
            match end {
                End::Lost => return drop(self.state.send_replace(FetchState::Lost)),
                End::Broken(error) => self.trouble(&error),
            }
            sleep(AGAIN).await;
        }
    }

    async fn connect(&self) -> io::Result<Stream> {
        timeout(STALL, self.dialer.open(&self.source, &self.opening)).await?
    }

    fn trouble(&self, error: &io::Error) {
        let Self { source, .. } = self;
        let what = format!("missing memory does not arrive from host {source} ({error})");
        let reason = rpc::wire::reason(&what, "check that its node runs and can be reached");
        self.state.send_modify(|state| {
            if let FetchState::Fetching(_, trouble) = state {
                *trouble = Some(reason);
            }
        });
    }

    /// Relays messages of the engine and the source until the connection ends; `None` if fetching is over.
    async fn relay(&self, stream: Stream, events: &mut mpsc::Receiver<PostcopyEvent>) -> Option<End> {
        let (back, mut stream) = tokio::io::split(stream);
        let asked = Arc::new(AtomicUsize::new(0));
        let reading = tokio::spawn(read(back, self.postcopy.clone(), asked.clone()));
        let mut reading = Aborted(reading);
        let postcopy = self.postcopy.clone();
        let begun = spawn_blocking(move || postcopy.begin()).await;
        if let Err(error) = begun.unwrap_or_else(|error| Err(io::Error::other(error))) {
            return Some(End::Broken(error));
        }
        loop {
            tokio::select! {
                biased;
                ended = &mut reading.0 => {
                    return Some(ended.unwrap_or_else(|error| End::Broken(io::Error::other(error))));
                }
                event = events.recv() => {
                    match event {
                        None => {
                            self.state.send_replace(FetchState::Unpaged);
                            return None;
                        }
                        Some(PostcopyEvent::Wanted(Wanted { region, address, pages, ahead })) => {
                            asked.fetch_add(1, Ordering::Relaxed);
                            let asking = ask(&mut stream, MemoryQuestion { region, address, pages, ahead });
                            if let Err(error) = timeout(STALL, asking).await.unwrap_or_else(|late| Err(late.into())) {
                                return Some(End::Broken(error));
                            }
                        }
                        Some(PostcopyEvent::Progress(fetched)) => drop(self.state.send_replace(FetchState::Fetching(fetched, None))),
                        Some(PostcopyEvent::Whole(fetched)) => {
                            self.state.send_replace(FetchState::Whole(fetched));
                            return None;
                        }
                    }
                }
            }
        }
    }
}

/// A task that is aborted when its handle is dropped.
struct Aborted<T>(JoinHandle<T>);

impl<T> Drop for Aborted<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn ask(stream: &mut WriteHalf<Stream>, question: MemoryQuestion) -> io::Result<()> {
    frame::send(stream, &question).await
}

/// Passes answers on to the engine until the connection ends.
async fn read(mut stream: ReadHalf<Stream>, postcopy: Arc<dyn Postcopy>, asked: Arc<AtomicUsize>) -> End {
    loop {
        match timeout(STALL, frame::receive(&mut stream)).await {
            // No answer is due.
            Err(_) if asked.load(Ordering::Relaxed) == 0 => {}
            Err(late) => return End::Broken(late.into()),
            Ok(Ok(MemoryAnswer::Lost)) => return End::Lost,
            Ok(Ok(MemoryAnswer::Pages { region, address })) => {
                let passed = pass_on(&mut stream, postcopy.clone(), (region, address)).await;
                asked.fetch_sub(1, Ordering::Relaxed);
                if let Err(error) = passed {
                    return End::Broken(error);
                }
            }
            Ok(Err(error)) => return End::Broken(error),
        }
    }
}

async fn pass_on(
    stream: &mut ReadHalf<Stream>,
    postcopy: Arc<dyn Postcopy>,
    (region, address): (Region, u64),
) -> io::Result<()> {
    let mut data = Vec::new();
    let came = timeout(STALL, frame::read(stream, &mut data)).await??;
    let pages = (data.len() / PAGE) as u64;
    let is_right = came && data.len().is_multiple_of(PAGE) && (1..=MAX_PAGES).contains(&pages);
    if !is_right || !address.is_multiple_of(PAGE as u64) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let supplying = spawn_blocking(move || postcopy.supply(region, address, &data));
    supplying.await.map_err(io::Error::other)?
}

/// The events of the engine, until the instance has ended. The thread ends with it.
fn listen(postcopy: Arc<dyn Postcopy>) -> mpsc::Receiver<PostcopyEvent> {
    let (heard, events) = mpsc::channel(QUEUE);
    thread::spawn(move || {
        while let Ok(Some(event)) = postcopy.next()
            && heard.blocking_send(event).is_ok()
        {}
    });
    events
}
