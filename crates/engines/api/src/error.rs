//! The errors of an engine's calls, each with a remedy where there is one.

use std::io;

use instance::Blocker;

/// The result of an engine's call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an engine's call failed. Each text is one line. The instance is its subject, or the node adds the host: see [`Error::on_host`].
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The host lacks something that the engine needs.
    #[error("{what}: {remedy}")]
    Unusable {
        /// The missing thing, as a sentence.
        what: String,
        /// The remedy.
        remedy: String,
    },
    /// An operation of the engine failed on this host.
    #[error("{what} ({reason}): {remedy}")]
    Failed {
        /// The failed operation, as the beginning of a sentence that continues with `on host h1`.
        what: String,
        /// The engine's reason.
        reason: String,
        /// The remedy.
        remedy: String,
    },
    /// A blocker arose after the check, and remained when the instance was stopped.
    #[error("{0}")]
    Pinned(Blocker),
    /// The instance was released, and has ended, for this reason. It cannot be restored any more.
    #[error("it is lost: {0}")]
    Lost(String),
    /// The receiver of the memory failed: a [`MemorySink`](crate::MemorySink) or a channel.
    #[error("the destination did not accept its memory ({0})")]
    NotTaken(io::Error),
    /// The caller's [`Watch`](crate::Watch) has cancelled the call.
    #[error("cancelled")]
    Cancelled,
    /// Anything else, such as a system call that failed.
    #[error("{0}")]
    Other(String),
}

impl Error {
    /// An [`Error::Unusable`].
    pub fn unusable(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::Unusable { what: what.into(), remedy: remedy.into() }
    }

    /// The error as a sentence that names `host`, without the remedy.
    #[must_use]
    pub fn on_host(&self, host: &str) -> String {
        match self {
            Self::Unusable { what, .. } => format!("host {host}: {what}"),
            Self::Failed { what, reason, .. } => format!("{what} on host {host} ({reason})"),
            Self::Pinned(blocker) => blocker.what.clone(),
            _ => self.to_string(),
        }
    }

    /// The remedy: what the user can do about the error, if that is known.
    #[must_use]
    pub fn remedy(&self) -> Option<&str> {
        match self {
            Self::Unusable { remedy, .. } | Self::Failed { remedy, .. } => Some(remedy),
            Self::Pinned(blocker) => Some(&blocker.remedy),
            Self::Lost(_) | Self::NotTaken(_) | Self::Cancelled | Self::Other(_) => None,
        }
    }
}
