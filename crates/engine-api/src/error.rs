//! What goes wrong, in words.

use std::io;

use instance::Blocker;

/// The result of an engine's call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an engine's call failed. Texts are one line each.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The host has not what the engine needs.
    #[error("{what}: {remedy}")]
    Unusable {
        /// What is missing.
        what: String,
        /// What to do.
        remedy: String,
    },
    /// What the engine tried did not succeed on this host.
    #[error("{what} ({reason}): {remedy}")]
    Failed {
        /// What was not possible, as the beginning of a sentence that goes on with the host.
        what: String,
        /// Why, in the engine's words.
        reason: String,
        /// What to do.
        remedy: String,
    },
    /// What pins the instance came after the check, and was there still when it was stopped.
    #[error("{0}")]
    Pinned(Blocker),
    /// The instance was let go, and is no more: why, in words.
    #[error("it is lost: {0}")]
    Lost(String),
    /// Who was to take the memory did not.
    #[error("its memory was not taken ({0})")]
    NotTaken(io::Error),
    /// The caller cancelled.
    #[error("cancelled")]
    Cancelled,
    /// Anything else, such as a system call that failed.
    #[error("{0}")]
    Other(String),
}

impl Error {
    /// The host has not what the engine needs: what, and what to do.
    pub fn unusable(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::Unusable { what: what.into(), remedy: remedy.into() }
    }

    /// What has gone wrong on `host`.
    #[must_use]
    pub fn on_host(&self, host: &str) -> String {
        match self {
            Self::Unusable { what, .. } => format!("host {host}: {what}"),
            Self::Failed { what, reason, .. } => format!("{what} on host {host} ({reason})"),
            Self::Pinned(blocker) => blocker.what.clone(),
            _ => self.to_string(),
        }
    }

    /// What the user can do about it, if that is known.
    #[must_use]
    pub fn remedy(&self) -> Option<&str> {
        match self {
            Self::Unusable { remedy, .. } | Self::Failed { remedy, .. } => Some(remedy),
            Self::Pinned(blocker) => Some(&blocker.remedy),
            Self::Lost(_) | Self::NotTaken(_) | Self::Cancelled | Self::Other(_) => None,
        }
    }
}
