//! One dump at a time on a machine.
//!
//! For a moment, CRIU mounts the instance's `/proc` at `proc.crtools` in the working directory of its first process. Instances and
//! hosts of a lab share the machine's directories, so two dumps at the same time would collide there.

use std::fs::File;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use crate::engine::Watch;
use crate::error::{Doing, Error, Result};
use crate::instance::InstanceName;

/// How often to try for the turn. A dump takes many times as long.
const GLANCE: Duration = Duration::from_millis(2);

/// The right to dump, released when it is dropped or its holder dies.
pub struct Turn {
    _lock: File,
}

impl Turn {
    /// Waits for the turn of `name`. A dump takes a fraction of a second, and a larger one some seconds.
    pub fn take(name: &InstanceName, watch: &Watch<'_>) -> Result<Self> {
        Self::take_in(Path::new(fabric::DUMP_LOCK), name, watch)
    }

    fn take_in(directory: &Path, name: &InstanceName, watch: &Watch<'_>) -> Result<Self> {
        let end = Instant::now() + watch.timeout;
        loop {
            let lock = private::lock::try_take(directory);
            match lock.doing(|| format!("locking {}", directory.display()))? {
                Some(lock) => return Ok(Self { _lock: lock }),
                None if (watch.cancelled)() => return Err(Error::Cancelled),
                None if Instant::now() > end => {
                    return Err(Error::TimedOut { doing: "wait for other dumps", name: name.clone() });
                }
                None => thread::sleep(GLANCE),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn turns_exclude_each_other_and_leave_no_files() {
        let folder = std::env::temp_dir().join(format!("th-turn-{}", std::process::id()));
        let name = InstanceName::new("a").unwrap();
        let impatient = Watch { timeout: Duration::ZERO, ..Watch::QUIET };
        let first = Turn::take_in(&folder, &name, &impatient).unwrap();
        assert!(matches!(Turn::take_in(&folder, &name, &impatient), Err(Error::TimedOut { .. })));
        drop(first);
        drop(Turn::take_in(&folder, &name, &impatient).unwrap());
        // Fails if the folder is not empty.
        fs::remove_dir(&folder).unwrap();
    }
}
