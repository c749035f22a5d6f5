//! Figures as the user sees them: times, sizes, and the names of phases.

use api::Phase;

/// The name of a phase.
pub fn phase_name(phase: Phase) -> &'static str {
    match phase {
        Phase::Prepare => "prepare",
        Phase::Precopy => "pre-copy",
        Phase::Suspend => "suspend",
        Phase::Dump => "dump",
        Phase::Transfer => "transfer",
        Phase::Restore => "restore",
        Phase::Commit => "commit",
        Phase::Resume => "resume",
        Phase::Fetch => "fetch",
        Phase::Destroy => "destroy",
        Phase::RollBack => "roll back",
    }
}

/// A time in milliseconds, with one decimal.
pub fn milliseconds(microseconds: u64) -> String {
    format!("{}.{} ms", microseconds / 1000, microseconds % 1000 / 100)
}

/// A size in MiB, with one decimal.
pub fn mebibytes(bytes: u64) -> String {
    let tenths = bytes * 10 / (1024 * 1024);
    format!("{}.{} MiB", tenths / 10, tenths % 10)
}

/// A rate in MiB/s, with one decimal.
pub fn rate(bytes_per_second: u64) -> String {
    format!("{}/s", mebibytes(bytes_per_second))
}
