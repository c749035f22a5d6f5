//! Progress and cancellation of a long call.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Follows a long call, and ends it early.
pub struct Watch<'a> {
    /// The engine calls this wherever it can stop; `true` cancels the call.
    pub cancelled: &'a (dyn Fn() -> bool + Sync),
    /// The engine calls this at the end of each part.
    pub progress: &'a (dyn Fn(&Phase) + Sync),
    /// How long the call may take.
    pub timeout: Duration,
}

impl Watch<'static> {
    /// Never cancels, and ignores progress.
    pub const QUIET: Self =
        Self { cancelled: &|| false, progress: &|_| {}, timeout: Duration::from_secs(60) };
}

/// A part of a call, with its duration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Phase {
    /// The name of the part, in a word or two.
    pub name: String,
    /// Its duration, in microseconds.
    pub elapsed_us: u64,
}

/// The part of a call in which a virtual machine was stopped or cut off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outage {
    /// The time in which its processors were stopped.
    pub processors: Duration,
    /// The time in which its link was cut.
    pub link: Duration,
}

/// The parts of a call, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Phases(pub Vec<Phase>);
