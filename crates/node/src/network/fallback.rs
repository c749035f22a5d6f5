//! Datagrams over the connections on which keys are agreed, where UDP is blocked.
//!
//! The node's own threads are there for moves, and may have precedence over programs. What carries programs' traffic has a thread of
//! its own that has none.

use std::io;

use overlay_io::fallback::{Fallback, Inlet};
use overlay_io::plane::be_like_programs;
use rpc::datagrams::{Inbox, Outbox};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;

/// The thread that carries datagrams over connections.
pub struct Traffic(Option<Runtime>);

impl Traffic {
    /// Nothing is carried yet.
    ///
    /// # Errors
    /// If there can be no more threads.
    pub fn new() -> io::Result<Self> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("th-overlay-tls")
            .on_thread_start(be_like_programs)
            .enable_time()
            .build()?;
        Ok(Self(Some(runtime)))
    }

    /// Does `work` there, until this is dropped.
    pub async fn carry<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        let mut carrying = JoinSet::new();
        carrying.spawn_on(work, self.0.as_ref()?.handle());
        carrying.join_next().await?.ok()
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// A connection as the overlay sees it.
pub struct OverTls(pub Outbox);

impl Fallback for OverTls {
    fn send(&self, datagrams: &[u8], length: usize) -> io::Result<()> {
        self.0.send(datagrams, length)
    }

    fn stands(&self) -> bool {
        self.0.stands()
    }
}

/// Takes in what comes, until the connection is lost.
///
/// # Errors
/// Those of [`Inbox::receive`].
pub async fn take_in(mut inbox: Inbox, inlet: &Inlet) -> io::Result<()> {
    while let Some(train) = inbox.receive().await? {
        inlet.take(train.datagrams, train.each);
    }
    Ok(())
}
