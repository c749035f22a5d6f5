//! A file that a program waits for.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::common_files;

/// The file's name; the file is removed at the end.
pub struct Signal(PathBuf);

impl Signal {
    /// One that has not been given, with a part of its name.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self(common_files::path(&format!("th-e2e-{}-{name}", std::process::id())))
    }

    /// Where the file will be.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Makes the file.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn give(&self) -> io::Result<()> {
        fs::write(&self.0, "")
    }
}

impl Drop for Signal {
    fn drop(&mut self) {
        let _gone = fs::remove_file(&self.0);
    }
}
