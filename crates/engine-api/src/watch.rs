//! How a caller follows a long call, and ends it early.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// See the module.
pub struct Watch<'a> {
    /// Asked whenever the engine can stop; `true` cancels.
    pub cancelled: &'a (dyn Fn() -> bool + Sync),
    /// Told when a phase ends.
    pub progress: &'a (dyn Fn(&Phase) + Sync),
    /// The longest that the call may take.
    pub timeout: Duration,
}

impl Watch<'static> {
    /// Neither cancels nor listens.
    pub const QUIET: Self =
        Self { cancelled: &|| false, progress: &|_| {}, timeout: Duration::from_secs(60) };
}

/// A part of a call, and how long it took.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Phase {
    /// What was done, in a word or two.
    pub name: String,
    /// How long it took, in microseconds.
    pub elapsed_us: u64,
}

/// The parts of a call, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Phases(pub Vec<Phase>);
