//! The node's files beside its store, with which it finds its instances again after a restart.
//!
//! | file in `instances/VID/` | |
//! |---|---|
//! | `blueprint` | the instance's blueprint, as received |
//! | `carried` | the state of its last host's broker when it left there |
//! | `roster` | the processes that have a seat in it |
//! | `exit` | how its command ended |
//!
//! Each is replaced as a whole. They outlive the daemon; what must outlive the machine is in the store.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use fabric::Vid;
use instance::{Carried, Roster};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A node's files.
#[derive(Debug)]
pub struct StateFiles {
    root: PathBuf,
}

impl StateFiles {
    /// The files under `state`, which is made if it is missing. Only its owner can read it.
    pub fn open(state: &Path) -> io::Result<Self> {
        let root = state.join("instances");
        private::directory(state)?;
        private::tree(&root)?;
        Ok(Self { root })
    }

    pub fn write_blueprint(&self, vid: Vid, blueprint: &[u8]) -> io::Result<()> {
        self.write(vid, "blueprint", blueprint)
    }

    pub fn blueprint(&self, vid: Vid) -> io::Result<Vec<u8>> {
        fs::read(self.folder(vid).join("blueprint"))
    }

    pub fn write_carried(&self, vid: Vid, carried: &Carried) -> io::Result<()> {
        self.write(vid, "carried", &encode(carried)?)?;
        self.write_roster(vid, &carried.roster)
    }

    pub fn write_roster(&self, vid: Vid, roster: &Roster) -> io::Result<()> {
        self.write(vid, "roster", &encode(roster)?)
    }

    pub fn write_exit(&self, vid: Vid, code: i32) -> io::Result<()> {
        self.write(vid, "exit", &encode(&code)?)
    }

    /// The state that a broker needs to take the instance over. Missing parts have their initial values.
    pub fn carried(&self, vid: Vid) -> Carried {
        let carried: Carried = self.read(vid, "carried").unwrap_or_default();
        let roster = self.read(vid, "roster").unwrap_or(carried.roster);
        let exit = self.read(vid, "exit").or(carried.exit);
        Carried { roster, exit, output: carried.output }
    }

    /// Records that a node has died here with unrecorded output of the instance's command.
    pub fn note_death(&self, vid: Vid) -> io::Result<()> {
        let carried = self.carried(vid);
        self.write_carried(vid, &Carried { output: carried.output.after_death(), ..carried })
    }

    /// Forgets the instance.
    pub fn remove(&self, vid: Vid) {
        if let Err(error) = fs::remove_dir_all(self.folder(vid))
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!("{}: {error}", self.folder(vid).display());
        }
    }

    fn folder(&self, vid: Vid) -> PathBuf {
        self.root.join(vid.lid().to_string())
    }

    fn read<T: DeserializeOwned>(&self, vid: Vid, name: &str) -> Option<T> {
        let bytes = fs::read(self.folder(vid).join(name)).ok()?;
        postcard::from_bytes(&bytes).ok()
    }

    fn write(&self, vid: Vid, name: &str, bytes: &[u8]) -> io::Result<()> {
        let folder = self.folder(vid);
        let file = folder.join(name);
        let written = private::directory(&folder).and_then(|()| private::replace(&file, bytes));
        written.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", file.display())))
    }
}

fn encode<T: Serialize>(value: &T) -> io::Result<Vec<u8>> {
    postcard::to_stdvec(value).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use instance::Output;

    use super::*;

    #[test]
    fn only_the_owner_can_read_a_blueprint_even_of_an_earlier_node() {
        let directory = tempfile::tempdir().unwrap();
        let old = directory.path().join("instances/9/blueprint");
        fs::create_dir_all(old.parent().unwrap()).unwrap();
        fs::write(&old, "SECRET=x").unwrap();
        let files = StateFiles::open(directory.path()).unwrap();
        files.write_blueprint(Vid::new(7).unwrap(), b"SECRET=x").unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let fresh = directory.path().join("instances/7/blueprint");
        assert_eq!(
            [&old, &fresh].map(|file| (mode(file), mode(file.parent().unwrap()))),
            [(0o600, 0o700); 2]
        );
    }

    #[test]
    fn a_failed_write_names_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let files = StateFiles::open(directory.path()).unwrap();
        fs::write(directory.path().join("instances/7"), "in the way").unwrap();
        let error = files.write_blueprint(Vid::new(7).unwrap(), b"").unwrap_err();
        assert!(error.to_string().contains("instances/7/blueprint: "), "{error}");
    }

    #[test]
    fn state_newer_than_the_move_counts() {
        let directory = tempfile::tempdir().unwrap();
        let files = StateFiles::open(directory.path()).unwrap();
        let vid = Vid::new(7).unwrap();
        files.write_carried(vid, &Carried::default()).unwrap();
        let roster = Roster { init: true, ..Roster::default() };
        files.write_roster(vid, &roster).unwrap();
        files.write_exit(vid, 3).unwrap();
        let carried = files.carried(vid);
        assert_eq!((&carried.roster, carried.exit), (&roster, Some(3)));
        files.note_death(vid).unwrap();
        let carried = files.carried(vid);
        assert_eq!((carried.roster, carried.exit), (roster, Some(3)));
        assert!(Output::died_between(0, carried.output.end()));
        files.remove(vid);
        assert_eq!(files.carried(vid), Carried::default());
    }
}
