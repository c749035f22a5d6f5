//! Processes that have ended.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

/// Reaps every child of this process that has ended.
pub fn reap() -> Vec<(i32, ExitStatus)> {
    let mut ended = Vec::new();
    while let Some(child) = wait(-1) {
        ended.push(child);
    }
    ended
}

/// Reaps the child `pid`, if it has ended.
pub fn reap_one(pid: i32) -> Option<ExitStatus> {
    wait(pid).map(|(_, status)| status)
}

fn wait(pid: i32) -> Option<(i32, ExitStatus)> {
    let mut status = 0;
    // SAFETY: `status` is live and writable.
    let pid = unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) };
    (pid > 0).then(|| (pid, ExitStatus::from_raw(status)))
}

/// A command's exit code as a shell gives it.
pub fn code_of(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}
