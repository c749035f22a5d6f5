//! The disks of a machine: their formats, QEMU's options for them, and the identity of their files on both hosts of a move.
//!
//! QEMU locks a file that a guest may write to. At the destination it opens a shared file without the lock, and takes the lock when the
//! guest is told to run; the source's QEMU has given it back at its switchover. After a rollback the source takes it again.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use engine_api::{Error, Result};
use engine_criu::shared::{FileSystems, Identity};
use instance::{Blocker, Disk, VmSpec};
use serde::{Deserialize, Serialize};
use serde_json::json;

/// The format of a disk's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Format {
    /// The disk's blocks as they are.
    Raw,
    /// QEMU's own format.
    Qcow2,
}

impl Format {
    /// The format of a file, by its first bytes. It is determined once, on the first host: a guest may write such bytes to a raw disk.
    fn of(file: &mut File) -> io::Result<Self> {
        const QCOW2: [u8; 4] = *b"QFI\xfb";
        let mut begin = Vec::new();
        file.take(QCOW2.len() as u64).read_to_end(&mut begin)?;
        Ok(if begin == QCOW2 { Self::Qcow2 } else { Self::Raw })
    }

    /// QEMU's name of its driver.
    fn driver(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Qcow2 => "qcow2",
        }
    }
}

/// A file that a machine needs at its destination as a disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskNeed {
    path: PathBuf,
    identity: Identity,
}

/// The formats of a new machine's disks, in order.
///
/// # Errors
/// If a file cannot be read and written.
pub fn formats(vm: &VmSpec) -> Result<Vec<Format>> {
    let format = |disk: &Disk| {
        let opened = File::options().read(true).write(true).open(&disk.path);
        opened.and_then(|mut file| Format::of(&mut file)).map_err(|error| {
            let what = format!("{} cannot be read and written ({error})", disk.path.display());
            Error::unusable(what, "pass an image file that exists on the host, or choose another host")
        })
    };
    vm.disks.iter().map(format).collect()
}

/// QEMU's options for the disks, as pairs. Shared files are not cached by the host, whose cache the other host does not see.
pub fn options(vm: &VmSpec, formats: &[Format]) -> Vec<(&'static str, String)> {
    let disks = vm.disks.iter().zip(formats).enumerate();
    let options = disks.map(|(number, (Disk { path, is_shared }, format))| {
        let node = format!("disk{number}");
        let cache = json!({ "direct": is_shared, "no-flush": false });
        let file = json!({ "driver": "file", "filename": path, "locking": "on", "cache": cache });
        let disk = json!({ "driver": format.driver(), "node-name": node, "cache": cache, "file": file });
        [("-blockdev", disk.to_string()), ("-device", format!("virtio-blk-pci,drive={node}"))]
    });
    options.flatten().collect()
}

/// The shared disks' files, as this host knows them.
pub fn needs(vm: &VmSpec) -> Vec<DiskNeed> {
    let systems = FileSystems::mounted();
    let shared = vm.disks.iter().filter(|disk| disk.is_shared);
    let need = |disk: &Disk| {
        let found = fs::metadata(&disk.path).map(|found| systems.identity(&found));
        DiskNeed { path: disk.path.clone(), identity: found.unwrap_or_default() }
    };
    shared.map(need).collect()
}

/// The disks whose contents do not move along.
pub fn local(vm: &VmSpec) -> Vec<Blocker> {
    let local = vm.disks.iter().filter(|disk| !disk.is_shared);
    let blocker = |disk: &Disk| {
        let what = format!("the contents of the local disk {} do not move along", disk.path.display());
        Blocker::new(
            what,
            "keep it on a file system that all hosts share, and start the machine with `--disk FILE,shared`",
        )
    };
    local.map(blocker).collect()
}

/// The disks that are not the same files on this host.
pub fn blockers(needs: &[DiskNeed]) -> Vec<Blocker> {
    let systems = FileSystems::mounted();
    needs.iter().filter_map(|need| blocker(need, &systems)).collect()
}

fn blocker(DiskNeed { path, identity }: &DiskNeed, systems: &FileSystems) -> Option<Blocker> {
    let remedy = "mount the file system that the machine's host has there";
    let place = Path::display(path);
    match fs::metadata(path) {
        Err(error) => Some(Blocker::new(format!("the disk {place} cannot be read ({error})"), remedy)),
        Ok(found) if systems.identity(&found) != *identity => {
            Some(Blocker::new(format!("{place} is not the file that the source uses as shared disk"), remedy))
        }
        Ok(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vm(path: &Path, is_shared: bool) -> VmSpec {
        let disks = vec![Disk { path: path.to_owned(), is_shared }];
        VmSpec { cpus: 1, memory: 1 << 28, machine: None, cpu_model: None, boot: None, disks }
    }

    #[test]
    fn a_format_is_found_by_the_first_bytes() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a,b.img");
        fs::write(&path, "").unwrap();
        assert_eq!(formats(&vm(&path, true)).unwrap(), [Format::Raw]);
        fs::write(&path, b"QFI\xfb and more").unwrap();
        assert_eq!(formats(&vm(&path, true)).unwrap(), [Format::Qcow2]);
        let refusal = formats(&vm(Path::new("/nowhere/a.img"), true)).unwrap_err().to_string();
        assert!(refusal.starts_with("/nowhere/a.img cannot be read and written"), "{refusal}");
    }

    #[test]
    fn a_path_with_a_comma_stays_whole() {
        let options = options(&vm(Path::new("/a,b.img"), true), &[Format::Raw]);
        let disk: serde_json::Value = serde_json::from_str(&options[0].1).unwrap();
        assert_eq!((&disk["file"]["filename"], &disk["cache"]["direct"]), (&json!("/a,b.img"), &json!(true)));
        assert_eq!(options[1], ("-device", "virtio-blk-pci,drive=disk0".to_owned()));
    }

    #[test]
    fn a_shared_disk_is_the_same_file_and_no_copy() {
        let directory = tempfile::tempdir().unwrap();
        let (one, other) = (directory.path().join("one"), directory.path().join("other"));
        fs::write(&one, "x").unwrap();
        fs::write(&other, "x").unwrap();
        let mut needs = needs(&vm(&one, true));
        assert_eq!(blockers(&needs), []);
        needs[0].path = other;
        assert!(blockers(&needs)[0].what.ends_with("is not the file that the source uses as shared disk"));
    }

    #[test]
    fn a_local_disk_keeps_its_machine_on_its_host() {
        assert!(local(&vm(Path::new("/a"), true)).is_empty());
        assert_eq!(local(&vm(Path::new("/a"), false)).len(), 1);
    }
}
