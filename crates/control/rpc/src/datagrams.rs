//! Carries datagrams over a TLS connection where UDP is blocked.
//!
//! ```text
//!  0            4        6
//!  │ length (4) │ each (2) │ consecutive datagrams of `each` bytes; the last may be shorter
//! ```
//!
//! Little-endian; `length` counts the bytes after it. A frame of length 0 is a keep-alive, sent each
//! [`KEEPALIVE`]; a connection without incoming bytes for [`SILENCE`] is lost.
//!
//! A reliable stream delays datagrams that should be dropped, so the streams inside would time out. Therefore the queues here and in the kernel are short,
//! and excess datagrams are dropped at once, as in a router: the streams inside adapt their rate. This also bounds the memory that a
//! peer which does not read can make this end use.

use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::channel::{KEEPALIVE, SILENCE};
use crate::frame;
use crate::tls::Stream;

/// The most bytes of datagrams in one frame.
pub const LONGEST: usize = 65_535;

/// The most bytes queued for the connection.
pub const ROOM: usize = 256 * 1024;

/// The most unsent bytes in the kernel's send buffer.
const UNSENT: u32 = 128 * 1024;

/// Bytes of the length field, and of the size field.
const LENGTH: usize = 4;
const EACH: usize = 2;

/// The read buffer: larger than a frame.
const BUFFER: usize = 128 * 1024;

/// The queue of the connection.
#[derive(Debug, Default)]
struct Queue {
    waiting: Mutex<Waiting>,
    /// Notified when the queue becomes nonempty.
    filled: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    /// Complete frames.
    frames: Vec<u8>,
    is_closed: bool,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().expect("no thread panics while it holds the lock")
    }
}

/// The sending half. Clones share the connection.
#[derive(Clone, Debug)]
pub struct Outbox(Arc<Queue>);

/// The reading end of the queue. Dropping it, or the [`Inbox`] made of it, closes the connection.
#[derive(Debug)]
pub struct Outlet(Arc<Queue>);

/// A queue for a connection that is still in its handshake.
#[must_use]
pub fn queue() -> (Outbox, Outlet) {
    let queue = Arc::<Queue>::default();
    (Outbox(queue.clone()), Outlet(queue))
}

impl Outbox {
    /// Queues `datagrams` of `each` bytes, of which the last may be shorter, without waiting. Delivery is not
    /// guaranteed.
    ///
    /// # Errors
    /// `WouldBlock` if the queue is full; `NotConnected` if the connection is lost; `InvalidInput` past [`LONGEST`], or if
    /// there are no datagrams.
    pub fn send(&self, datagrams: &[u8], each: usize) -> io::Result<()> {
        let is_possible = (1..=LONGEST).contains(&datagrams.len()) && each > 0;
        let each = u16::try_from(each).ok().filter(|_| is_possible).ok_or(io::ErrorKind::InvalidInput)?;
        let mut waiting = self.0.lock();
        if waiting.is_closed {
            return Err(io::ErrorKind::NotConnected.into());
        }
        if waiting.frames.len() + LENGTH + EACH + datagrams.len() > ROOM {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let length = (EACH + datagrams.len()) as u32;
        waiting.frames.extend_from_slice(&length.to_le_bytes());
        waiting.frames.extend_from_slice(&each.to_le_bytes());
        waiting.frames.extend_from_slice(datagrams);
        drop(waiting);
        self.0.filled.notify_one();
        Ok(())
    }

    /// Whether the connection is up, or in its handshake.
    #[must_use]
    pub fn stands(&self) -> bool {
        !self.0.lock().is_closed
    }
}

impl Drop for Outlet {
    fn drop(&mut self) {
        let mut waiting = self.0.lock();
        (waiting.is_closed, waiting.frames) = (true, Vec::new());
    }
}

impl Outlet {
    /// Sends the queued frames over `stream`.
    ///
    /// # Errors
    /// If the stream's buffers cannot be limited.
    pub fn open(self, stream: Stream) -> io::Result<Inbox> {
        stream.limit_unsent(UNSENT)?;
        let (reader, writer) = tokio::io::split(stream);
        let writing = tokio::spawn(write(self.0.clone(), writer));
        Ok(Inbox { reader, trains: Trains::new(), writer: writing.abort_handle(), _outlet: self })
    }
}

/// The receiving half. Dropping it closes the connection.
#[derive(Debug)]
pub struct Inbox {
    reader: ReadHalf<Stream>,
    trains: Trains,
    writer: AbortHandle,
    _outlet: Outlet,
}

/// Received bytes that were not consumed yet.
#[derive(Debug)]
pub struct Trains {
    buffer: Box<[u8]>,
    filled: Range<usize>,
}

impl Default for Trains {
    fn default() -> Self {
        Self::new()
    }
}

impl Trains {
    /// An empty buffer.
    #[must_use]
    pub fn new() -> Self {
        Self { buffer: vec![0; BUFFER].into(), filled: 0..0 }
    }

    /// The place for the next read; never empty after [`Self::next`] has returned `None`.
    pub fn room(&mut self) -> &mut [u8] {
        if self.filled.is_empty() {
            self.filled = 0..0;
        } else if self.buffer.len() - self.filled.start < LENGTH + EACH + LONGEST {
            self.buffer.copy_within(self.filled.clone(), 0);
            self.filled = 0..self.filled.len();
        }
        &mut self.buffer[self.filled.end..]
    }

    /// Records that `bytes` bytes were read into [`Self::room`].
    pub fn filled(&mut self, bytes: usize) {
        self.filled.end += bytes;
    }

    /// The next datagrams; `None` if more bytes are needed.
    ///
    /// # Errors
    /// `InvalidData` if the next bytes are not a frame.
    #[expect(clippy::should_implement_trait, reason = "what is returned is borrowed")]
    pub fn next(&mut self) -> io::Result<Option<Train<'_>>> {
        let frame = self.next_frame()?;
        Ok(frame.map(|frame| self.train(frame)))
    }

    /// Whether the buffer ends with a partial frame.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        !self.filled.is_empty()
    }

    /// Consumes the next frame that is not a keep-alive, and returns its range, without its length field.
    fn next_frame(&mut self) -> io::Result<Option<Range<usize>>> {
        loop {
            match first(&self.buffer[self.filled.clone()])? {
                First::Nothing => self.filled.start += LENGTH,
                First::Frame(length) => {
                    let begin = self.filled.start + LENGTH;
                    self.filled.start = begin + length;
                    return Ok(Some(begin..begin + length));
                }
                First::Cut => return Ok(None),
            }
        }
    }

    fn train(&mut self, frame: Range<usize>) -> Train<'_> {
        let (each, datagrams) = self.buffer[frame].split_at_mut(EACH);
        Train { datagrams, each: usize::from(u16::from_le_bytes([each[0], each[1]])) }
    }
}

/// The datagrams of one frame.
#[derive(Debug, PartialEq, Eq)]
pub struct Train<'a> {
    /// Consecutive datagrams.
    pub datagrams: &'a mut [u8],
    /// The size of each except the last, which may be shorter.
    pub each: usize,
}

impl Inbox {
    /// The next datagrams; `None` if the other end has closed.
    ///
    /// # Errors
    /// `TimedOut` if the other end is silent; `InvalidData` if it sends a malformed frame.
    pub async fn receive(&mut self) -> io::Result<Option<Train<'_>>> {
        loop {
            if let Some(frame) = self.trains.next_frame()? {
                return Ok(Some(self.trains.train(frame)));
            }
            match timeout(SILENCE, self.reader.read(self.trains.room())).await?? {
                0 if self.trains.is_cut() => return Err(frame::cut()),
                0 => return Ok(None),
                read => self.trains.filled(read),
            }
        }
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        self.writer.abort();
    }
}

/// The beginning of the buffer.
enum First {
    /// A keep-alive.
    Nothing,
    /// A frame with this many bytes after its length field.
    Frame(usize),
    /// A partial frame.
    Cut,
}

fn first(bytes: &[u8]) -> io::Result<First> {
    let Some((length, rest)) = bytes.split_first_chunk::<LENGTH>() else { return Ok(First::Cut) };
    let length = u32::from_le_bytes(*length) as usize;
    match length {
        0 => Ok(First::Nothing),
        1..=EACH => Err(io::ErrorKind::InvalidData.into()),
        _ if length > EACH + LONGEST => Err(io::ErrorKind::InvalidData.into()),
        _ if rest.len() < length => Ok(First::Cut),
        _ if rest[..EACH] == [0; EACH] => Err(io::ErrorKind::InvalidData.into()),
        _ => Ok(First::Frame(length)),
    }
}

/// Writes all queued frames at once.
async fn write(queue: Arc<Queue>, mut stream: WriteHalf<Stream>) -> io::Result<()> {
    let mut frames = Vec::new();
    loop {
        let is_filled = timeout(KEEPALIVE, queue.filled.notified()).await.is_ok();
        std::mem::swap(&mut queue.lock().frames, &mut frames);
        if !is_filled && frames.is_empty() {
            stream.write_all(&[0; LENGTH]).await?;
        }
        stream.write_all(&frames).await?;
        stream.flush().await?;
        // Free the memory, which may not be needed again for long.
        frames = if is_filled { frames } else { Vec::new() };
        frames.clear();
    }
}
