//! What is wrong with an image, in words.

use serde::{Deserialize, Serialize};

/// The result of what reads images.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What is wrong with an image, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("{what}: {remedy}")]
pub struct Error {
    /// One clause that names the thing.
    pub what: String,
    /// One clause.
    pub remedy: String,
}

impl Error {
    /// What is wrong, and the way out.
    pub fn new(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { what: what.into(), remedy: remedy.into() }
    }
}
