//! The disks of a machine: QEMU's options for them, and their files on both hosts of a move.
//!
//! * `format`: the format of a disk's file.
//!
//! QEMU locks a file that a guest may write to. At the destination it opens a shared file without the lock, and takes the lock when the
//! guest is told to run; the source's QEMU has given it back at its switchover. After a rollback the source takes it again.

mod format;

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use engine_api::{Error, Result};
use engine_criu::shared::{FileSystems, Identity, absent_is_fine};
use instance::{Blocker, Disk, DiskFormat, VmSpec};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

pub use format::{formats, open_at_once};

/// A file that a machine needs at its destination as a disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskNeed {
    path: PathBuf,
    identity: Identity,
}

/// A disk of a machine whose file each host has for itself. Its contents move along.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocalDisk {
    /// Its place among the machine's disks.
    pub number: usize,
    /// Its file.
    pub path: PathBuf,
    /// Its size for the guest, in bytes.
    size: u64,
    /// The bytes that its file occupies.
    occupied: u64,
    /// The base image below it, with the name of its driver. It does not move, and must be on both hosts.
    pub base: Option<(PathBuf, String)>,
}

impl LocalDisk {
    /// QEMU's name of its node, and the name of its channel.
    pub fn node(&self) -> String {
        node(self.number)
    }

    /// Makes its file on this host, empty.
    ///
    /// # Errors
    /// If there is such a file, or it cannot be made.
    pub fn make(&self, format: DiskFormat) -> io::Result<()> {
        let file = make_file(&self.path)?;
        match format {
            DiskFormat::Raw => file.set_len(self.size),
            DiskFormat::Qcow2 => self.make_qcow2(),
        }
    }

    fn make_qcow2(&self) -> io::Result<()> {
        let mut command = Command::new("qemu-img");
        command.args(["create", "-q", "-f", "qcow2"]);
        if let Some((base, driver)) = &self.base {
            command.arg("-b").arg(base).args(["-F", driver]);
        }
        let made = command.arg(&self.path).arg(self.size.to_string()).output().map_err(|error| {
            io::Error::new(
                error.kind(),
                format!("qemu-img cannot be run ({error}); Debian's qemu-utils has it"),
            )
        })?;
        let said = || io::Error::other(String::from_utf8_lossy(&made.stderr).trim().to_owned());
        if made.status.success() { Ok(()) } else { Err(said()) }
    }

    /// The reasons why it cannot come to this host.
    pub fn blocker(&self) -> Option<Blocker> {
        let place = self.path.display();
        if self.path.symlink_metadata().is_ok() {
            let what =
                format!("{place} exists there already, and the machine's disk would come to that place");
            return Some(Blocker::new(what, "move that file away, if nobody needs it"));
        }
        if let Some((base, _)) = &self.base
            && let Err(error) = fs::metadata(base)
        {
            let what = format!("{} below the disk {place} cannot be read there ({error})", base.display());
            return Some(Blocker::new(what, "copy the base image there, to the same path"));
        }
        let folder = self.path.parent().unwrap_or(Path::new("/"));
        match rustix::fs::statvfs(folder) {
            Err(error) => {
                let what = format!("the folder {} cannot be used there ({error})", folder.display());
                Some(Blocker::new(what, "make the folder"))
            }
            Ok(found) if found.f_bavail.saturating_mul(found.f_frsize) < self.occupied => {
                let what = format!(
                    "the disk {place} needs {} MiB, and {} has less room",
                    self.occupied >> 20,
                    folder.display()
                );
                Some(Blocker::new(what, "free space there, or choose another host"))
            }
            Ok(_) => None,
        }
    }

    /// Puts the file of a disk that has moved away beside its place, so that a later return finds that free. One of an earlier departure is
    /// replaced.
    ///
    /// # Errors
    /// Those of `rename`; none if there is no such file.
    pub fn retire(path: &Path) -> io::Result<()> {
        let mut retired = path.as_os_str().to_owned();
        retired.push(".moved-away");
        absent_is_fine(fs::rename(path, retired))
    }
}

/// QEMU's name of a disk's node.
pub fn node(number: usize) -> String {
    format!("disk{number}")
}

/// The disks of a machine that come along, as its emulator describes them. With `is_saved`, to a checkpoint: these are all.
///
/// # Errors
/// If it does not.
pub fn coming_along(vm: &VmSpec, nodes: &Value, is_saved: bool) -> Result<Vec<LocalDisk>> {
    let described = |number: usize, disk: &Disk| {
        let nodes = nodes.as_array()?;
        let image = &nodes.iter().find(|found| found["node-name"] == node(number))?["image"];
        let base = image["backing-image"]["filename"].as_str();
        let driver = image["backing-image"]["format"].as_str();
        Some(LocalDisk {
            number,
            path: disk.path.clone(),
            size: image["virtual-size"].as_u64()?,
            occupied: image["actual-size"].as_u64().unwrap_or(0),
            base: base.zip(driver).map(|(base, driver)| (base.into(), driver.to_owned())),
        })
    };
    let coming = vm.disks.iter().enumerate().filter(|(_, disk)| is_saved || !disk.is_shared);
    let known = |(number, disk): (usize, &Disk)| {
        described(number, disk)
            .ok_or_else(|| Error::Other(format!("QEMU does not describe {}", disk.path.display())))
    };
    coming.map(known).collect()
}

/// Makes the file of a disk, which only the emulator's starter may read.
///
/// # Errors
/// If there is such a file, or it cannot be made.
pub fn make_file(path: &Path) -> io::Result<File> {
    File::options().write(true).create_new(true).mode(0o600).open(path)
}

/// QEMU's options for the disks, as pairs. Shared files are not cached by the host, whose cache the other host does not see.
pub fn options(vm: &VmSpec, formats: &[DiskFormat]) -> Vec<(&'static str, String)> {
    let disks = vm.disks.iter().zip(formats).enumerate();
    let options = disks.map(|(number, (Disk { path, is_shared, .. }, format))| {
        let node = node(number);
        let driver = format::driver(*format);
        let cache = json!({ "direct": is_shared, "no-flush": false });
        let file = json!({ "driver": "file", "filename": path, "locking": "on", "cache": cache });
        let disk = json!({ "driver": driver, "node-name": node, "cache": cache, "file": file });
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
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn vm(path: &Path, is_shared: bool) -> VmSpec {
        let disks = vec![Disk { path: path.to_owned(), is_shared, format: None }];
        VmSpec {
            cpus: 1,
            memory: 1 << 28,
            machine: None,
            cpu_model: None,
            accelerator: None,
            boot: None,
            disks,
            vnc: false,
            seed: None,
        }
    }

    #[test]
    fn a_path_with_a_comma_stays_whole() {
        let options = options(&vm(Path::new("/a,b.img"), true), &[DiskFormat::Raw]);
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
    fn a_local_disk_comes_only_to_a_free_place_with_its_base() {
        let directory = tempfile::tempdir().unwrap();
        let (path, base) = (directory.path().join("disk"), directory.path().join("base"));
        let nodes = json!([{ "node-name": "disk0", "image": {
            "virtual-size": 4096, "actual-size": 512, "backing-image": { "filename": base, "format": "raw" },
        } }]);
        let [disk] = &coming_along(&vm(&path, false), &nodes, false).unwrap()[..] else { panic!("one disk") };
        assert!(disk.blocker().unwrap().what.contains("cannot be read there"));
        fs::write(&base, "").unwrap();
        assert_eq!(disk.blocker(), None);
        disk.make(DiskFormat::Raw).unwrap();
        let made = fs::metadata(&path).unwrap();
        assert_eq!((made.len(), made.permissions().mode() & 0o777), (4096, 0o600));
        assert!(
            disk.blocker().unwrap().what.contains("exists there already")
                && disk.make(DiskFormat::Raw).is_err()
        );
        for _ in 0..2 {
            LocalDisk::retire(&path).unwrap();
            assert!(!path.exists() && directory.path().join("disk.moved-away").exists());
        }
        assert!(coming_along(&vm(&path, false), &json!([]), false).is_err());
        assert_eq!(coming_along(&vm(&path, true), &nodes, false).unwrap(), []);
        assert_eq!(coming_along(&vm(&path, true), &nodes, true).unwrap().len(), 1);
    }
}
