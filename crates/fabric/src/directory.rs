//! The directory of a fabric: what its processes tell each other of themselves, such as where a connection manager
//! listens.
//!
//! A process publishes values under keys. They are its own: they end with it, and they stay when its instance moves.
//! The coordinator keeps them in memory only. Whoever asked or published says it again when the node tells that the
//! coordinator has come back ([`ToProcess::DirectoryBack`](crate::attach::ToProcess::DirectoryBack)), and after a
//! move; so requests may arrive more than once, and each has the same effect as once.

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

/// What a process asks of the directory of its fabric.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Adds a value.
    Publish {
        /// Under which key.
        key: Vec<u8>,
        /// The value.
        value: Vec<u8>,
        /// The key shall have values of this process alone: it is refused while another process has one, and so are
        /// others while this one has.
        exclusive: bool,
    },
    /// Takes a value of this process back.
    Withdraw {
        /// From which key.
        key: Vec<u8>,
        /// The value.
        value: Vec<u8>,
    },
    /// Asks for the values of a key.
    Look {
        /// Which.
        key: Vec<u8>,
    },
    /// Asks to be told when a process has ended: that is when the answer comes.
    Watch {
        /// Which.
        process: ProcessId,
    },
}

impl Request {
    /// Whether keys and values keep to the limits.
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

/// What the directory answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// It is done, or, to [`Request::Watch`], the process has ended.
    Done,
    /// The values of the key.
    Found(Vec<Entry>),
    /// The key has a value of another process.
    Taken,
    /// One of the limits of this module is reached.
    Full,
    /// Too much is asked at a time: ask again after a while.
    Busy,
}

/// A value, and whose it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Who published it.
    pub process: ProcessId,
    /// What it published.
    pub value: Vec<u8>,
}

/// A process in all fabrics of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Member {
    /// The fabric of its instance.
    pub fabric: FabricId,
    /// Which of the fabric's processes.
    pub process: ProcessId,
}

impl Member {
    /// Its instance.
    #[must_use]
    pub fn instance(self) -> InstanceId {
        InstanceId { fabric: self.fabric, vid: self.process.vid }
    }
}

/// An answer that is due now to a request of earlier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Due {
    /// Who asked.
    pub asker: Member,
    /// The request's number.
    pub number: u64,
    /// The answer.
    pub answer: Answer,
}
