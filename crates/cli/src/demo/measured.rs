//! The measurements of a move.

use api::MoveReport;
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
}
