//! A connection for messages in both directions.
//!
//! Each end sends an empty frame after [`KEEPALIVE`] without a message, and considers the connection
//! lost after [`SILENCE`] without a frame.

use std::io;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncWriteExt, BufReader, BufWriter, ReadHalf, WriteHalf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::frame;
use crate::tls::Stream;

/// The longest time without a frame from a live end.
pub const KEEPALIVE: Duration = Duration::from_secs(1);

/// Silence after which the connection counts as lost.
pub const SILENCE: Duration = Duration::from_secs(4);

/// The most messages in the queue.
const QUEUE: usize = 4096;

/// The most messages of [`Outbox::send_in_turn`] in the queue.
const MOST_IN_TURN: usize = 256;

/// The connection is lost, or the other end does not read its messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the connection is lost")]
pub struct Closed;

/// A message for several receivers, encoded once.
#[derive(Debug)]
pub struct Encoded<M> {
    frame: Arc<[u8]>,
    messages: PhantomData<fn(M)>,
}

impl<M: Serialize> Encoded<M> {
    /// Encodes `message`.
    ///
    /// # Errors
    /// If it exceeds the length of a frame.
    pub fn new(message: &M) -> Result<Self, Closed> {
        let frame = frame::encode(message).map_err(|_| Closed)?;
        Ok(Self { frame: frame.into(), messages: PhantomData })
    }
}

/// The sending half. Clones share the connection.
#[derive(Debug)]
pub struct Outbox<M> {
    queue: mpsc::Sender<Waiting>,
    turns: Arc<Semaphore>,
    messages: PhantomData<fn(M)>,
}

/// A queued message, with its permit if it was sent in turn.
type Waiting = (Arc<[u8]>, Option<OwnedSemaphorePermit>);

impl<M> Clone for Outbox<M> {
    fn clone(&self) -> Self {
        Self { queue: self.queue.clone(), turns: self.turns.clone(), messages: PhantomData }
    }
}

impl<M: Serialize> Outbox<M> {
    /// Queues `message` without waiting. Its delivery is not guaranteed.
    ///
    /// # Errors
    /// If the connection is lost, or the queue is full.
    pub fn send(&self, message: &M) -> Result<(), Closed> {
        self.send_encoded(&Encoded::new(message)?)
    }

    /// Likewise, with a message for several receivers.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub fn send_encoded(&self, message: &Encoded<M>) -> Result<(), Closed> {
        self.queue.try_send((message.frame.clone(), None)).map_err(|_| Closed)
    }

    /// Like [`Self::send`], but waits while many messages of this kind are queued, so that bulk messages do not displace
    /// others.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub async fn send_in_turn(&self, message: &M) -> Result<(), Closed> {
        let frame = Encoded::new(message)?.frame;
        let turn = self.turns.clone().acquire_owned().await.map_err(|_| Closed)?;
        self.queue.try_send((frame, Some(turn))).map_err(|_| Closed)
    }

    /// Whether the connection is lost.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.queue.is_closed()
    }
}

/// The receiving half. Dropping it closes the connection.
#[derive(Debug)]
pub struct Inbox<M> {
    stream: BufReader<ReadHalf<Stream>>,
    buffer: Vec<u8>,
    writer: AbortHandle,
    messages: PhantomData<fn() -> M>,
}

impl<M: DeserializeOwned> Inbox<M> {
    /// The next message; `None` if the other end has closed.
    ///
    /// # Errors
    /// `TimedOut` if the other end is silent; `InvalidData` if a message is malformed.
    pub async fn receive(&mut self) -> io::Result<Option<M>> {
        loop {
            let read = timeout(SILENCE, frame::read(&mut self.stream, &mut self.buffer)).await;
            if !read?? {
                return Ok(None);
            }
            if !self.buffer.is_empty() {
                return frame::decode(&self.buffer).map(Some);
            }
        }
    }
}

impl<M> Drop for Inbox<M> {
    fn drop(&mut self) {
        self.writer.abort();
    }
}

/// Makes a channel of `stream`.
#[must_use]
pub fn open<O, I>(stream: Stream) -> (Outbox<O>, Inbox<I>) {
    let (reader, writer) = tokio::io::split(stream);
    let (queue, waiting) = mpsc::channel(QUEUE);
    let writing = tokio::spawn(write(waiting, writer));
    let outbox = Outbox { queue, turns: Arc::new(Semaphore::new(MOST_IN_TURN)), messages: PhantomData };
    let inbox = Inbox {
        stream: BufReader::with_capacity(64 * 1024, reader),
        buffer: Vec::new(),
        writer: writing.abort_handle(),
        messages: PhantomData,
    };
    (outbox, inbox)
}

/// What was sent by an outbox that has no connection.
#[derive(Debug)]
pub struct Sent<M> {
    waiting: mpsc::Receiver<Waiting>,
    messages: PhantomData<fn() -> M>,
}

/// An outbox without a connection, for what runs without sockets.
#[must_use]
pub fn in_memory<M>() -> (Outbox<M>, Sent<M>) {
    let (queue, waiting) = mpsc::channel(QUEUE);
    let outbox = Outbox { queue, turns: Arc::new(Semaphore::new(MOST_IN_TURN)), messages: PhantomData };
    (outbox, Sent { waiting, messages: PhantomData })
}

impl<M> Sent<M> {
    /// Drops what was sent so far, unread.
    pub fn clear(&mut self) {
        while self.waiting.try_recv().is_ok() {}
    }
}

impl<M: DeserializeOwned> Iterator for Sent<M> {
    type Item = M;

    /// The next message, if one was sent.
    fn next(&mut self) -> Option<M> {
        let (message, _turn) = self.waiting.try_recv().ok()?;
        frame::decode(&message).ok()
    }
}

async fn write(mut waiting: mpsc::Receiver<Waiting>, stream: WriteHalf<Stream>) -> io::Result<()> {
    let mut stream = BufWriter::with_capacity(64 * 1024, stream);
    loop {
        match timeout(KEEPALIVE, waiting.recv()).await {
            Ok(Some((message, _turn))) => frame::write(&mut stream, &message).await?,
            Ok(None) => return stream.shutdown().await,
            Err(_elapsed) => frame::write(&mut stream, &[]).await?,
        }
        while let Ok((message, _turn)) = waiting.try_recv() {
            frame::write(&mut stream, &message).await?;
        }
        stream.flush().await?;
    }
}
