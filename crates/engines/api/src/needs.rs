//! The result of checking an instance: its blockers, and its needs at the destination.

use instance::Blocker;
use serde::{Deserialize, Serialize};

/// The result of [`Source::check`](crate::Source::check).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Reasons why the instance cannot leave this host. Without any, it can leave.
    pub blockers: Vec<Blocker>,
    /// Its needs at the destination.
    pub needs: Needs,
}

/// The needs of an instance at its destination.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Needs {
    /// The memory that it uses, in bytes.
    pub memory: u64,
    /// Needs that only an engine of the same kind can decode: files, versions, CPU features.
    pub details: Vec<u8>,
}

/// The kernel's kills of an instance's processes for lack of memory (OOM kills).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shortage {
    /// The number of killed processes.
    pub kills: u64,
    /// The memory limit of the instance's cgroup in bytes, if the instance reached it; `None` if the host had no more memory.
    pub limit: Option<u64>,
}
