use std::fs::{self, File};
use std::io;
use std::os::fd::BorrowedFd;
use std::os::linux::fs::MetadataExt;

use serde::{Deserialize, Serialize};

/// Identifies a namespace of any kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Namespace {
    device: u64,
    inode: u64,
}

impl Namespace {
    /// The namespace that `descriptor` refers to.
    ///
    /// # Errors
    /// Errors of `dup` and `fstat`.
    pub fn of(descriptor: BorrowedFd<'_>) -> io::Result<Self> {
        Ok(Self::from_metadata(&File::from(descriptor.try_clone_to_owned()?).metadata()?))
    }

    /// The namespace of kind `kind` (`net`, `pid`, …) in which process `pid` is.
    ///
    /// # Errors
    /// `NotFound` if there is no such process.
    pub fn of_process(pid: i32, kind: &str) -> io::Result<Self> {
        Ok(Self::from_metadata(&fs::metadata(format!("/proc/{pid}/ns/{kind}"))?))
    }

    fn from_metadata(metadata: &fs::Metadata) -> Self {
        Self { device: metadata.st_dev(), inode: metadata.st_ino() }
    }
}

/// The PID of process `pid` in its own PID namespace, whose first process is 1.
///
/// # Errors
/// `NotFound` if the process does not exist.
pub fn own_number(pid: i32) -> io::Result<i32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    let number = numbers.and_then(|numbers| numbers.split_whitespace().last()?.parse().ok());
    number.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn the_namespace_of_a_process_equals_that_of_its_proc_file() {
        let own = File::open("/proc/self/ns/net").unwrap();
        let pid = std::process::id().cast_signed();
        assert_eq!(Namespace::of(own.as_fd()).unwrap(), Namespace::of_process(pid, "net").unwrap());
        assert_ne!(Namespace::of(own.as_fd()).unwrap(), Namespace::of_process(pid, "pid").unwrap());
        assert_eq!(own_number(pid).unwrap(), pid);
    }
}
