//! Scheduling attributes of threads that CRIU does not restore: CPU affinity, I/O priority and timer slack.
//!
//! They travel in a file beside CRIU's images, and are set once CRIU has made the threads.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::criu::fixups::fixup::{Fixup, StoppedTree};
use crate::linux::task;

/// The name of the fixup's image file, which CRIU ignores.
const FILE: &str = "scheduling.img";

/// The greatest number of processors that a kernel supports.
const PROCESSORS_MAX: usize = 8192;
/// Selects the thread with a TID, for `ioprio_get` (`IOPRIO_WHO_PROCESS`).
const ONE_THREAD: libc::c_int = 1;

/// The scheduling attributes of one thread.
#[derive(Debug, Serialize, Deserialize)]
struct Kept {
    /// The TID in the instance.
    thread: i32,
    /// The mask of its processors; none if it may run on all processors of its node.
    processors: Option<Vec<u64>>,
    io_priority: libc::c_long,
    /// In nanoseconds; none if the node may not read it, as in many containers.
    timer_slack: Option<u64>,
}

/// The fixup of scheduling attributes.
pub struct Scheduling;

impl Fixup for Scheduling {
    fn name(&self) -> &'static str {
        "scheduling"
    }

    fn lacks(&self) -> &'static str {
        "CRIU carries neither CPU affinity, nor I/O priorities, nor timer slack"
    }

    fn save(&mut self, stopped: &StoppedTree<'_>) -> io::Result<()> {
        note(stopped.images, stopped.tree)
    }

    fn apply(&self, held: &StoppedTree<'_>) -> io::Result<()> {
        set(held.images, held.tree)
    }
}

/// Records the scheduling attributes of a stopped tree's threads among its images.
fn note(images: &Path, tree: &[i32]) -> io::Result<()> {
    let everywhere = processors(0)?;
    let mut kept = Vec::new();
    task::for_each_thread(tree, |tid, thread| {
        let processors = Some(processors(tid)?).filter(|processors| *processors != everywhere);
        let (io_priority, timer_slack) = (io_priority(tid)?, timer_slack(tid).ok());
        kept.push(Kept { thread, processors, io_priority, timer_slack });
        Ok(())
    })?;
    fs::write(images.join(FILE), serde_json::to_vec(&kept)?)
}

/// Sets the recorded scheduling attributes of a restored tree's threads.
///
/// # Errors
/// If an attribute cannot be set, with its name and the thread.
fn set(images: &Path, tree: &[i32]) -> io::Result<()> {
    let all: Vec<Kept> = serde_json::from_slice(&fs::read(images.join(FILE))?)?;
    let all: HashMap<_, _> = all.into_iter().map(|kept| (kept.thread, kept)).collect();
    task::for_each_thread(tree, |tid, thread| all.get(&thread).map_or(Ok(()), |kept| kept.give(tid)))
}

impl Kept {
    fn give(&self, tid: i32) -> io::Result<()> {
        if let Some(wanted) = &self.processors {
            set_processors(tid, wanted).map_err(|error| self.not_set("processors", &error))?;
        }
        if io_priority(tid)? != self.io_priority {
            set_io_priority(tid, self.io_priority).map_err(|error| self.not_set("I/O priority", &error))?;
        }
        match self.timer_slack {
            Some(wanted) if timer_slack(tid)? != wanted => {
                fs::write(timer_slack_file(tid), wanted.to_string())
                    .map_err(|error| self.not_set("timer slack", &error))
            }
            _ => Ok(()),
        }
    }

    fn not_set(&self, what: &str, error: &io::Error) -> io::Error {
        io::Error::new(error.kind(), format!("cannot set the {what} of thread {}: {error}", self.thread))
    }
}

/// The mask of the processors on which a thread may run; TID 0 is the caller.
fn processors(tid: i32) -> io::Result<Vec<u64>> {
    let mut mask = vec![0_u64; PROCESSORS_MAX / 64];
    // SAFETY: the kernel writes at most as many bytes as said into `mask`, which is live.
    let length = checked(unsafe {
        libc::syscall(libc::SYS_sched_getaffinity, tid, size_of_val(&mask[..]), mask.as_mut_ptr())
    })?;
    mask.truncate(length as usize / size_of::<u64>());
    Ok(mask)
}

/// Sets the mask. The kernel ignores processors that this host does not have. A thread that would have none may run on all.
fn set_processors(tid: i32, mask: &[u64]) -> io::Result<()> {
    // SAFETY: `mask` is live and as long as said.
    let set =
        checked(unsafe { libc::syscall(libc::SYS_sched_setaffinity, tid, size_of_val(mask), mask.as_ptr()) });
    match set {
        Err(error) if error.raw_os_error() != Some(libc::EINVAL) => Err(error),
        _ => Ok(()),
    }
}

fn io_priority(tid: i32) -> io::Result<libc::c_long> {
    // SAFETY: no memory is passed.
    checked(unsafe { libc::syscall(libc::SYS_ioprio_get, ONE_THREAD, tid) })
}

fn set_io_priority(tid: i32, priority: libc::c_long) -> io::Result<()> {
    // SAFETY: no memory is passed.
    checked(unsafe { libc::syscall(libc::SYS_ioprio_set, ONE_THREAD, tid, priority) }).map(drop)
}

fn timer_slack(tid: i32) -> io::Result<u64> {
    let text = fs::read_to_string(timer_slack_file(tid))?;
    text.trim().parse().map_err(|_| io::ErrorKind::InvalidData.into())
}

/// The file of a thread: threads too have a directory in `/proc`.
fn timer_slack_file(tid: i32) -> String {
    format!("/proc/{tid}/timerslack_ns")
}

fn checked(result: libc::c_long) -> io::Result<libc::c_long> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A mask with only the highest possible processor, which no test host has.
    fn absent() -> Vec<u64> {
        let mut mask = vec![0; PROCESSORS_MAX / 64];
        mask[PROCESSORS_MAX / 64 - 1] = 1 << 63;
        mask
    }

    #[test]
    fn absent_processors_are_ignored() {
        let all = processors(0).unwrap();
        set_processors(0, &absent()).unwrap();
        assert_eq!(processors(0).unwrap(), all);
        let word = all.iter().position(|bits| *bits != 0).unwrap();
        let mut first = vec![0; all.len()];
        first[word] = 1 << all[word].trailing_zeros();
        let mut wanted = absent();
        wanted[word] = first[word];
        set_processors(0, &wanted).unwrap();
        assert_eq!(processors(0).unwrap(), first);
    }
}
