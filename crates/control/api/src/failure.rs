use serde::{Deserialize, Serialize};

/// Why something cannot be done, and what can be done about it. Both are one line each.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// What is wrong; names the thing.
    pub message: String,
    /// What the user can do about it. The JSON field keeps its older name, `help`.
    #[serde(rename = "help")]
    pub remedy: String,
}

impl Failure {
    /// A failure with its remedy.
    pub fn new(message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { message: message.into(), remedy: remedy.into() }
    }
}
