//! Machines in files: the memory as QEMU's migration stream, and the contents of all disks.
//!
//! ```text
//! source                                           destination
//!   stop, link cut
//!   migrate ──▶ name.memory ──┐                 ┌──▶ name.memory ──▶ migrate-incoming
//!   postmigrate: disks rest   ├─▶ checkpoint ──▶┤
//!   name.disk0, a link ───────┘                 └──▶ the disk's own path
//!   resume                                          held
//! ```
//!
//! The seed disk is an image, too. A disk that ran on does not fit a saved memory. So the contents of each disk are saved, shared or
//! local, and a restore makes a new file in its place. It is refused if there is one.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::symlink;
use std::path::Path;

use engine_api::Result;
use engine_criu::shared::absent_is_fine;
use instance::{Blocker, Disk, ImageFile, InstanceName, VmSpec};

use crate::disks::node;
use crate::error::Doing;
use crate::machine::Machine;
use crate::needs;
use crate::record::{CONSOLE, MEMORY, Records, SEED, file_name};

/// A new file for the memory of a machine that is being saved.
pub fn memory(machine: &Machine, records: &Records) -> Result<OwnedFd> {
    let path = records.file(machine.name(), MEMORY);
    let made = File::create(&path).doing(|| format!("creating {}", path.display()))?;
    Ok(made.into())
}

/// The memory of a machine that comes from a checkpoint; `None` if it comes from another host.
pub fn saved_memory(name: &InstanceName, records: &Records) -> Result<Option<OwnedFd>> {
    let path = records.file(name, MEMORY);
    match File::open(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        opened => opened.map(|file| Some(file.into())).doing(|| format!("opening {}", path.display())),
    }
}

/// The images of a machine that rests, besides its console: the memory, the seed disk, and a link to the file of each other disk.
pub fn images(machine: &Machine, records: &Records) -> Result<Vec<ImageFile>> {
    let mut images = vec![image(machine.name(), MEMORY, records)?];
    if machine.record.hardware.seed.is_some() {
        images.push(image(machine.name(), SEED, records)?);
    }
    for (number, disk) in machine.vm()?.disks.iter().enumerate() {
        let link = records.file(machine.name(), &node(number));
        let linked = absent_is_fine(fs::remove_file(&link)).and_then(|()| symlink(&disk.path, &link));
        linked.doing(|| format!("making {}", link.display()))?;
        images.push(image(machine.name(), &node(number), records)?);
    }
    Ok(images)
}

fn image(name: &InstanceName, ending: &str, records: &Records) -> Result<ImageFile> {
    let path = records.file(name, ending);
    let found = fs::metadata(&path).doing(|| format!("reading {}", path.display()))?;
    Ok(ImageFile { name: file_name(name, ending), size: found.len() })
}

/// Deletes the images of a machine that runs. Its disks stay.
pub fn delete_images(machine: &Machine, records: &Records) -> Result<()> {
    let disks = (0..machine.vm()?.disks.len()).map(node);
    for ending in [CONSOLE, MEMORY].map(str::to_owned).into_iter().chain(disks) {
        let path = records.file(machine.name(), &ending);
        absent_is_fine(fs::remove_file(&path)).doing(|| format!("deleting {}", path.display()))?;
    }
    Ok(())
}

/// The reasons why a machine cannot be saved on this host.
pub fn blockers(vm: &VmSpec, records: &Records) -> Vec<Blocker> {
    let no_file = |disk: &Disk| fs::metadata(&disk.path).is_ok_and(|found| !found.is_file());
    let blocker = |disk: &Disk| {
        let what = format!("{} is no regular file, and a checkpoint has only those", disk.path.display());
        Blocker::new(what, "move the machine instead, or give it an image file as disk")
    };
    let disks = vm.disks.iter().filter(|disk| no_file(disk)).map(blocker);
    disks.chain(lacks_room(needs::memory(vm), records.directory())).collect()
}

fn lacks_room(memory: u64, directory: &Path) -> Option<Blocker> {
    // One that cannot be asked is found by writing.
    let found = rustix::fs::statvfs(directory).ok()?;
    let free = found.f_bavail.saturating_mul(found.f_frsize);
    (free < memory).then(|| {
        let place = directory.display();
        let what = format!("its memory needs {} MiB in {place}, which has {}", memory >> 20, free >> 20);
        Blocker::new(what, "free space there")
    })
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn a_disk_that_is_no_regular_file_cannot_be_saved() {
        let directory = tempfile::tempdir().unwrap();
        let records = Records::open(directory.path().join("vm")).unwrap();
        let disk = |path: PathBuf| Disk { path, is_shared: true, format: None };
        let (machine, cpu_model, boot) = (None, None, None);
        let mut vm = VmSpec {
            cpus: 1,
            memory: 1 << 20,
            machine,
            cpu_model,
            accelerator: None,
            boot,
            disks: Vec::new(),
            vnc: false,
            seed: None,
        };
        vm.disks.push(disk(directory.path().join("file")));
        fs::write(&vm.disks[0].path, "").unwrap();
        assert_eq!(blockers(&vm, &records), []);
        vm.disks.push(disk("/dev/null".into()));
        assert!(blockers(&vm, &records)[0].what.starts_with("/dev/null is no regular file"));
        vm.memory = 1 << 60;
        assert!(blockers(&vm, &records)[1].what.starts_with("its memory needs"));
    }
}
