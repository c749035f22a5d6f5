use std::time::Duration;

use fabric::ProcessId;
use serde::{Deserialize, Serialize};

/// A suspended process: it holds no resource outside its instance any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SuspendedProcess {
    /// The process.
    pub process: ProcessId,
    /// The time that it took, by its own measurement, in microseconds.
    pub elapsed_us: u64,
    /// The number of its QPs.
    pub queue_pairs: u32,
    /// The number of its memory regions.
    pub memory_regions: u32,
    /// Peers to which it has active connections.
    pub active_peers: Vec<ProcessId>,
}

impl SuspendedProcess {
    /// One that could not say what it holds.
    pub(crate) fn without_word(process: ProcessId) -> Self {
        Self { process, elapsed_us: 0, queue_pairs: 0, memory_regions: 0, active_peers: Vec::new() }
    }
}

/// An instance whose processes are all suspended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SuspendReport {
    /// Its processes that use verbs.
    pub processes: Vec<SuspendedProcess>,
    /// The time from the broker's `Suspend` until the last process closed its connection.
    pub elapsed: Duration,
}

/// An instance whose processes have resumed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResumeReport {
    /// The time of the slowest process, by its own measurement, in microseconds.
    pub slowest_us: u64,
    /// The time from the first process' attachment until the last one resumed.
    pub elapsed: Duration,
    /// Processes that did not attach again in time: they ended while they were suspended.
    pub missing: Vec<ProcessId>,
}

/// Why suspending an instance failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SuspendError {
    /// The instance is not on this host.
    #[error("the instance is not on this host")]
    Unknown,
    /// The instance is already suspended, or being suspended.
    #[error("the instance is not running")]
    NotListening,
    /// Some processes have not attached again since the node started, or since the last move.
    #[error("{processes} of its processes have not attached again yet: try again")]
    Away {
        /// Their number.
        processes: usize,
    },
    /// Some processes did not suspend in time.
    #[error("{} of its processes did not suspend within {} ms: {}", .processes.len(), .limit.as_millis(), .processes.join(", "))]
    Silent {
        /// Their names.
        processes: Vec<String>,
        /// The time limit.
        limit: Duration,
    },
}
