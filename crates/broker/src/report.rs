use std::time::Duration;

use fabric::ProcessId;
use serde::{Deserialize, Serialize};

/// A process that has let go of everything outside its instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SuspendedProcess {
    /// The process.
    pub process: ProcessId,
    /// How long it took, as it says itself, in microseconds.
    pub elapsed_us: u64,
    /// QPs that it has.
    pub queue_pairs: u32,
    /// Memory regions that it has.
    pub memory_regions: u32,
    /// Peers with which it has been talking.
    pub active_peers: Vec<ProcessId>,
}

/// An instance of which every process has let go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SuspendReport {
    /// Its processes that use verbs.
    pub processes: Vec<SuspendedProcess>,
    /// From the broker's word until the last of them had closed its connection.
    pub elapsed: Duration,
}

/// An instance whose processes are back.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResumeReport {
    /// The slowest process' own time, in microseconds.
    pub slowest_us: u64,
    /// From the first process that came back until the last had resumed.
    pub elapsed: Duration,
    /// Processes that did not come back in time: they ended while they were suspended.
    pub missing: Vec<ProcessId>,
}

/// Why an instance is not suspended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SuspendError {
    /// The broker does not have it.
    #[error("there is no such instance on this host")]
    Unknown,
    /// It is suspended already, or about to be.
    #[error("the instance is not running")]
    NotListening,
    /// Some processes have not come back since the node was started, or since the last move.
    #[error("{processes} of its processes have not come back yet: try again")]
    Away {
        /// So many.
        processes: usize,
    },
    /// Some processes did not let go in time.
    #[error("{} of its processes did not let go within {} ms: {}", .processes.len(), .limit.as_millis(), .processes.join(", "))]
    Silent {
        /// These.
        processes: Vec<String>,
        /// The time they had.
        limit: Duration,
    },
}
