use std::path::PathBuf;

use crate::file::is_full;

/// Why a store cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another process has it open.
    #[error("{} is in use by another process: see whether a daemon with the same state runs already", .0.display())]
    InUse(PathBuf),
    /// It was written by another version.
    #[error(
        "{} has the layout of version {found}, and this program knows version {known}: \
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
    /// A value in it cannot be understood.
    #[error("{} holds a value that cannot be read ({what}): restore it from a copy", path.display())]
    Malformed {
        /// The store's file.
        path: PathBuf,
        /// What the value stands for.
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
        /// What the file system or the database says.
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
        /// What the file system says.
        source: std::io::Error,
    },
}

impl StoreError {
    /// What helps, where the text does not say it.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::NoRoom { .. } => "make room on its file system, then try again",
            Self::File { source, .. } if is_full(source) => {
                "make room on its file system, then start this again: it goes on where it stopped"
            }
            Self::File { .. } => "see to its file system, then start this again: it goes on where it stopped",
            _ => "",
        }
    }
}
