//! The measurements of a move.

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
    /// What the prober's gap lasted beyond that.
    pub gap_us: u64,
    /// The longest time that a request took.
    pub request_us: u64,
}

impl MachineFigures {
    /// The figures, with the prober's gap and the slowest request of a move.
    pub fn new(report: &MoveReport, probe_us: u64, request_us: u64) -> Self {
        let pause_us = pause(report);
        Self { pause_us, gap_us: probe_us.saturating_sub(pause_us), request_us }
    }
}

/// The engine stops the guest when the dump begins, and it runs again when the engine has released it.
fn pause(report: &MoveReport) -> u64 {
    let begin = |phase| report.phases.iter().find(|time| time.phase == phase).map(|time| time.at_us);
    let released = begin(Phase::Resume).map(|at| at + report.engine.release_us);
    released.zip(begin(Phase::Dump)).map_or(0, |(to, from)| to.saturating_sub(from))
}
