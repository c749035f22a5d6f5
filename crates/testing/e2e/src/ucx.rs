//! UCX's benchmark as installed.

use std::process::Command;
use std::sync::OnceLock;

/// Makes `ucx_perftest` one of two programs that find each other by address. Where it is built with MPI (since Debian 13), one
/// without a terminal takes itself for a rank of a job.
#[must_use]
pub fn without_mpi() -> &'static [&'static str] {
    static KNOWS_MPI: OnceLock<bool> = OnceLock::new();
    let asks = || {
        let help = Command::new("ucx_perftest").arg("-h").output();
        help.is_ok_and(|help| String::from_utf8_lossy(&help.stdout).contains("-P <0|1>"))
    };
    if *KNOWS_MPI.get_or_init(asks) { &["-P", "0"] } else { &[] }
}
