use serde::{Deserialize, Serialize};

/// Why something cannot be done, and what can be done about it. Both are one line each.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// What is wrong, naming the thing.
    pub message: String,
    /// The way out.
    pub help: String,
}

impl Failure {
    /// A failure with its way out.
    pub fn new(message: impl Into<String>, help: impl Into<String>) -> Self {
        Self { message: message.into(), help: help.into() }
    }
}
