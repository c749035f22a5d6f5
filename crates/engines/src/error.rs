//! What goes wrong, in words.

use std::io;

use crate::instance::InstanceName;
use crate::report::Blocker;

/// The result of an engine's call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an engine's call failed. The text is one line and says the way out where there is one.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The instance is not on this host.
    #[error("there is no instance `{0}` on this host")]
    Unknown(InstanceName),
    /// The instance's state does not allow the call.
    #[error("instance `{name}` is {is}, and must be {must}")]
    State {
        /// Which.
        name: InstanceName,
        /// Its state.
        is: &'static str,
        /// The state that the call needs.
        must: &'static str,
    },
    /// The engine cannot work on this host.
    #[error("{what}: {remedy}")]
    Unusable {
        /// What is missing.
        what: String,
        /// What to do.
        remedy: String,
    },
    /// The images of an instance do not fit: whose, and where.
    #[error("there is no room for {0}")]
    NoRoom(String),
    /// What pins the instance came after the check, and was there still when it was stopped.
    #[error("{blocker}")]
    Pinned {
        /// Which.
        name: InstanceName,
        /// What, and the way out.
        blocker: Blocker,
    },
    /// CRIU refused; its log is kept.
    #[error("CRIU could not {doing} `{name}`: {reason}")]
    Criu {
        /// `dump` or `restore`.
        doing: &'static str,
        /// Which instance.
        name: InstanceName,
        /// Its log's errors in one sentence.
        reason: String,
    },
    /// The instance was let go, and is no more.
    #[error("`{name}` is lost: {reason}")]
    Lost {
        /// Which.
        name: InstanceName,
        /// Why, in words.
        reason: String,
    },
    /// Who was to take the memory did not.
    #[error("its memory was not taken ({0})")]
    NotTaken(io::Error),
    /// The caller cancelled.
    #[error("cancelled")]
    Cancelled,
    /// The time ran out.
    #[error("the {doing} of `{name}` took too long and was undone")]
    TimedOut {
        /// What was done.
        doing: &'static str,
        /// Which instance.
        name: InstanceName,
    },
    /// A system call failed.
    #[error("{doing}: {source}")]
    Io {
        /// What was tried, with the thing's name.
        doing: String,
        /// Why not.
        source: io::Error,
    },
}

impl Error {
    /// The engine cannot work on this host: why, and what to do.
    pub fn unusable(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::Unusable { what: what.into(), remedy: remedy.into() }
    }
}

/// Names what was tried.
pub(crate) trait Doing<T> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T> Doing<T> for io::Result<T> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|source| Error::Io { doing: what(), source })
    }
}
