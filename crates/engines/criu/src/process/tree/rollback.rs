//! Source: resumes a stopped tree.

use std::io;

use super::Tree;
use crate::criu::repair_mode;
use crate::engine::State;
use crate::error::{Doing, Result};
use crate::linux::task::{Task, TaskId};
use crate::process::record::Records;

impl Tree {
    /// Lets a stopped tree run again on this host with its link, except for processes that were stopped before the dump.
    pub fn run_on(&mut self, records: &Records) -> Result<()> {
        self.link.mend().doing(|| "mending the link".into())?;
        if self.first().is_ok() {
            let tree = self.tree()?;
            let reuse = &self.record.reuse;
            repair_mode::leave_repair(&tree, reuse).doing(|| "reviving TCP connections".into())?;
            wake(&tree, &self.record.paused);
        }
        self.record.state = State::Running;
        // A missing record does not delay the instance: a reader of an older one sees that the tree runs.
        let _older = records.save(&self.record);
        Ok(())
    }
}

/// Wakes children before their parents: a shell that waits for stopped children must not see any. Also wakes processes that do not
/// appear stopped: a killed CRIU may have told them to stop a moment ago.
fn wake(tree: &[i32], paused: &[i32]) {
    for &pid in tree.iter().rev().filter(|pid| !paused.contains(pid)) {
        if let Some(task) = TaskId::of(pid).ok().and_then(Task::open) {
            let _gone: io::Result<()> = task.signal(libc::SIGCONT);
        }
    }
}
