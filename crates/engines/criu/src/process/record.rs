//! The engine's durable record of an instance, with which a restarted node finds it.
//!
//! A record names processes with their start times, so a reused PID is not mistaken for them. It is replaced as a whole, and
//! deleted last.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::criu::paging::PagerId;
use crate::engine::State;
use crate::error::{Doing, Result};
use crate::instance::{InstanceName, InstanceSpec};
use crate::linux::files::absent_is_fine;
use crate::linux::task::TaskId;
use instance::container::Bind;

/// An instance on this host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The record's layout: [`Record::VERSION`].
    pub version: u32,
    /// Its specification.
    pub spec: InstanceSpec,
    /// Its state.
    pub state: State,
    /// Whether the release of a held tree may have begun.
    pub releasing: bool,
    /// Its first process.
    pub first: Option<TaskId>,
    /// The CRIU that works on it.
    pub criu: Option<TaskId>,
    /// The directory of its images.
    pub images: PathBuf,
    /// Processes that were stopped before the dump, and stay so.
    pub paused: Vec<i32>,
    /// `SO_REUSEADDR` of its TCP sockets, for a rollback.
    pub reuse: HashMap<u64, i32>,
    /// The paths that a container sees of its host: another release of the node may provide different ones.
    #[serde(default)]
    pub binds: Option<Vec<Bind>>,
    /// Whether a part of its memory follows the instance (post-copy).
    #[serde(default)]
    pub lazily: bool,
    /// The pager that supplies this memory.
    #[serde(default)]
    pub pager: Option<PagerId>,
}

impl Record {
    /// Raised when the meaning of the layout changes.
    pub const VERSION: u32 = 2;
}

/// The ending of a staged record's file name.
const NEXT: &str = "next";

/// The first fields of records of all versions.
#[derive(Deserialize)]
struct Layout {
    version: u32,
}

/// The directory of all records.
pub struct Records(PathBuf);

impl Records {
    /// Makes the directory if it is missing. Only its owner can read it and the records in it.
    pub fn open(directory: PathBuf) -> Result<Self> {
        private::tree(&directory).doing(|| format!("creating {}", directory.display()))?;
        Ok(Self(directory))
    }

    /// Writes a record in place of the former one.
    pub fn save(&self, record: &Record) -> Result<()> {
        let path = self.path(&record.spec.name);
        self.replace(&path, record).doing(|| format!("writing {}", path.display()))
    }

    /// Writes a record that later replaces the present one, when there may be no room any more.
    pub fn stage(&self, record: &Record) -> Result<Staged> {
        let path = self.path(&record.spec.name);
        let staged = Staged { next: path.with_extension(NEXT), path };
        self.replace(&staged.next, record).doing(|| format!("writing {}", staged.next.display()))?;
        Ok(staged)
    }

    fn replace(&self, path: &Path, record: &Record) -> io::Result<()> {
        private::replace(path, &serde_json::to_vec(record)?)
    }

    /// Deletes a record; no error if there is none.
    pub fn forget(&self, name: &InstanceName) -> Result<()> {
        let path = self.path(name);
        for path in [path.with_extension(NEXT), path] {
            absent_is_fine(fs::remove_file(&path)).doing(|| format!("deleting {}", path.display()))?;
        }
        Ok(())
    }

    /// All records. One that cannot be read is an error: it may name processes that run.
    pub fn all(&self) -> Result<Vec<Record>> {
        let entries = fs::read_dir(&self.0).doing(|| format!("reading {}", self.0.display()))?;
        let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
        let records = paths.filter(|path| path.extension().is_some_and(|suffix| suffix == "json"));
        records.map(|path| read(&path).doing(|| format!("reading {}", path.display()))).collect()
    }

    fn path(&self, name: &InstanceName) -> PathBuf {
        self.0.join(format!("{name}.json"))
    }
}

/// A record that is written, but not in its place yet.
pub struct Staged {
    next: PathBuf,
    path: PathBuf,
}

impl Staged {
    /// Moves the record to its place, which needs no room.
    pub fn commit(self) -> Result<()> {
        fs::rename(&self.next, &self.path).doing(|| format!("replacing {}", self.path.display()))
    }
}

fn read(path: &Path) -> io::Result<Record> {
    let bytes = fs::read(path)?;
    let Layout { version } = serde_json::from_slice(&bytes)?;
    if version != Record::VERSION {
        let what = format!(
            "another release wrote it (version {version}, and this one reads {}): end the instance with that release, and \
            start it again with `transhume run`",
            Record::VERSION
        );
        return Err(io::Error::other(what));
    }
    Ok(serde_json::from_slice(&bytes)?)
}
