//! A journal in memory.

use std::sync::{Arc, Mutex};

use store::{Change, Journal, Notice, StoreError};
use tokio::sync::Semaphore;

/// A journal in memory whose notices the test gives.
#[derive(Clone)]
pub struct Held {
    notices: Arc<Semaphore>,
    changes: Arc<Mutex<Vec<Change>>>,
    is_failing: bool,
}

impl Held {
    /// A journal that gives so many notices, and fails with the first if it `is_failing`.
    pub fn new(notices: usize, is_failing: bool) -> Self {
        Self { notices: Arc::new(Semaphore::new(notices)), changes: Arc::default(), is_failing }
    }

    /// Gives so many notices more.
    pub fn give(&self, notices: usize) {
        self.notices.add_permits(notices);
    }

    /// The changes whose notices were given.
    pub fn changes(&self) -> Vec<Change> {
        self.changes.lock().unwrap().clone()
    }
}

impl Journal for Held {
    fn ready(&self) -> Notice<()> {
        Box::pin(async { Ok(()) })
    }

    fn append(&self, change: Change) -> Notice<()> {
        let held = self.clone();
        Box::pin(async move {
            held.notices.acquire().await.unwrap().forget();
            if held.is_failing {
                return Err(StoreError::Gone);
            }
            held.changes.lock().unwrap().push(change);
            Ok(())
        })
    }
}
