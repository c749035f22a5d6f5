//! Room that is kept free for the records of what is under way.
//!
//! What would begin on a full disk is refused. What began before must go on: the records of its end find
//! their room in a file that holds nothing, and that is given up for them.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::PathBuf;

use rustix::fs::{FallocateFlags, fallocate, fstatvfs};
use rustix::io::Errno;

/// How much is kept, in bytes: hundreds of records.
const SIZE: u64 = 512 << 10;

/// How much must be free beside it for something new to begin, in bytes.
const LEAST: u64 = 128 << 10;

pub(crate) struct Reserve(PathBuf);

impl Reserve {
    pub fn new(path: PathBuf) -> Self {
        Self(path)
    }

    /// Sees that the room is kept, and that there is some beside it.
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
            // A file system that cannot promise room.
            Err(Errno::OPNOTSUPP) => Ok(()),
            kept => Ok(kept?),
        }
    }

    /// Gives the room up.
    pub fn release(&self) {
        // Without the file there is nothing to give up.
        let _ = fs::remove_file(&self.0);
    }
}
