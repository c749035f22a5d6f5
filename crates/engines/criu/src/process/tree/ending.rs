//! Kills a tree, and deletes its files.

use std::time::Duration;

use super::Tree;
use crate::criu::images;
use crate::engine::State;
use crate::error::{Doing, Result};

/// How long killed processes may take to end.
const KILLED: Duration = Duration::from_secs(10);

impl Tree {
    /// Deletes the images of a running instance, in the background.
    pub fn drop_images(&self) -> Result<()> {
        images::put_aside(&self.record.images)?;
        images::unstage(&self.record.images)
    }

    /// Kills the held tree, and keeps the images for another attempt.
    pub fn drop_held(&mut self) {
        self.criu = None;
        self.kill();
        self.end_pager();
        self.record.first = None;
        self.record.criu = None;
        self.record.state = State::Prepared;
    }

    /// Kills the instance: when its first process dies, the kernel kills all others.
    fn kill(&mut self) {
        if let Some(first) = self.first.take() {
            let _gone = first.signal(libc::SIGKILL);
            first.ended_within(KILLED);
        }
    }

    /// Kills and deletes everything but the record.
    pub fn remove(&mut self) -> Result<()> {
        self.criu = None;
        self.kill();
        self.end_pager();
        self.link.delete().doing(|| "deleting the link".into())?;
        self.root.remove()?;
        images::unstage(&self.record.images)?;
        images::delete(&self.record.images)
    }
}
