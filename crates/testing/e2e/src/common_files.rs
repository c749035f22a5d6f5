//! Files that a test and all hosts of its labs see, as in a shared file system: `/tmp` is each host's own.

use std::io;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// The folder of all of them.
pub const PARENT: &str = "/var/tmp";

/// A new folder, removed when it is dropped.
///
/// # Errors
/// Those of making a folder.
pub fn folder() -> io::Result<TempDir> {
    tempfile::tempdir_in(PARENT)
}

/// The path of a file or folder with a name that the caller makes unique.
#[must_use]
pub fn path(name: &str) -> PathBuf {
    Path::new(PARENT).join(name)
}
