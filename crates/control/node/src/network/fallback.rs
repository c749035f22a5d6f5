//! Carries datagrams over the tunnels' TLS connections where UDP is blocked.
//!
//! The node's other threads serve moves, and may have a higher priority than programs. The traffic of programs has a thread of its own
//! with normal priority.

use std::io;

use overlay_io::carrier::Fallback;
use overlay_io::fallback::Inlet;
use overlay_io::plane::use_default_scheduling;
use rpc::datagrams::{Inbox, Outbox};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;

/// The thread that carries datagrams over connections.
pub struct Traffic(Option<Runtime>);

impl Traffic {
    /// Starts the thread.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn new() -> io::Result<Self> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("th-overlay-tls")
            .on_thread_start(use_default_scheduling)
            .enable_time()
            .build()?;
        Ok(Self(Some(runtime)))
    }

    /// Runs `work` on the thread, until the future is dropped.
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

/// The overlay's interface to a connection.
pub struct OverTls(pub Outbox);

impl Fallback for OverTls {
    fn send(&self, datagrams: &[u8], length: usize) -> io::Result<()> {
        self.0.send(datagrams, length)
    }

    fn stands(&self) -> bool {
        self.0.stands()
    }
}

/// Receives datagrams until the connection is lost.
///
/// # Errors
/// Errors of [`Inbox::receive`].
pub async fn take_in(mut inbox: Inbox, inlet: &Inlet) -> io::Result<()> {
    while let Some(train) = inbox.receive().await? {
        inlet.take(train.datagrams, train.each);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> i32 {
        // SAFETY: 0 is the calling thread.
        unsafe { libc::sched_getscheduler(0) }
    }

    #[test]
    fn carrying_datagrams_does_not_inherit_the_daemons_priority() {
        // A thread of its own, so that no other test has its policy.
        let daemon = std::thread::spawn(|| {
            let lowest = libc::sched_param { sched_priority: 1 };
            // SAFETY: the parameters are live.
            let taken = unsafe { libc::sched_setscheduler(0, libc::SCHED_RR, &raw const lowest) } == 0;
            let node = Builder::new_current_thread().enable_all().build().unwrap();
            let traffic = Traffic::new().unwrap();
            (taken, node.block_on(traffic.carry(async { policy() })))
        });
        assert_eq!(daemon.join().unwrap(), (true, Some(libc::SCHED_OTHER)), "these tests run as root");
    }

    #[tokio::test]
    async fn a_task_ends_when_its_caller_stops_waiting() {
        let traffic = Traffic::new().unwrap();
        let (held, mut released) = tokio::sync::oneshot::channel::<()>();
        let work = traffic.carry(async move {
            let _held = held;
            std::future::pending::<()>().await;
        });
        assert!(tokio::time::timeout(std::time::Duration::from_millis(10), work).await.is_err());
        assert!((&mut released).await.is_err());
    }
}
