//! One dump at a time on a machine.
//!
//! For a moment CRIU mounts the instance's `/proc` at `proc.crtools` in the working directory of its first
//! process. Hosts of a lab and instances share the machine's directories, so that two dumps at a time
//! would trip over each other there.

use std::fs::{self, File, TryLockError};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use crate::engine::Watch;
use crate::error::{Doing, Error, Result};
use crate::instance::InstanceName;

/// Shared by all nodes on the machine.
const LOCK: &str = "/run/transhume/dump.lock";

/// How often it is looked whether it is our turn. A dump takes many times as long.
const GLANCE: Duration = Duration::from_millis(2);

/// The right to dump, given back when it is dropped or its holder dies.
pub struct Turn {
    _lock: File,
}

impl Turn {
    /// Waits for the turn of `name`. A dump takes a fraction of a second, and a larger one some seconds.
    pub fn take(name: &InstanceName, watch: &Watch<'_>) -> Result<Self> {
        let end = Instant::now() + watch.timeout;
        let lock = open(Path::new(LOCK)).doing(|| format!("opening {LOCK}"))?;
        loop {
            match lock.try_lock() {
                Ok(()) => return Ok(Self { _lock: lock }),
                Err(TryLockError::Error(error)) => return Err(error).doing(|| format!("locking {LOCK}")),
                Err(TryLockError::WouldBlock) if (watch.cancelled)() => return Err(Error::Cancelled),
                Err(TryLockError::WouldBlock) if Instant::now() > end => {
                    return Err(Error::TimedOut { doing: "wait for other dumps", name: name.clone() });
                }
                Err(TryLockError::WouldBlock) => thread::sleep(GLANCE),
            }
        }
    }
}

fn open(path: &Path) -> std::io::Result<File> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    File::options().create(true).append(true).open(path)
}
