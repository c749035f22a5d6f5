//! The errors of engines.

use std::io;

use crate::instance::Blocker;
use crate::instance::InstanceName;

/// The result of an engine's call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an engine's call failed. The text is one line, and includes a remedy where there is one.
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
        /// The missing thing, as a sentence.
        what: String,
        /// The remedy.
        remedy: String,
    },
    /// The images of an instance do not fit: names the instance and the directory.
    #[error("there is no room for {0}")]
    NoRoom(String),
    /// A blocker arose after the check, and remained when the instance was stopped.
    #[error("{blocker}")]
    Pinned {
        /// Which.
        name: InstanceName,
        /// The blocker, with its remedy.
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
    /// The instance was released, and has ended unexpectedly.
    #[error("`{name}` is lost: {reason}")]
    Lost {
        /// Which.
        name: InstanceName,
        /// Why, in words.
        reason: String,
    },
    /// The receiver of the memory failed.
    #[error("the destination did not accept its memory ({0})")]
    NotTaken(io::Error),
    /// The caller cancelled.
    #[error("cancelled")]
    Cancelled,
    /// The time ran out.
    #[error("the {doing} of `{name}` took too long and was undone")]
    TimedOut {
        /// The operation that took too long.
        doing: &'static str,
        /// Which instance.
        name: InstanceName,
    },
    /// A system call failed.
    #[error("{doing}: {source}")]
    Io {
        /// The attempted operation, with the name of its object.
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

/// Adds the attempted operation to an I/O error.
pub(crate) trait Doing<T> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T> Doing<T> for io::Result<T> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|source| Error::Io { doing: what(), source })
    }
}
