//! Reasons why an instance cannot move.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A reason why an instance cannot move, with a remedy.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Blocker {
    /// The reason: one clause that names the object.
    pub what: String,
    /// The remedy: one clause.
    pub remedy: String,
}

impl Blocker {
    /// A blocker with this reason and remedy.
    pub fn new(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { what: what.into(), remedy: remedy.into() }
    }
}

impl fmt::Display for Blocker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.remedy)
    }
}
