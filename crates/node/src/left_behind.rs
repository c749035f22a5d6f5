//! The source of a post-copy move: gives the memory of an instance that stands still here to the host where it runs.
//!
//! Nothing is remembered of that beside what a source is anyway. A node that is killed and comes again goes on as soon as it is asked.

use std::io;
use std::sync::Arc;

use engines::pager::wire::MAX_PAGES;
use engines::{LeftBehind, PAGE, State};
use fabric::Vid;
use moves::entry::Role;
use moves::{HostName, MoveId};
use rpc::wire::{MemoryAnswer, MemoryQuestion};
use rpc::{Stream, frame};
use tokio::task::spawn_blocking;

use crate::node::Node;

/// The longest question, in bytes.
const MAX_QUESTION: usize = 64;

impl Node {
    /// Answers what `host` asks about the memory of an instance that has left for it.
    ///
    /// # Errors
    /// If the connection fails, or what is asked for is not there.
    pub async fn give_memory(
        self: Arc<Self>,
        vid: Vid,
        id: MoveId,
        host: HostName,
        mut stream: Stream,
    ) -> io::Result<()> {
        let Some(memory) = self.memory_for(vid, id, &host).await? else {
            return frame::send(&mut stream, &MemoryAnswer::Lost).await;
        };
        let memory = Arc::new(memory);
        loop {
            let MemoryQuestion { pid, address, pages } =
                frame::receive_within(&mut stream, MAX_QUESTION).await?;
            if pages == 0 || pages > MAX_PAGES {
                return Err(io::ErrorKind::InvalidData.into());
            }
            // It may have been told that it runs on, or to remove all.
            if !self.is_left_for(vid, id, &host) {
                return Ok(());
            }
            let reading = memory.clone();
            let read = spawn_blocking(move || {
                let mut bytes = vec![0; pages as usize * PAGE];
                reading.read(pid, address, &mut bytes).map(|()| bytes)
            });
            match read.await.map_err(io::Error::other)? {
                Ok(bytes) => {
                    frame::write(&mut stream, &frame::encode(&MemoryAnswer::Pages { pid, address })?).await?;
                    frame::write(&mut stream, &bytes).await?;
                    tokio::io::AsyncWriteExt::flush(&mut stream).await?;
                }
                Err(_) if memory.is_lost() => {
                    return frame::send(&mut stream, &MemoryAnswer::Lost).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// The memory that `host` may ask for; `None` if it is lost.
    async fn memory_for(&self, vid: Vid, id: MoveId, host: &HostName) -> io::Result<Option<LeftBehind>> {
        if !self.is_left_for(vid, id, host) {
            // Whoever asks has not said yet that it lacks nothing: this host has forgotten all.
            return Ok(None);
        }
        let Some(live) = self.live(vid).filter(|live| live.state != State::Ended) else { return Ok(None) };
        match self.engine(move |engine| engine.left_behind(&live.name)).await {
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
