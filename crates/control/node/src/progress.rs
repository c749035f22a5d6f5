//! The events in the start of a node that a user may want to see.

use std::sync::Arc;

/// Receives the events.
pub type ProgressSink = Arc<dyn Fn(Progress) + Send + Sync>;

/// An event in the start of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The coordinator cannot be reached, for this reason. Another attempt follows.
    Unreachable(String),
    /// It is connected to the coordinator.
    Connected,
    /// The connection to the coordinator is lost. Another attempt follows.
    Lost,
    /// The device of its options is plugged in and up.
    Plugged,
}
