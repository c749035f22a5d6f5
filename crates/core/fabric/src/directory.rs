//! The directory of a fabric: values that its processes publish for each other, such as the address of a connection
//! manager.
//!
//! A process publishes values under keys. The values end with their process, and stay when its instance moves. The
//! coordinator keeps them in memory only. A process repeats its requests when the node reports that the coordinator has
//! restarted ([`ToProcess::DirectoryBack`](crate::attach::ToProcess::DirectoryBack)), and after a move. So requests may
//! arrive more than once, and are idempotent.

mod keeper;

use serde::{Deserialize, Serialize};

pub use self::keeper::Directory;
use crate::{FabricId, InstanceId, ProcessId};

/// The longest key, in bytes.
pub const MAX_KEY: usize = 64;

/// The longest value, in bytes.
pub const MAX_VALUE: usize = 64;

/// The most values under one key.
pub const MAX_VALUES: usize = 512;

/// The most values of one process.
pub const MAX_OF_PROCESS: usize = 4096;

/// The most processes that one process may watch.
pub const MAX_WATCHES: usize = 4096;

/// A request of a process to the directory of its fabric.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Adds a value.
    Publish {
        /// The key.
        key: Vec<u8>,
        /// The value.
        value: Vec<u8>,
        /// Claims the key for this process: the request is refused while another process has a value under the key, and
        /// requests of others are refused while this process has one.
        exclusive: bool,
    },
    /// Withdraws a value of this process.
    Withdraw {
        /// The key.
        key: Vec<u8>,
        /// The value.
        value: Vec<u8>,
    },
    /// Asks for the values of a key.
    Look {
        /// The key.
        key: Vec<u8>,
    },
    /// Waits for the end of a process: the answer comes when it has ended.
    Watch {
        /// The process.
        process: ProcessId,
    },
}

impl Request {
    /// Whether key and value are within the limits.
    #[must_use]
    pub fn is_within_limits(&self) -> bool {
        match self {
            Self::Publish { key, value, .. } | Self::Withdraw { key, value } => {
                key.len() <= MAX_KEY && value.len() <= MAX_VALUE
            }
            Self::Look { key } => key.len() <= MAX_KEY,
            Self::Watch { .. } => true,
        }
    }
}

/// An answer of the directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// The request is carried out; for [`Request::Watch`], the process has ended.
    Done,
    /// The values of the key.
    Found(Vec<Entry>),
    /// The key has a value of another process.
    Taken,
    /// One of the limits of this module is reached.
    Full,
    /// Too many requests at a time: ask again after a while.
    Busy,
}

/// A value and its publisher.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The process that published it.
    pub process: ProcessId,
    /// The value.
    pub value: Vec<u8>,
}

/// A process in all fabrics of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Member {
    /// The fabric of its instance.
    pub fabric: FabricId,
    /// The process in that fabric.
    pub process: ProcessId,
}

impl Member {
    /// Its instance.
    #[must_use]
    pub fn instance(self) -> InstanceId {
        InstanceId { fabric: self.fabric, vid: self.process.vid }
    }
}

/// An answer that is due now for an earlier request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Due {
    /// The process that asked.
    pub asker: Member,
    /// The request's number.
    pub number: u64,
    /// The answer.
    pub answer: Answer,
}
