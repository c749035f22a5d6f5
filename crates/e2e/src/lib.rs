//! What the end-to-end tests share. They run unmodified programs on the user-space RDMA device,
//! need root for network namespaces, and what `cargo build --workspace` makes.
//!
//! * [`artifacts`]: where the built programs and the library are.
//! * [`program`]: a program that runs in bounded time and is gone when its test ends.
//! * [`signal`]: a file for which a program waits.
//! * [`pair`]: two instances without a lab, on two hosts or on one.
//! * [`perftest`]: Debian's perftest, each program with each option that it has.
//! * [`check`]: the checking workload between two places.
//! * [`mpi`]: Open MPI jobs in a lab, in instances that share the machine's files. [`job`]: in containers.
//! * [`ucx`]: UCX's benchmark as it is installed.
//! * [`testlab`]: a lab of its own for a test, with the command line that people use.
//! * [`overlay`]: the overlay between a lab's hosts, and streams through it.
//! * [`asked`]: a station that is asked all the time, while it moves.
//! * [`machines`]: machines that are joined by `transhume net up`.
//! * [`namespace`]: network namespaces of a test's own.
//! * [`interrupt`]: what becomes of labs when their maker is interrupted.
//! * [`travel`]: programs whose instances take turns in moving.
//! * [`fault`]: what goes wrong in a lab, and how it is mended.

pub mod artifacts;
pub mod asked;
pub mod changing;
pub mod check;
pub mod fault;
pub mod interrupt;
pub mod job;
pub mod machines;
pub mod mpi;
pub mod namespace;
pub mod overlay;
pub mod pair;
pub mod perftest;
pub mod program;
pub mod signal;
pub mod testlab;
pub mod travel;
pub mod ucx;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Waits for the other tests of this process to end: programs that poll take a processor each, and
/// would measure each other.
///
/// # Panics
/// If the tests do not run as root.
pub fn alone() -> MutexGuard<'static, ()> {
    static RUNNING: Mutex<()> = Mutex::new(());
    // SAFETY: the call has no preconditions.
    let root = unsafe { libc::geteuid() } == 0;
    assert!(root, "these tests make network namespaces: run them as root, as `make test` does");
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}
