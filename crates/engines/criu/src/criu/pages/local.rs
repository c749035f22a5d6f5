//! The memory of a dump that stays on this host.

use std::io;
use std::mem;
use std::path::Path;
use std::sync::{Mutex, MutexGuard};

use super::memory_images::MemoryImages;
use crate::lock::lock;
use crate::memory::{MemorySink, Owner, PAGE};

/// A sink that writes the memory as image files.
pub struct Local(Mutex<MemoryImages>);

impl Local {
    /// As [`MemoryImages::new`].
    pub fn new(directory: &Path) -> Self {
        Self(Mutex::new(MemoryImages::new(directory)))
    }

    fn lock(&self) -> MutexGuard<'_, MemoryImages> {
        lock(&self.0)
    }
}

impl MemorySink for Local {
    /// The directory of the dump is empty.
    fn begin(&self) -> io::Result<()> {
        let mut images = self.lock();
        *images = MemoryImages::new(&images.directory);
        Ok(())
    }

    fn open(&self, owner: Owner) -> io::Result<()> {
        self.lock().open(owner);
        Ok(())
    }

    fn take(&self, owner: Owner, address: u64, pages: &[u8]) -> io::Result<()> {
        let mut images = self.lock();
        images.keep(owner, address, (pages.len() / PAGE) as u64)?;
        images.write(owner, address, pages)
    }

    fn end(&self) -> io::Result<()> {
        let mut images = self.lock();
        let nothing = MemoryImages::new(&images.directory);
        mem::replace(&mut *images, nothing).finish()
    }
}
