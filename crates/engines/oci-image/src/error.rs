//! The error of this crate.

use serde::{Deserialize, Serialize};

/// The result of reading an image.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an image cannot be used, with a remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("{what}: {remedy}")]
pub struct Error {
    /// The reason: one clause that names the object.
    pub what: String,
    /// The remedy: one clause.
    pub remedy: String,
}

impl Error {
    /// An error with this reason and remedy.
    pub fn new(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { what: what.into(), remedy: remedy.into() }
    }
}
