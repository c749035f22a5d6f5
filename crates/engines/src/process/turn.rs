//! One dump at a time on a machine.
//!
//! For a moment CRIU mounts the instance's `/proc` at `proc.crtools` in the working directory of its first
//! process. Hosts of a lab and instances share the machine's directories, so that two dumps at a time
//! would trip over each other there.

use std::fs::{self, File, TryLockError};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use crate::engine::Watch;
use crate::error::{Doing, Error, Result};
use crate::instance::InstanceName;

/// The directory that is locked, shared by all nodes on the machine: no file is left behind.
const LOCK: &str = "/run/transhume";

/// How often it is looked whether it is our turn. A dump takes many times as long.
const GLANCE: Duration = Duration::from_millis(2);

/// The right to dump, given back when it is dropped or its holder dies.
pub struct Turn {
    _lock: File,
}

impl Turn {
    /// Waits for the turn of `name`. A dump takes a fraction of a second, and a larger one some seconds.
    pub fn take(name: &InstanceName, watch: &Watch<'_>) -> Result<Self> {
        Self::take_in(Path::new(LOCK), name, watch)
    }

    fn take_in(directory: &Path, name: &InstanceName, watch: &Watch<'_>) -> Result<Self> {
        let end = Instant::now() + watch.timeout;
        let open = || open(directory).doing(|| format!("opening {}", directory.display()));
        let mut lock = open()?;
        loop {
            match lock.try_lock() {
                Ok(()) if is_still(&lock, directory) => return Ok(Self { _lock: lock }),
                // The end of a lab has removed it.
                Ok(()) => lock = open()?,
                Err(TryLockError::Error(error)) => {
                    return Err(error).doing(|| format!("locking {}", directory.display()));
                }
                Err(TryLockError::WouldBlock) if (watch.cancelled)() => return Err(Error::Cancelled),
                Err(TryLockError::WouldBlock) if Instant::now() > end => {
                    return Err(Error::TimedOut { doing: "wait for other dumps", name: name.clone() });
                }
                Err(TryLockError::WouldBlock) => thread::sleep(GLANCE),
            }
        }
    }
}

fn open(directory: &Path) -> std::io::Result<File> {
    fs::create_dir_all(directory)?;
    File::open(directory)
}

/// Whether `lock` is what others find at `directory`.
fn is_still(lock: &File, directory: &Path) -> bool {
    let same =
        |(one, other): (fs::Metadata, fs::Metadata)| (one.dev(), one.ino()) == (other.dev(), other.ino());
    lock.metadata().ok().zip(fs::metadata(directory).ok()).is_some_and(same)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_has_its_turn_at_a_time_and_nothing_is_left() {
        let folder = std::env::temp_dir().join(format!("th-turn-{}", std::process::id()));
        let name = InstanceName::new("a").unwrap();
        let impatient = Watch { timeout: Duration::ZERO, ..Watch::QUIET };
        let first = Turn::take_in(&folder, &name, &impatient).unwrap();
        assert!(matches!(Turn::take_in(&folder, &name, &impatient), Err(Error::TimedOut { .. })));
        drop(first);
        drop(Turn::take_in(&folder, &name, &impatient).unwrap());
        // Fails if anything is in it.
        fs::remove_dir(&folder).unwrap();
    }

    #[test]
    fn a_directory_that_was_removed_is_nobodys_lock() {
        let folder = std::env::temp_dir().join(format!("th-turn-gone-{}", std::process::id()));
        let lock = open(&folder).unwrap();
        assert!(is_still(&lock, &folder));
        fs::remove_dir(&folder).unwrap();
        assert!(!is_still(&lock, &folder));
    }
}
