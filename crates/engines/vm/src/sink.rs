//! Takes the images of a machine. From another host, output and input of the console come as images; all else comes over channels. From a
//! checkpoint, memory and disks come as images too.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use engine_api::{ImageSink, State};
use instance::{InstanceName, Region};

use crate::disks::{make_file, node};
use crate::engine::VmEngine;
use crate::lock::lock;
use crate::machine::Machine;
use crate::record::{CONSOLE, KEYS, MEMORY, SEED, file_name};

/// See the module.
pub struct Sink {
    /// The engine.
    pub engine: Arc<VmEngine>,
    /// The machine, which is prepared.
    pub name: InstanceName,
}

impl Sink {
    /// Makes the file of a disk, and records it as made here.
    fn disk(&self, machine: &mut Machine, path: &Path) -> io::Result<File> {
        let in_words =
            |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        let file = make_file(path).map_err(in_words)?;
        machine.record.made.push(path.to_owned());
        self.engine.records.save(&machine.record).map_err(io::Error::other)?;
        Ok(file)
    }
}

/// The path of the disk whose image has this name.
fn disk_of(machine: &Machine, name: &str) -> Option<PathBuf> {
    let mut disks = machine.vm().ok()?.disks.iter().enumerate();
    let found = disks.find(|(number, _)| file_name(machine.name(), &node(*number)) == name)?;
    Some(found.1.path.clone())
}

impl ImageSink for Sink {
    fn begin(&mut self) {}

    fn write(&mut self, _: Region, _: u64, _: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::InvalidData.into())
    }

    fn lay_out(&mut self, _: Region, _: &[(u64, u64)]) -> io::Result<()> {
        Err(io::ErrorKind::InvalidData.into())
    }

    fn leave(&mut self, _: Region, _: &[(u64, u64)]) -> io::Result<()> {
        Err(io::ErrorKind::InvalidData.into())
    }

    fn file(&mut self, name: &str) -> io::Result<File> {
        let machine = self.engine.find(&self.name).map_err(io::Error::other)?;
        let mut machine = lock(&machine);
        let records = &self.engine.records;
        if let Some(ending) = [CONSOLE, KEYS].into_iter().find(|ending| name == file_name(&self.name, ending))
        {
            return File::create_new(records.file(&self.name, ending));
        }
        // The emulator of a machine that comes from another host runs by now.
        if machine.first.is_some() || machine.record.state != State::Prepared {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        if let Some(ending) = [MEMORY, SEED].into_iter().find(|ending| name == file_name(&self.name, ending))
        {
            return File::create_new(records.file(&self.name, ending));
        }
        let path = disk_of(&machine, name).ok_or(io::ErrorKind::InvalidInput)?;
        self.disk(&mut machine, &path)
    }

    fn finish(self: Box<Self>) -> io::Result<()> {
        Ok(())
    }
}
