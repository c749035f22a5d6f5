//! Byte channels between the engines of a move: see [`engine_api::Channels`].
//!
//! ```text
//! source's engine ══ socket pair ══ relay ══ TLS, Opening::Channel ══ relay ══ socket pair ══ destination's engine
//! ```
//!
//! Each channel is a connection of its own between the nodes, which names its move. The destination accepts it only while it expects the
//! images of that move, and only from the source that the coordinator has named.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use engine_api::Channels;
use engine_api::channels::{MAX_CHANNELS, MAX_NAME};
use fabric::Vid;
use moves::{HostName, MoveId};
use rpc::Stream;
use rpc::wire::Opening;
use rustix::net::sockopt::set_socket_send_buffer_size_force;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout};

use super::meter::Meter;
use super::pacing::Pacing;
use crate::cancel::Cancel;
use crate::dialer::Dialer;
use crate::lock::lock;

/// How long the other host may take to accept a channel.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// The number of bytes that a relay reads at once.
const PART: usize = 256 * 1024;

/// The bytes between the engine and its relay, so that neither waits for each part that the other passes on.
const BUFFER: usize = 256 * 1024;

/// The channels of one side of a move.
pub struct ChannelSet {
    state: Mutex<State>,
    changed: Condvar,
    /// Counts the bytes that leave this host.
    meter: Arc<Meter>,
    pacing: tokio::sync::Mutex<Pacing>,
    is_hurried: AtomicBool,
}

#[derive(Default)]
struct State {
    is_closed: bool,
    /// The names of all channels that are or were open.
    names: HashSet<String>,
    /// Ends that the engine has not taken yet.
    arrived: HashMap<String, OwnedFd>,
    relays: Vec<AbortHandle>,
}

impl ChannelSet {
    /// Makes a set without open channels. Until [`ChannelSet::hurry`], at most `limit` bytes a second leave this host.
    pub fn new(meter: Arc<Meter>, limit: Option<u64>) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::default(),
            changed: Condvar::new(),
            meter,
            pacing: tokio::sync::Mutex::new(Pacing::new(limit)),
            is_hurried: AtomicBool::new(false),
        })
    }

    /// Ends all channels. No more can be opened.
    pub fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        state.arrived.clear();
        state.relays.drain(..).for_each(|relay| relay.abort());
        self.changed.notify_all();
    }

    /// Lifts the rate limit.
    pub fn hurry(&self) {
        self.is_hurried.store(true, Ordering::Relaxed);
    }

    /// Adds a channel that the source has opened.
    ///
    /// # Errors
    /// If there are too many channels, the name is used already, or the move is over.
    pub fn arrive(self: &Arc<Self>, name: &str, stream: Stream) -> io::Result<()> {
        self.reserve(name)?;
        let end = self.relay(stream)?;
        self.lock().arrived.insert(name.to_owned(), end);
        self.changed.notify_all();
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn reserve(&self, name: &str) -> io::Result<()> {
        let mut state = self.lock();
        if state.is_closed {
            return Err(closed());
        }
        if name.is_empty() || name.len() > MAX_NAME || state.names.len() == MAX_CHANNELS {
            let what =
                format!("a move has at most {MAX_CHANNELS} channels, with names of 1 to {MAX_NAME} bytes");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        if !state.names.insert(name.to_owned()) {
            return Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                format!("channel `{name}` is open already"),
            ));
        }
        Ok(())
    }

    /// Relays between `stream` and the engine's end, which it returns. It must be called within the node's runtime.
    fn relay(self: &Arc<Self>, stream: Stream) -> io::Result<OwnedFd> {
        let (near, far) = StdUnixStream::pair()?;
        for end in [&near, &far] {
            // Without the right to do so, the buffers stay small.
            let _refused = set_socket_send_buffer_size_force(end, BUFFER);
        }
        far.set_nonblocking(true)?;
        let relaying = tokio::spawn(relay(self.clone(), UnixStream::from_std(far)?, stream));
        let mut state = self.lock();
        state.relays.push(relaying.abort_handle());
        if state.is_closed {
            relaying.abort();
            return Err(closed());
        }
        Ok(near.into())
    }

    /// Waits until so many bytes may leave this host, and counts them.
    async fn let_out(&self, bytes: u64) {
        if !self.is_hurried.load(Ordering::Relaxed) {
            let mut pacing = self.pacing.lock().await;
            pacing.ready().await;
            pacing.sent(bytes);
        }
        self.meter.give(bytes);
    }
}

/// The destination's channels.
impl Channels for ChannelSet {
    fn connect(&self, name: &str) -> io::Result<OwnedFd> {
        let mut state = self.lock();
        loop {
            if state.is_closed {
                return Err(closed());
            }
            if let Some(end) = state.arrived.remove(name) {
                return Ok(end);
            }
            state = self.changed.wait(state).expect("no thread panics while it holds the lock");
        }
    }
}

/// The source's channels.
pub struct OutgoingChannels {
    /// Its open channels.
    pub set: Arc<ChannelSet>,
    /// Connects to the destination.
    pub dialer: Dialer,
    /// The destination.
    pub host: HostName,
    /// The move.
    pub id: MoveId,
    /// The instance.
    pub vid: Vid,
    /// Cancels the operation that opens channels.
    pub cancel: Arc<Cancel>,
    /// The node's runtime.
    pub runtime: Handle,
}

impl Channels for OutgoingChannels {
    fn connect(&self, name: &str) -> io::Result<OwnedFd> {
        self.set.reserve(name)?;
        let opening = Opening::Channel { id: self.id, vid: self.vid, name: name.to_owned() };
        let connecting = self.dialer.open(&self.host, &opening);
        let connected = self.cancel.unless(timeout(CONNECT_LIMIT, connecting));
        let stream: io::Result<Stream> =
            self.runtime.block_on(connected).ok_or(io::ErrorKind::Interrupted)?.map_err(io::Error::from)?;
        let _within = self.runtime.enter();
        self.set.relay(stream?)
    }
}

/// Relays both ways until both have ended, or one has failed.
async fn relay(set: Arc<ChannelSet>, engine: UnixStream, host: Stream) {
    let (mut from_engine, mut to_engine) = engine.into_split();
    let (mut from_host, mut to_host) = tokio::io::split(host);
    let out = async {
        let mut part = vec![0; PART];
        loop {
            let read = from_engine.read(&mut part).await?;
            if read == 0 {
                return to_host.shutdown().await;
            }
            set.let_out(read as u64).await;
            let began = Instant::now();
            pass_on(&part[..read], &mut to_host).await?;
            set.meter.send(read as u64, began.elapsed());
        }
    };
    let ended = tokio::try_join!(out, copy(&mut from_host, &mut to_engine));
    if let Err(error) = ended {
        tracing::debug!("a channel of a move ends: {error}");
    }
}

async fn copy(from: &mut (impl AsyncRead + Unpin), to: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
    let mut part = vec![0; PART];
    loop {
        match from.read(&mut part).await? {
            0 => return to.shutdown().await,
            read => pass_on(&part[..read], to).await?,
        }
    }
}

async fn pass_on(part: &[u8], to: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
    to.write_all(part).await?;
    to.flush().await
}

fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, "the move is over")
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn names_are_used_once_and_channels_are_few() {
        let set = ChannelSet::new(Arc::default(), None);
        for number in 0..MAX_CHANNELS {
            set.reserve(&number.to_string()).unwrap();
        }
        assert_eq!(set.reserve("0").unwrap_err().kind(), io::ErrorKind::InvalidInput);
        let set = ChannelSet::new(Arc::default(), None);
        set.reserve("a").unwrap();
        assert_eq!(set.reserve("a").unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        for bad in ["", &"a".repeat(MAX_NAME + 1)] {
            assert!(set.reserve(bad).is_err());
        }
    }

    #[test]
    fn a_destination_waits_for_a_channel_until_the_move_is_over() {
        let set = ChannelSet::new(Arc::default(), None);
        let waiting = set.clone();
        let waiter = thread::spawn(move || waiting.connect("a"));
        set.close();
        assert_eq!(waiter.join().unwrap().unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        assert!(set.reserve("b").is_err());
    }
}
