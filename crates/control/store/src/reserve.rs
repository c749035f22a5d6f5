//! Disk space that is reserved for the records of operations in progress.
//!
//! New operations are refused on a full disk, but operations in progress must be able to finish: the store
//! releases a placeholder file to make room for their records.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::PathBuf;

use rustix::fs::{FallocateFlags, fallocate, fstatvfs};
use rustix::io::Errno;

/// The size of the reserve in bytes: hundreds of records.
const SIZE: u64 = 512 << 10;

/// Free space, in bytes, that a new operation requires beside the reserve.
const LEAST: u64 = 128 << 10;

pub(crate) struct Reserve(PathBuf);

impl Reserve {
    pub fn new(path: PathBuf) -> Self {
        Self(path)
    }

    /// Ensures that the reserve exists, and that there is free space beside it.
    pub fn hold(&self) -> io::Result<()> {
        let file = private::open(&self.0, OpenOptions::new().write(true).create(true).truncate(false))?;
        self.fill(&file).inspect_err(|_| self.release())?;
        let room = fstatvfs(&file)?;
        if room.f_bavail.saturating_mul(room.f_frsize) < LEAST { Err(Errno::NOSPC.into()) } else { Ok(()) }
    }

    fn fill(&self, file: &File) -> io::Result<()> {
        if file.metadata()?.len() >= SIZE {
            return Ok(());
        }
        match fallocate(file, FallocateFlags::empty(), 0, SIZE) {
            // The file system does not support preallocation.
            Err(Errno::OPNOTSUPP) => Ok(()),
            kept => Ok(kept?),
        }
    }

    /// Releases the reserve.
    pub fn release(&self) {
        // Without the file there is nothing to release.
        let _ = fs::remove_file(&self.0);
    }
}
