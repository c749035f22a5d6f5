//! The measurements of a move.

use std::time::Duration;

use api::{MoveReport, Phase};
use serde::Serialize;

/// A move and its measurements.
#[derive(Debug, Serialize)]
pub struct MeasuredMove {
    /// The coordinator's report.
    pub report: MoveReport,
    /// The path of RDMA traffic afterwards.
    pub path: &'static str,
    /// The longest time without an answer to the prober, in microseconds; 0 if shorter than
    /// [`probe::gaps::LEAST`].
    pub probe_us: u64,
    /// The prober's packets in it that were not answered.
    pub probe_lost: u64,
    /// The longest time without a completion of verbs-check, in microseconds.
    pub workload_us: u64,
    /// More, of a virtual machine.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub machine: Option<MachineFigures>,
}

/// The figures of a virtual machine's move, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct MachineFigures {
    /// The time in which the guest's processors did not run.
    pub pause_us: u64,
    /// How much longer than that the prober had no answer.
    pub gap_us: u64,
    /// The longest time that a request took during the move.
    pub request_us: u64,
}

/// When the outage of a move may begin and end, since its begin: the engine stops the guest after the dump has begun, and it runs again
/// when the engine has released it.
pub fn outage_within(report: &MoveReport) -> Option<(Duration, Duration)> {
    let begin = |phase| report.phases.iter().find(|time| time.phase == phase).map(|time| time.at_us);
    let released = begin(Phase::Resume)? + report.engine.release_us;
    Some((Duration::from_micros(begin(Phase::Dump)?), Duration::from_micros(released)))
}
