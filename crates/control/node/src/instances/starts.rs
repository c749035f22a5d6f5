//! Tasks that wait for the report that an instance's command runs.

use std::collections::HashMap;
use std::sync::Mutex;

use fabric::Vid;
use fabric::attach::NotStarted;
use tokio::sync::oneshot;

use crate::lock::lock;

/// Whether a command runs.
pub type Start = Result<(), NotStarted>;

/// The waiting tasks.
#[derive(Default)]
pub struct Starts(Mutex<HashMap<Vid, oneshot::Sender<Start>>>);

impl Starts {
    /// Expects a report.
    pub fn expect(&self, vid: Vid) -> oneshot::Receiver<Start> {
        let (waiter, report) = oneshot::channel();
        lock(&self.0).insert(vid, waiter);
        report
    }

    /// Passes a report on, if it is expected.
    pub fn report(&self, vid: Vid, start: Start) {
        if let Some(waiter) = lock(&self.0).remove(&vid) {
            // A waiter whose time is over counts the command as started, and learns of its end.
            let _ = waiter.send(start);
        }
    }

    /// Stops expecting a report.
    pub fn forget(&self, vid: Vid) {
        lock(&self.0).remove(&vid);
    }
}
