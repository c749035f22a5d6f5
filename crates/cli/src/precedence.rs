//! Real-time priority of the daemons.
//!
//! Programs that use RDMA busy-poll, often on all processors of a host. A daemon sleeps except during moves, but each of its
//! steps, and of CRIU's, is part of an instance's blackout. A nice value does not help if the kernel first shares
//! processors between control groups, as for services, containers and sessions: a daemon then waited for
//! seconds. So daemons use a real-time policy; the kernel still reserves a part of each second for other processes.

/// Gives the calling thread, and threads and processes that it starts later, priority over all processes
/// without a real-time policy. Without the right to do so (`CAP_SYS_NICE`), the daemon is only slower.
pub fn take() {
    let lowest = libc::sched_param { sched_priority: 1 };
    // SAFETY: the parameters are live. A refusal changes nothing.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_RR, &raw const lowest) };
}
