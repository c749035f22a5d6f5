//! Writes the memory and image files that arrive at the destination to the directory from which CRIU restores.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use engine_api::ImageSink;
use instance::Region;

use crate::memory::Owner;
use crate::{Archives, MemoryImages};

/// The images in a directory, which is empty at first.
pub struct Images {
    directory: PathBuf,
    memory: MemoryImages,
    archives: Archives,
    /// Whether memory has arrived as regions. Its image files are made here then, and none of them may arrive as a file.
    has_regions: bool,
}

impl Images {
    pub fn new(directory: PathBuf) -> Self {
        let (memory, archives) = (MemoryImages::new(&directory), Archives::new(&directory));
        Self { directory, memory, archives, has_regions: false }
    }

    fn owner(&mut self, region: Region) -> io::Result<Owner> {
        self.has_regions = true;
        Owner::of(region)
    }
}

impl ImageSink for Images {
    fn begin(&mut self) {
        self.memory.begin();
    }

    fn write(&mut self, region: Region, address: u64, pages: &[u8]) -> io::Result<()> {
        match self.owner(region)? {
            Owner::Archive(number) => self.archives.write(number, address, pages),
            owner => self.memory.write(owner, address, pages),
        }
    }

    fn lay_out(&mut self, region: Region, runs: &[(u64, u64)]) -> io::Result<()> {
        let owner = self.owner(region)?;
        if let Owner::Archive(number) = owner {
            return runs.iter().try_for_each(|(address, pages)| self.archives.keep(number, *address, *pages));
        }
        self.memory.open(owner);
        runs.iter().try_for_each(|(address, pages)| self.memory.keep(owner, *address, *pages))
    }

    fn leave(&mut self, region: Region, runs: &[(u64, u64)]) -> io::Result<()> {
        let owner = self.owner(region)?;
        runs.iter().try_for_each(|(address, pages)| self.memory.leave(owner, *address, *pages))
    }

    fn file(&mut self, name: &str) -> io::Result<File> {
        let is_of_memory = name.starts_with("pages-") || name.starts_with("pagemap-");
        if self.has_regions && is_of_memory {
            let what = format!("{name} would replace memory that has arrived as regions");
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        // An earlier file may be in use.
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(self.directory.join(name))
    }

    fn finish(self: Box<Self>) -> io::Result<()> {
        self.archives.finish()?;
        self.memory.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::PAGE;

    #[test]
    fn the_last_account_is_the_memory() {
        let directory = tempfile::tempdir().unwrap();
        let region = Owner::Process(7).region().unwrap();
        let mut images = Box::new(Images::new(directory.path().to_owned()));
        images.begin();
        images.write(region, 0x1000, &[1; PAGE]).unwrap();
        images.write(region, 0x5000, &[2; 2 * PAGE]).unwrap();
        images.begin();
        images.write(region, 0x5000, &[4; PAGE]).unwrap();
        images.write(region, 0x9000, &[5; PAGE]).unwrap();
        images.lay_out(region, &[(0x5000, 1), (0x9000, 1)]).unwrap();
        images.finish().unwrap();
        let file = |name: &str| std::fs::read(directory.path().join(name));
        assert!(file("pagemap-7.img").is_ok());
        assert_eq!(file("pages-1.img").unwrap(), [5; PAGE], "what is new");
    }

    #[test]
    fn invalid_pages_and_existing_files_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let region = Owner::Process(7).region().unwrap();
        let mut images = Images::new(directory.path().to_owned());
        images.file("core-1.img").unwrap();
        assert!(images.file("core-1.img").is_err());
        images.file("pages-1.img").unwrap();
        assert!(images.write(region, 0x1001, &[1; PAGE]).is_err());
        assert!(images.file("pages-2.img").is_err() && images.file("pagemap-7.img").is_err());
        assert!(images.lay_out(region, &[(0x3000, 1), (0x1000, 1)]).is_err());
        assert!(images.lay_out(region, &[(0, u64::MAX)]).is_err());
        assert!(images.lay_out(Region(u64::MAX), &[]).is_err());
    }

    #[test]
    fn a_layout_with_missing_pages_is_refused_at_the_end() {
        let directory = tempfile::tempdir().unwrap();
        let region = Owner::Process(7).region().unwrap();
        let mut images = Box::new(Images::new(directory.path().to_owned()));
        images.begin();
        images.write(region, 0x1000, &[1; PAGE]).unwrap();
        images.lay_out(region, &[(0x1000, 1), (0x3000, 1)]).unwrap();
        assert!(images.finish().is_err());
    }
}
