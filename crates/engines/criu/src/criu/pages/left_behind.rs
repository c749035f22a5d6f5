//! Post-copy at the source: the memory of a stopped instance that already runs at its destination.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use crate::linux::task::{self, Task};

/// Access to the memory of the stopped processes.
pub struct LeftBehind {
    first: Task,
    /// The memory of each process, by its PID in the instance.
    memory: BTreeMap<u32, File>,
}

impl LeftBehind {
    /// The memory of the stopped processes below `first`.
    pub(crate) fn open(first: Task) -> io::Result<Self> {
        let mut memory = BTreeMap::new();
        for pid in task::tree(first.id().pid)? {
            let number = u32::try_from(task::number_inside(pid)?).map_err(|_| io::ErrorKind::InvalidData)?;
            match File::open(format!("/proc/{pid}/mem")) {
                // It has ended, and was not reaped: it has no memory.
                Err(error) if task::has_ended(&error) => {}
                file => drop(memory.insert(number, file?)),
            }
        }
        Ok(Self { first, memory })
    }

    /// Whether the processes have ended.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.first.ended_within(Duration::ZERO)
    }

    /// Reads memory of the process that has this PID in the instance.
    ///
    /// # Errors
    /// If the process does not exist, has no memory there, or has ended.
    pub fn read(&self, pid: u32, address: u64, into: &mut [u8]) -> io::Result<()> {
        let memory = self.memory.get(&pid).ok_or(io::ErrorKind::NotFound)?;
        memory.read_exact_at(into, address)
    }
}
