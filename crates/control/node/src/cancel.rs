use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

/// Ends an operation early.
#[derive(Debug, Default)]
pub struct Cancel {
    set: AtomicBool,
    notify: Notify,
}

impl Cancel {
    pub fn cancel(&self) {
        self.set.store(true, Ordering::Release);
        self.notify.notify_waiters();
    }

    pub fn is_cancelled(&self) -> bool {
        self.set.load(Ordering::Acquire)
    }

    /// The result of `work`, or `None` if the operation is cancelled first, which drops `work`.
    pub async fn unless<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let mut cancelled = std::pin::pin!(self.notify.notified());
        cancelled.as_mut().enable();
        if self.is_cancelled() {
            return None;
        }
        tokio::select! {
            done = work => Some(done),
            () = cancelled => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn work_ends_when_it_is_done_or_cancelled() {
        let cancel = Cancel::default();
        assert_eq!(cancel.unless(async { 1 }).await, Some(1));
        let ended = tokio::join!(cancel.unless(std::future::pending::<()>()), async { cancel.cancel() });
        assert_eq!(ended.0, None);
        assert_eq!(cancel.unless(async { 1 }).await, None);
    }
}
