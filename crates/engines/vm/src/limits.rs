//! The cgroup of a machine, with init and the emulator in it.
//!
//! It is named after the machine's place in the state directory, so a restarted node finds it. It exists as long as the machine's record.

use std::fs::File;
use std::io;
use std::path::Path;

use engine_criu::shared::Shortage;
use engine_criu::shared::cgroup::{self, Limits};
use instance::{InstanceName, VmSpec};

use crate::needs;

/// Processes and threads beside those for the guest's processors: init, and QEMU's threads for IO, of which it starts up to 64.
const PIDS: u32 = 128;

/// Makes the cgroup of a machine, and opens the files with which its first process joins it. One processor more than the guest's own
/// is for the emulator's other threads: with less, a move would slow its guest down.
///
/// # Errors
/// Errors of the kernel.
pub fn make(directory: &Path, name: &InstanceName, vm: &VmSpec) -> io::Result<Vec<File>> {
    let limits = Limits { memory: needs::memory(vm), cpus: vm.cpus + 1, pids: vm.cpus + PIDS };
    cgroup::make(&cgroup_of(directory, name), limits)
}

/// Removes the cgroup of a machine, if there is one.
///
/// # Errors
/// Errors of the kernel.
pub fn remove(directory: &Path, name: &InstanceName) -> io::Result<()> {
    cgroup::remove(&cgroup_of(directory, name))
}

/// The out-of-memory kills in the cgroup of a machine.
pub fn shortage(directory: &Path, name: &InstanceName) -> Shortage {
    cgroup::shortage(&cgroup_of(directory, name)).unwrap_or_default()
}

fn cgroup_of(directory: &Path, name: &InstanceName) -> String {
    fabric::cgroup_name(&directory.join(name.as_str()))
}
