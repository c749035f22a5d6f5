//! The source of a post-copy move: serves the memory of the stopped instance to the host where it runs.
//!
//! It keeps no records beyond those of any source. After a restart the node serves again as soon as the destination asks.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use engine_api::{LeftMemory, MAX_PAGES, PAGE, State};
use fabric::Vid;
use moves::entry::Role;
use moves::{HostName, MoveId};
use rpc::wire::{MemoryAnswer, MemoryQuestion};
use rpc::{Stream, frame};
use tokio::io::{AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;

use crate::agent::Agent;
use crate::instances::LiveInstances;
use crate::moves::pacing::Pacing;
use crate::moves::sides::Sides;

/// The length limit of a request, in bytes.
const MAX_QUESTION: usize = 64;

/// The number of requests that may wait for their answers; the node does not read more.
const QUEUE: usize = 64;

/// Serves memory that instances have left on this host.
pub struct MemoryServer {
    live: Arc<LiveInstances>,
    sides: Sides,
    agent: Arc<Agent>,
    /// The rate limit of prefetched pages, in bytes a second.
    limit: Option<u64>,
}

impl MemoryServer {
    pub fn new(live: Arc<LiveInstances>, sides: Sides, agent: Arc<Agent>, limit: Option<u64>) -> Self {
        Self { live, sides, agent, limit }
    }

    /// Answers the requests of `host` for memory of an instance that has moved there.
    ///
    /// # Errors
    /// If the connection fails, or the requested memory does not exist.
    pub async fn serve(&self, vid: Vid, id: MoveId, host: HostName, mut stream: Stream) -> io::Result<()> {
        let Some(memory) = self.memory_for(vid, id, &host).await? else {
            return frame::send(&mut stream, &MemoryAnswer::Lost).await;
        };
        let (back, stream) = tokio::io::split(stream);
        let (requests, mut questions) = mpsc::channel(QUEUE);
        let answering = async {
            let mut sender = Sender { stream, memory };
            let mut queue = Queue { later: VecDeque::new(), pacing: Pacing::new(self.limit) };
            // Meanwhile, the instance may have resumed here, or may have been removed.
            while let Some(question) = queue.next(&mut questions).await
                && self.is_left_for(vid, id, &host)
                && sender.answer(question).await?
            {}
            Ok(())
        };
        tokio::select! {
            ended = read_requests(back, requests) => ended,
            ended = answering => ended,
        }
    }

    /// The memory that `host` may ask for; `None` if it is lost.
    async fn memory_for(
        &self,
        vid: Vid,
        id: MoveId,
        host: &HostName,
    ) -> io::Result<Option<Arc<dyn LeftMemory>>> {
        if !self.is_left_for(vid, id, host) {
            // The destination has not yet confirmed that its memory is complete, but this host has removed the instance.
            return Ok(None);
        }
        let Some(live) = self.live.get(vid).filter(|live| live.state != State::Ended) else {
            return Ok(None);
        };
        match self.sides.source(vid, &live, |source| source.left_memory()).await {
            Ok(memory) if memory.is_lost() => Ok(None),
            Ok(memory) => Ok(Some(memory)),
            Err(error) => Err(io::Error::other(error.to_string())),
        }
    }

    /// Whether this host is the source of the move to `host`.
    fn is_left_for(&self, vid: Vid, id: MoveId, host: &HostName) -> bool {
        let goes =
            |role| matches!(role, Role::Source { id: of, destination } if of == id && destination.is(host));
        self.agent.entry(vid).is_some_and(|entry| goes(entry.role))
    }
}

/// Forwards requests until the connection ends.
async fn read_requests(
    mut stream: ReadHalf<Stream>,
    requests: mpsc::Sender<MemoryQuestion>,
) -> io::Result<()> {
    loop {
        let question: MemoryQuestion = frame::receive_within(&mut stream, MAX_QUESTION).await?;
        if question.pages == 0 || question.pages > MAX_PAGES {
            return Err(io::ErrorKind::InvalidData.into());
        }
        if requests.send(question).await.is_err() {
            return Ok(());
        }
    }
}

/// The order and rate of answers.
struct Queue {
    /// Prefetch requests, for which no process waits yet.
    later: VecDeque<MemoryQuestion>,
    /// The rate at which they are answered.
    pacing: Pacing,
}

impl Queue {
    /// The next request to answer; `None` if no more will come.
    async fn next(&mut self, questions: &mut mpsc::Receiver<MemoryQuestion>) -> Option<MemoryQuestion> {
        loop {
            tokio::select! {
                biased;
                question = questions.recv(), if self.later.len() < QUEUE => match question? {
                    question if question.ahead => self.later.push_back(question),
                    question => return Some(question),
                },
                () = self.pacing.ready(), if !self.later.is_empty() => {
                    let question = self.later.pop_front()?;
                    self.pacing.sent(question.pages * PAGE as u64);
                    return Some(question);
                }
            }
        }
    }
}

/// Sends answers.
struct Sender {
    stream: WriteHalf<Stream>,
    memory: Arc<dyn LeftMemory>,
}

impl Sender {
    /// Answers a request; `false` if the memory is lost.
    async fn answer(&mut self, question: MemoryQuestion) -> io::Result<bool> {
        let MemoryQuestion { region, address, pages, .. } = question;
        let memory = self.memory.clone();
        let read = spawn_blocking(move || {
            let mut bytes = vec![0; pages as usize * PAGE];
            memory.read(region, address, &mut bytes).map(|()| bytes)
        });
        match read.await.map_err(io::Error::other)? {
            Ok(bytes) => {
                let answer = frame::encode(&MemoryAnswer::Pages { region, address })?;
                frame::write(&mut self.stream, &answer).await?;
                frame::write(&mut self.stream, &bytes).await?;
                self.stream.flush().await?;
                Ok(true)
            }
            Err(_) if self.memory.is_lost() => {
                frame::send(&mut self.stream, &MemoryAnswer::Lost).await?;
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use instance::Region;
    use tokio::time::Instant;

    use super::*;

    fn question(address: u64, ahead: bool) -> MemoryQuestion {
        MemoryQuestion { region: Region(1), address, pages: 1, ahead }
    }

    #[tokio::test(start_paused = true)]
    async fn urgent_requests_precede_prefetches_and_ignore_the_rate_limit() {
        let (requests, mut questions) = mpsc::channel(QUEUE);
        let mut queue = Queue { later: VecDeque::new(), pacing: Pacing::new(Some(PAGE as u64)) };
        let began = Instant::now();
        for (address, ahead) in [(0, true), (1, true), (2, false), (3, true), (4, false)] {
            requests.send(question(address, ahead)).await.unwrap();
        }
        let mut answered = Vec::new();
        for _ in 0..4 {
            let MemoryQuestion { address, .. } = queue.next(&mut questions).await.unwrap();
            answered.push((address, began.elapsed().as_secs()));
        }
        requests.send(question(5, false)).await.unwrap();
        for _ in 0..2 {
            let MemoryQuestion { address, .. } = queue.next(&mut questions).await.unwrap();
            answered.push((address, began.elapsed().as_secs()));
        }
        assert_eq!(answered, [(2, 0), (4, 0), (0, 0), (1, 1), (5, 1), (3, 2)]);
        drop(requests);
        assert_eq!(queue.next(&mut questions).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn the_queue_of_requests_is_limited() {
        let (requests, mut questions) = mpsc::channel(3 * QUEUE);
        let mut queue = Queue { later: VecDeque::new(), pacing: Pacing::new(Some(1)) };
        queue.pacing.sent(1);
        for address in 0..2 * QUEUE as u64 {
            requests.send(question(address, true)).await.unwrap();
        }
        let early = tokio::time::timeout(Duration::from_millis(1), queue.next(&mut questions)).await;
        assert!(early.is_err() && queue.later.len() == QUEUE && questions.len() == QUEUE);
    }
}
