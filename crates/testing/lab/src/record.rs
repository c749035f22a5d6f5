//! The record of a lab, written before its resources are created.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::error::Doing;
use crate::layout::Layout;
use crate::{Error, LabName, Result, run_folder};

/// How long to wait for a concurrent change of a lab, and how often to check.
const LOCK_LIMIT: Duration = Duration::from_secs(2);
const LOCK_INTERVAL: Duration = Duration::from_millis(5);

/// The facts about a lab besides its name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The value of [`crate::mark::VARIABLE`] for its processes.
    pub id: String,
    /// Number of hosts.
    pub hosts: u16,
    /// The `transhume` binary that its daemons run.
    pub program: PathBuf,
}

impl Record {
    /// A record with a unique id.
    ///
    /// # Errors
    /// The errors of reading the kernel's random numbers.
    pub fn new(hosts: u16, program: &Path) -> Result<Self> {
        let source = "/proc/sys/kernel/random/uuid";
        let id = fs::read_to_string(source).doing(|| format!("cannot read {source}"))?;
        Ok(Self { id: id.trim().to_owned(), hosts, program: program.to_owned() })
    }

    /// The record of a lab, or `None` if none is readable.
    #[must_use]
    pub fn read(layout: &Layout) -> Option<Self> {
        serde_json::from_slice(&fs::read(layout.record()).ok()?).ok()
    }

    /// Writes the record.
    ///
    /// # Errors
    /// The errors of writing a file.
    pub fn write(&self, layout: &Layout) -> Result<()> {
        write_json(&layout.record(), self)
    }
}

/// Writes `value` atomically: readers see either the old or the new file.
///
/// # Errors
/// The errors of writing and renaming a file.
pub fn write_json(path: &Path, value: &impl Serialize) -> Result<()> {
    let new = private::fresh_for(path);
    let text = serde_json::to_vec(value).map_err(std::io::Error::from);
    text.and_then(|text| fs::write(&new, text))
        .and_then(|()| fs::rename(&new, path))
        .doing(|| format!("cannot write {}", path.display()))
}

/// Exclusive access to a lab, held until this is dropped or its process ends.
#[derive(Debug)]
pub struct Lock {
    _folder: File,
}

impl Lock {
    /// Creates the lab's directory, which other users cannot open and so cannot lock, and locks it.
    ///
    /// # Errors
    /// [`Error::AlreadyUp`] if the directory exists.
    pub fn create(name: &LabName, layout: &Layout) -> Result<Self> {
        let root = layout.root();
        match run_folder::add(root) {
            Ok(()) => Self::take(name, layout),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                Err(Error::AlreadyUp { name: name.to_string() })
            }
            Err(source) => Err(Error::Io { what: format!("cannot create {}", root.display()), source }),
        }
    }

    /// Locks an existing lab, and waits a little for a concurrent change: after
    /// a command was killed, its child may hold the lock until `execve`.
    ///
    /// # Errors
    /// [`Error::NoSuchLab`], [`Error::Busy`].
    pub fn take(name: &LabName, layout: &Layout) -> Result<Self> {
        let folder =
            File::open(layout.root()).map_err(|_missing| Error::NoSuchLab { name: name.to_string() })?;
        let deadline = Instant::now() + LOCK_LIMIT;
        while flock(&folder, FlockOperation::NonBlockingLockExclusive).is_err() {
            if Instant::now() > deadline {
                return Err(Error::Busy { name: name.to_string() });
            }
            thread::sleep(LOCK_INTERVAL);
        }
        Ok(Self { _folder: folder })
    }

    /// Like [`Self::take`]; `None` if the lab does not exist.
    ///
    /// # Errors
    /// [`Error::Busy`].
    pub fn take_if_there(name: &LabName, layout: &Layout) -> Result<Option<Self>> {
        match Self::take(name, layout) {
            Err(Error::NoSuchLab { .. }) => Ok(None),
            lock => lock.map(Some),
        }
    }
}
