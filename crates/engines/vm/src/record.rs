//! The engine's durable record of a machine, with which a restarted node finds it.
//!
//! It names the first process with its start time, so a reused PID is not mistaken for it. It is replaced as a whole, and deleted last.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use engine_api::{Result, State};
use engine_criu::shared::{TaskId, absent_is_fine};
use instance::{Accelerator, DiskFormat, InstanceName, InstanceSpec};
use serde::{Deserialize, Serialize};

use crate::error::Doing;

/// A machine on this host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The record's layout: [`Record::VERSION`].
    pub version: u32,
    /// Its specification.
    pub spec: InstanceSpec,
    /// Its hardware, which no move changes.
    pub hardware: Hardware,
    /// Its state.
    pub state: State,
    /// Its first process, the parent of the emulator.
    pub first: Option<TaskId>,
    /// Files of local disks that this host has made for a machine that has not run here yet. They go if it does not come.
    pub made: Vec<PathBuf>,
}

/// What a guest sees of its machine, and every emulator that continues it must offer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hardware {
    /// The machine type with its version, such as `pc-q35-7.2`.
    pub machine: String,
    /// The CPU model.
    pub cpu_model: String,
    /// How its processors are executed. QEMU cannot continue what another way has begun.
    pub accelerator: Accelerator,
    /// The formats of its disks, in order.
    pub disks: Vec<DiskFormat>,
    /// The size of its seed disk, in bytes.
    #[serde(default)]
    pub seed: Option<u64>,
}

impl Record {
    /// Raised when the meaning of the layout changes.
    pub const VERSION: u32 = 3;
}

/// The first fields of records of all versions.
#[derive(Deserialize)]
struct Layout {
    version: u32,
}

/// The directory of all records, and of what belongs to them.
#[derive(Debug)]
pub struct Records(PathBuf);

impl Records {
    /// Makes the directory if it is missing. Only its owner can read it.
    pub fn open(directory: PathBuf) -> Result<Self> {
        private::tree(&directory).doing(|| format!("creating {}", directory.display()))?;
        Ok(Self(directory))
    }

    /// The directory.
    pub fn directory(&self) -> &Path {
        &self.0
    }

    /// Writes a record in place of the former one.
    pub fn save(&self, record: &Record) -> Result<()> {
        let path = self.file(&record.spec.name, RECORD);
        let replaced = serde_json::to_vec(record).map_err(io::Error::from);
        replaced
            .and_then(|bytes| private::replace(&path, &bytes))
            .doing(|| format!("writing {}", path.display()))
    }

    /// Deletes a record and the files beside it; no error if there are none.
    pub fn forget(&self, name: &InstanceName) -> Result<()> {
        for ending in [SOCKET, PORT, NBD, DISPLAY, ERRORS, CONSOLE, KEYS, SEED, RECORD] {
            let path = self.file(name, ending);
            absent_is_fine(fs::remove_file(&path)).doing(|| format!("deleting {}", path.display()))?;
        }
        Ok(())
    }

    /// All records. One that cannot be read is an error: it may name a machine that runs.
    pub fn all(&self) -> Result<Vec<Record>> {
        let entries = fs::read_dir(&self.0).doing(|| format!("reading {}", self.0.display()))?;
        let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
        let records = paths.filter(|path| path.extension().is_some_and(|ending| ending == RECORD));
        records.map(|path| read(&path).doing(|| format!("reading {}", path.display()))).collect()
    }

    /// A file of a machine, by its ending.
    pub fn file(&self, name: &InstanceName, ending: &str) -> PathBuf {
        self.0.join(file_name(name, ending))
    }
}

/// The ending of a record's file name.
const RECORD: &str = "json";
/// The ending of the emulator's QMP socket.
pub const SOCKET: &str = "qmp";
/// The ending of the emulator's socket for the port to the agent.
pub const PORT: &str = "guest";
/// The ending of the emulator's socket for local disks that come.
pub const NBD: &str = "nbd";
/// The ending of the emulator's socket for the display.
pub const DISPLAY: &str = "vnc";
/// The ending of the emulator's error messages.
pub const ERRORS: &str = "errors";
/// The ending of the console's output that has come from the source.
pub const CONSOLE: &str = "console";
/// The ending of the console's input that the emulator at the source has not read.
pub const KEYS: &str = "keys";
/// The ending of the memory of a machine that is saved to a checkpoint, or comes from one.
pub const MEMORY: &str = "memory";

/// The ending of the image of its seed disk.
pub const SEED: &str = "seed";

/// The name of a machine's file in the directory.
pub fn file_name(name: &InstanceName, ending: &str) -> String {
    format!("{name}.{ending}")
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::tests::spec;

    fn record() -> Record {
        let hardware = Hardware {
            machine: "pc-q35-7.2".into(),
            cpu_model: "qemu64".into(),
            accelerator: Accelerator::Tcg,
            disks: Vec::new(),
            seed: None,
        };
        let first = Some(TaskId { pid: 7, started: 9 });
        Record {
            version: Record::VERSION,
            spec: spec(),
            hardware,
            state: State::Running,
            first,
            made: Vec::new(),
        }
    }

    #[test]
    fn the_next_node_reads_the_same_record() {
        let directory = tempfile::tempdir().unwrap();
        let records = Records::open(directory.path().join("vm")).unwrap();
        records.save(&record()).unwrap();
        let again = Records::open(directory.path().join("vm")).unwrap();
        assert_eq!(again.all().unwrap(), [record()]);
        again.forget(&record().spec.name).unwrap();
        assert_eq!(records.all().unwrap(), []);
    }

    #[test]
    fn a_record_of_another_release_is_refused_with_the_remedy() {
        let directory = tempfile::tempdir().unwrap();
        let records = Records::open(directory.path().to_owned()).unwrap();
        fs::write(records.file(&record().spec.name, RECORD), "{\"version\": 9}").unwrap();
        let refusal = records.all().unwrap_err().to_string();
        assert!(refusal.contains("version 9") && refusal.contains("`transhume run`"), "{refusal}");
    }
}
