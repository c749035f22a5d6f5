//! The engine's durable record of an instance, by which a restarted node finds it.
//!
//! A record names processes with their start times, so a reused PID is not mistaken for them. It is replaced as a whole, and deleted
//! last.

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
    /// What the instance is made of.
    pub spec: InstanceSpec,
    /// What it does.
    pub state: State,
    /// A held tree may have been let go already.
    pub releasing: bool,
    /// Its first process.
    pub first: Option<TaskId>,
    /// The CRIU that works on it.
    pub criu: Option<TaskId>,
    /// Where its images are or will be.
    pub images: PathBuf,
    /// Processes that were stopped before the dump, and stay so.
    pub paused: Vec<i32>,
    /// `SO_REUSEADDR` of its TCP sockets, for a rollback.
    pub reuse: HashMap<u64, i32>,
    /// What it sees of the host, if it is a container: another version of the node would give it something else.
    #[serde(default)]
    pub binds: Option<Vec<Bind>>,
    /// A part of its memory will come after it.
    #[serde(default)]
    pub lazily: bool,
    /// Who gives it what it lacks of that.
    #[serde(default)]
    pub pager: Option<PagerId>,
}

impl Record {
    /// Raised when the layout changes its meaning.
    pub const VERSION: u32 = 2;
}

/// How the file of a staged record ends.
const NEXT: &str = "next";

/// The first fields of records of all versions.
#[derive(Deserialize)]
struct Layout {
    version: u32,
}

/// The directory of all records.
pub struct Records(PathBuf);

impl Records {
    /// Makes the directory if it is not there. It and the records in it are their owner's alone.
    pub fn open(directory: PathBuf) -> Result<Self> {
        private::tree(&directory).doing(|| format!("creating {}", directory.display()))?;
        Ok(Self(directory))
    }

    /// Writes a record in the place of the former one.
    pub fn save(&self, record: &Record) -> Result<()> {
        let path = self.path(&record.spec.name);
        self.replace(&path, record).doing(|| format!("writing {}", path.display()))
    }

    /// Writes the record that shall take the place of the present one later, when there may be no more room.
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

/// A record that is written already, and not yet in its place.
pub struct Staged {
    next: PathBuf,
    path: PathBuf,
}

impl Staged {
    /// Puts it in its place, which needs no room.
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
