//! Datagrams over a connection, for ways on which they do not arrive by themselves.
//!
//! ```text
//!  0            4        6
//!  │ length (4) │ each (2) │ datagrams, one behind the other, all of `each` bytes but for a shorter last one
//! ```
//!
//! Little-endian; `length` counts what stands behind it. It is 0 where an end has nothing to say, which it says each
//! [`KEEPALIVE`]; a connection on which nothing comes for [`SILENCE`] is lost, however long a frame takes.
//!
//! A stream keeps all that it is given, and so long that what it carries thinks it lost. So little waits here and in the kernel,
//! and what finds no room is lost at once, as in a router: the streams inside adapt to that. It also is all that an end can
//! be made to keep by another one that does not read.

use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::channel::{KEEPALIVE, SILENCE};
use crate::frame;
use crate::tls::Stream;

/// The most bytes of datagrams that travel together.
pub const LONGEST: usize = 65_535;

/// The most bytes that wait for the connection.
pub const ROOM: usize = 256 * 1024;

/// The most bytes that the kernel keeps which it has not sent yet.
const UNSENT: u32 = 128 * 1024;

/// Bytes of a frame's length, and of what each datagram has.
const LENGTH: usize = 4;
const EACH: usize = 2;

/// What is read at once: a frame at least.
const BUFFER: usize = 128 * 1024;

/// What waits for the connection.
#[derive(Debug, Default)]
struct Queue {
    waiting: Mutex<Waiting>,
    /// Told when something waits.
    filled: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    /// Whole frames.
    frames: Vec<u8>,
    is_closed: bool,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where datagrams for the other end go. Clones share the connection.
#[derive(Clone, Debug)]
pub struct Outbox(Arc<Queue>);

/// Where they leave. When this is dropped, or what it has become, the connection is lost.
#[derive(Debug)]
pub struct Outlet(Arc<Queue>);

/// A queue for a connection on which something else is said first.
#[must_use]
pub fn queue() -> (Outbox, Outlet) {
    let queue = Arc::<Queue>::default();
    (Outbox(queue.clone()), Outlet(queue))
}

impl Outbox {
    /// Sends `datagrams`, all of `each` bytes but for a shorter last one, without waiting. That they were sent does not
    /// mean that they arrive.
    ///
    /// # Errors
    /// `WouldBlock` if too much waits already; `NotConnected` if the connection is lost; `InvalidInput` past [`LONGEST`], or if
    /// there are none.
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

    /// Whether the connection stands, or is about to.
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
    /// Lets what waits leave over `stream`.
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

/// Where datagrams of the other end come from. Dropping it closes the connection.
#[derive(Debug)]
pub struct Inbox {
    reader: ReadHalf<Stream>,
    trains: Trains,
    writer: AbortHandle,
    _outlet: Outlet,
}

/// What was read of a connection and is not taken yet.
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
    /// Nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self { buffer: vec![0; BUFFER].into(), filled: 0..0 }
    }

    /// Where what is read next belongs; never empty if [`Self::next`] has said `None`.
    pub fn room(&mut self) -> &mut [u8] {
        if self.filled.is_empty() {
            self.filled = 0..0;
        } else if self.buffer.len() - self.filled.start < LENGTH + EACH + LONGEST {
            self.buffer.copy_within(self.filled.clone(), 0);
            self.filled = 0..self.filled.len();
        }
        &mut self.buffer[self.filled.end..]
    }

    /// So many bytes were read into [`Self::room`], at most all of it.
    pub fn filled(&mut self, bytes: usize) {
        self.filled.end += bytes;
    }

    /// The next datagrams; `None` if more has to be read.
    ///
    /// # Errors
    /// `InvalidData` if what comes next is no frame.
    #[expect(clippy::should_implement_trait, reason = "what is returned is borrowed")]
    pub fn next(&mut self) -> io::Result<Option<Train<'_>>> {
        let frame = self.next_frame()?;
        Ok(frame.map(|frame| self.train(frame)))
    }

    /// Whether a part of a frame is there.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        !self.filled.is_empty()
    }

    /// Takes the next frame that says something, and returns where it is, without its length.
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

/// Datagrams that have come together.
#[derive(Debug, PartialEq, Eq)]
pub struct Train<'a> {
    /// They stand one behind the other.
    pub datagrams: &'a mut [u8],
    /// Bytes of each but for the last one, which may be shorter.
    pub each: usize,
}

impl Inbox {
    /// The next datagrams; `None` if the other end has closed.
    ///
    /// # Errors
    /// `TimedOut` if it is silent; `InvalidData` if it sends what is no frame.
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

/// What bytes begin with.
enum First {
    /// A frame that says nothing.
    Nothing,
    /// A frame with so many bytes behind its length.
    Frame(usize),
    /// A part of a frame.
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

/// Writes what waits, all of it at once.
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
        // What was needed once may not be needed for long.
        frames = if is_filled { frames } else { Vec::new() };
        frames.clear();
    }
}
