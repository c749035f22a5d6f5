use std::path::PathBuf;

use crate::file::is_full;

/// Why a store is not usable.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another process has it open.
    #[error("{} is in use by another process: check whether a daemon with the same state directory is running", .0.display())]
    InUse(PathBuf),
    /// It was written by another version.
    #[error(
        "{} has layout version {found}, but this program supports version {known}: \
         use the program that wrote it, or start with a new state directory",
        path.display()
    )]
    Version {
        /// The store's file.
        path: PathBuf,
        /// The version in it.
        found: u32,
        /// The version of this program.
        known: u32,
    },
    /// A value in it is malformed.
    #[error("{} contains a malformed value ({what}): restore the file from a backup", path.display())]
    Malformed {
        /// The store's file.
        path: PathBuf,
        /// The kind of the value.
        what: &'static str,
    },
    /// Every VID belongs to an instance.
    #[error("every VID is in use: end some instances first")]
    NoVid,
    /// The file cannot be read or written: no room, no permission, a damaged disk.
    #[error("cannot read or write {}: {source}", path.display())]
    File {
        /// The store's file.
        path: PathBuf,
        /// The error of the file system or the database.
        source: redb::Error,
    },
    /// No thread can be started that writes.
    #[error("cannot start the journal's thread: {0}")]
    NoThread(std::io::Error),
    /// The thread that writes has ended.
    #[error("the journal's writer has ended")]
    Gone,
    /// There is no room for the records of something new.
    #[error("no room for new records in {}: {source}", path.display())]
    NoRoom {
        /// The store's file.
        path: PathBuf,
        /// The error of the file system.
        source: std::io::Error,
    },
}

impl StoreError {
    /// The remedy, if the message does not contain it.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::NoRoom { .. } => "make room on its file system, then try again",
            Self::File { source, .. } if is_full(source) => {
                "make room on its file system, then restart the daemon, which resumes where it stopped"
            }
            Self::File { .. } => {
                "check its file system, then restart the daemon, which resumes where it stopped"
            }
            _ => "",
        }
    }
}
