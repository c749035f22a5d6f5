//! One dump at a time on a machine.
//!
//! For a moment CRIU mounts the instance's `/proc` at `proc.crtools` in the working directory of its first
//! process. Hosts of a lab and instances share the machine's directories, so that two dumps at a time
//! would trip over each other there.

use std::fs::{self, File};
use std::io;
use std::path::Path;

/// Shared by all nodes on the machine.
const LOCK: &str = "/run/transhume/dump.lock";

/// The right to dump, given back when it is dropped or its holder dies.
pub struct Turn {
    _lock: File,
}

impl Turn {
    /// Waits for the turn; a dump takes a fraction of a second, and is ended if it hangs.
    pub fn take() -> io::Result<Self> {
        let path = Path::new(LOCK);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        let lock = File::options().create(true).append(true).open(path)?;
        lock.lock()?;
        Ok(Self { _lock: lock })
    }
}
