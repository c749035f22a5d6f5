//! Why something cannot move, and the remedy.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A reason why an instance cannot move, and the remedy.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Blocker {
    /// What pins it: one clause that names the thing.
    pub what: String,
    /// What to do about it: one clause.
    pub remedy: String,
}

impl Blocker {
    /// Something that pins, and what to do about it.
    pub fn new(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { what: what.into(), remedy: remedy.into() }
    }
}

impl fmt::Display for Blocker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.remedy)
    }
}
