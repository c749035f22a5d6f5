//! What is wrong with an image, in words.

use serde::{Deserialize, Serialize};

/// The result of what reads images.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What is wrong with an image, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("{what}: {way_out}")]
pub struct Error {
    /// One clause that names the thing.
    pub what: String,
    /// One clause.
    pub way_out: String,
}

impl Error {
    /// What is wrong, and the way out.
    pub fn new(what: impl Into<String>, way_out: impl Into<String>) -> Self {
        Self { what: what.into(), way_out: way_out.into() }
    }
}
