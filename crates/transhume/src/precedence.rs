//! The daemons' precedence over programs.
//!
//! Programs that use RDMA spin, often on all processors of a host. A daemon sleeps but for moves, and each of its
//! steps, and of CRIU's, is part of somebody's blackout. A nice value does not help where the kernel shares
//! processors among groups first, as it does with services, containers and sessions: there a daemon waited for
//! seconds. So daemons run under a real-time policy; the kernel still keeps a part of each second for all others.

/// Gives the calling thread, and threads and processes that it starts from now on, precedence over all programs
/// that have no real-time policy. Without the right to do so (`CAP_SYS_NICE`) a daemon is only slower.
pub fn take() {
    let lowest = libc::sched_param { sched_priority: 1 };
    // SAFETY: the parameters are live. A refusal changes nothing.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_RR, &raw const lowest) };
}
