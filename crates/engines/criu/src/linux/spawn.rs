//! The resources of the node that a started program inherits, or must not inherit.

use std::io;

use crate::instance::ResourceLimit;

/// This process's own limit of descriptors.
pub fn descriptor_limit() -> ResourceLimit {
    let mut both = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `both` is live and writable. It cannot fail for a limit that there is.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut both) };
    ResourceLimit { resource: libc::RLIMIT_NOFILE, soft: both.rlim_cur, hard: both.rlim_max }
}

/// Closes the node's resources in a forked process before it executes another program. Makes system calls only.
pub fn leave_the_node() -> io::Result<()> {
    // Descriptors that the node was started with do not belong to the instance, and CRIU may not be able to dump them.
    // SAFETY: no memory is passed.
    check(unsafe { libc::close_range(3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC as libc::c_int) })?;
    without_real_time(0)
}

/// Gives a process the normal scheduling policy; `pid` 0 is the calling process. Threads of the node may have a real-time policy
/// for a short blackout.
pub fn without_real_time(pid: i32) -> io::Result<()> {
    let none = libc::sched_param { sched_priority: 0 };
    // SAFETY: the parameter is live.
    check(unsafe { libc::sched_setscheduler(pid, libc::SCHED_OTHER, &raw const none) })
}

fn check(result: i32) -> io::Result<()> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
