//! Shared code of the end-to-end tests. The tests run unmodified programs on the user-space RDMA device,
//! and need root for network namespaces, and the outputs of `cargo build --workspace`.
//!
//! * [`artifacts`]: finds the built programs and libraries.
//! * [`program`]: runs a program in bounded time, and kills it when its test ends.
//! * [`common_files`]: folders that the hosts of a lab share.
//! * [`signal`]: a file that a program waits for.
//! * [`pair`]: two instances without a lab, on two hosts or on one.
//! * [`perftest`]: Debian's perftest, each program with each of its options.
//! * [`check`]: the checking workload between two places.
//! * [`mpi`]: Open MPI jobs in a lab, in instances that share the machine's files. [`job`]: in containers.
//! * [`hpcc`]: HPC Challenge, whose checks find wrong results.
//! * [`ucx`]: UCX's benchmark as installed.
//! * [`testlab`]: a lab for a test, with the user's command line.
//! * [`desk`]: a user's terminal, with a command of the command line at it.
//! * [`overlay`]: the overlay between a lab's hosts, and streams through it.
//! * [`pings`]: numbered requests to an address, of which each must be answered.
//! * [`asked`]: a station that is probed continuously while it moves.
//! * [`machines`]: machines joined by `transhume net up`.
//! * [`namespace`]: network namespaces of a test.
//! * [`interrupt`]: removes labs when their creator is interrupted.
//! * [`travel`]: programs whose instances move alternately.
//! * [`guest`]: a small guest for virtual machines. [`installed`]: one with Debian's programs.
//! * [`fault`]: faults in a lab, and their repair.
//! * [`kill_matrix`]: each part of a lab fails in each phase of a machine's move. [`vm_services`]: services in a machine that moves.

pub mod artifacts;
pub mod asked;
pub mod changing;
pub mod check;
pub mod common_files;
pub mod desk;
pub mod fault;
pub mod guest;
pub mod hpcc;
pub mod installed;
pub mod interrupt;
pub mod job;
pub mod kill_matrix;
pub mod machines;
pub mod mpi;
pub mod namespace;
pub mod overlay;
pub mod pair;
pub mod perftest;
pub mod pings;
pub mod program;
pub mod signal;
pub mod testlab;
pub mod travel;
pub mod ucx;
pub mod vm_services;

use test_support::machine::{self, Hold};

/// Waits while a test has the machine to itself, and then runs beside others. Most tests do.
///
/// # Panics
/// If the tests do not run as root.
#[must_use]
pub fn shared() -> Hold {
    assert_root();
    machine::shared()
}

/// Waits for all other tests to end, and keeps others from beginning: for tests that measure times, and for tests that
/// use something the machine has once, such as the turn to dump.
///
/// # Panics
/// If the tests do not run as root.
#[must_use]
pub fn alone() -> Hold {
    assert_root();
    machine::alone()
}

fn assert_root() {
    assert!(
        test_support::is_root(),
        "these tests make network namespaces: run them as root, as `make test` does"
    );
}
