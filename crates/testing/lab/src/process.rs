//! Identifies processes before they are signalled, because a PID may be reused.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

/// Identifies a process uniquely since the machine booted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The process' PID.
    pub pid: i32,
    /// When it started, in clock ticks since boot.
    pub start_time: u64,
}

impl Identity {
    /// The process with `pid`; `None` if there is none, or it is a zombie.
    #[must_use]
    pub fn of(pid: i32) -> Option<Self> {
        let stat = fs::read_to_string(file(pid, "stat")).ok()?;
        Some(Self { pid, start_time: start_time(&stat)? })
    }

    /// Whether the process has not ended.
    #[must_use]
    pub fn is_running(self) -> bool {
        Self::of(self.pid) == Some(self)
    }

    /// A handle (pidfd) of the process, unless it has ended.
    #[must_use]
    pub fn open(self) -> Option<Handle> {
        let descriptor = pidfd_open(Pid::from_raw(self.pid)?, PidfdFlags::empty()).ok()?;
        // The pidfd pins the PID: checking again tells whether it is still the same process.
        self.is_running().then_some(Handle { identity: self, descriptor })
    }
}

/// A pidfd of a running or ended process; its PID is not reused while this lives.
#[derive(Debug)]
pub struct Handle {
    identity: Identity,
    descriptor: OwnedFd,
}

impl Handle {
    /// The identity of the process.
    #[must_use]
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// Ends the process at once.
    pub fn kill(&self) {
        // This fails only for a process that has ended.
        let _ = pidfd_send_signal(&self.descriptor, Signal::KILL);
    }
}

/// Waits until all `processes` have ended, and returns the ones that still run at `deadline`.
#[must_use]
pub fn wait_for_end(mut processes: Vec<Handle>, deadline: Instant) -> Vec<Handle> {
    while let Some(first) = processes.first() {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut watched = [PollFd::new(&first.descriptor, PollFlags::IN)];
        match poll(&mut watched, Some(&timespec(left))) {
            Ok(1) => drop(processes.swap_remove(0)),
            Err(rustix::io::Errno::INTR) => {}
            _ => break,
        }
    }
    processes
}

/// All running processes.
pub fn all() -> impl Iterator<Item = Identity> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| Identity::of(entry.file_name().to_str()?.parse().ok()?))
}

/// The file `name` of `pid` under `/proc`.
#[must_use]
pub fn file(pid: i32, name: &str) -> PathBuf {
    Path::new("/proc").join(pid.to_string()).join(name)
}

/// The start time in the text of `/proc/PID/stat`. Its second field may contain any characters. `None` for a
/// process that has ended.
fn start_time(stat: &str) -> Option<u64> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_ascii_whitespace();
    let state = fields.next()?;
    if matches!(state, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: duration.subsec_nanos().into(),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn the_name_of_a_process_cannot_forge_its_start_time() {
        let numbers = "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4242 20";
        assert_eq!(start_time(&format!("7 (a) R 1) R {numbers}")), Some(4242));
        assert_eq!(start_time(&format!("7 (a) Z {numbers}")), None);
        assert_eq!(start_time("nonsense"), None);
    }

    #[test]
    fn detects_ended_processes() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let identity = Identity::of(child.id().try_into().unwrap()).unwrap();
        let handle = identity.open().unwrap();
        handle.kill();
        let left = wait_for_end(vec![handle], Instant::now() + Duration::from_secs(10));
        assert!(left.is_empty());
        assert!(!identity.is_running());
        child.wait().unwrap();
        assert!(identity.open().is_none());
    }

    #[test]
    fn does_not_open_a_process_that_reuses_the_pid() {
        let me = Identity::of(std::process::id().try_into().unwrap()).unwrap();
        assert!(Identity { start_time: me.start_time + 1, ..me }.open().is_none());
    }
}
