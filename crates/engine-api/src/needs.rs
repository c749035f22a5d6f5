//! What pins an instance to its host, and what it needs at its destination.

use instance::Blocker;
use serde::{Deserialize, Serialize};

/// What [`Source::check`](crate::Source::check) finds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// What pins the instance here. Empty: it can leave.
    pub blockers: Vec<Blocker>,
    /// What it needs at its destination.
    pub needs: Needs,
}

/// What an instance needs at its destination.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Needs {
    /// Memory that it has in use, in bytes.
    pub memory: u64,
    /// What else only an engine of the same kind understands: files, versions, CPU features.
    pub details: Vec<u8>,
}

/// How often the kernel has ended a process of an instance for want of memory, and the limit in bytes if that was reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shortage {
    /// Processes that were ended.
    pub kills: u64,
    /// The limit of the instance's cgroup; `None` if it is the host that had no more.
    pub limit: Option<u64>,
}
