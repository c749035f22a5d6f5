//! Finds out whether two hosts share a file, or each has its own.
//!
//! Device numbers differ between hosts. So a file system that hosts can share is identified by its mount source, and any other one by
//! the machine. The inode number and birth time identify a file in its file system. They do not suffice alone: a copied disk has the
//! same ones.

use std::collections::HashMap;
use std::fs::{self, Metadata};
use std::os::linux::fs::MetadataExt;
use std::time::UNIX_EPOCH;

use ring::digest::{Context, SHA256};

use crate::report::Identity;

/// Types of network file systems whose mount sources mean the same on each host. A source of 9p or virtiofs does not: each hypervisor
/// chooses the name for a folder of its own.
const SHARED: [&str; 5] = ["afs", "beegfs", "gfs2", "gpfs", "ocfs2"];

/// Files that identify a machine; the first that exists counts. The boot ID changes with each restart.
const MACHINE: [&str; 2] = ["/sys/class/dmi/id/product_uuid", "/proc/sys/kernel/random/boot_id"];

/// The file systems of this host.
pub struct FileSystems {
    machine: String,
    /// The mount sources of shareable file systems, by device.
    shared: HashMap<u64, String>,
}

impl FileSystems {
    /// Reads the current mounts.
    pub fn mounted() -> Self {
        let machine = MACHINE.iter().find_map(|path| fs::read_to_string(path).ok()).unwrap_or_default();
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        Self { machine, shared: mounts.lines().filter_map(shared).collect() }
    }

    /// The identity of a file.
    pub fn identity(&self, file: &Metadata) -> Identity {
        let place = self.shared.get(&file.st_dev()).unwrap_or(&self.machine);
        let born = file.created().ok().and_then(|born| born.duration_since(UNIX_EPOCH).ok());
        let mut digest = Context::new(&SHA256);
        digest.update(&file.st_ino().to_le_bytes());
        digest.update(&born.unwrap_or_default().as_nanos().to_le_bytes());
        digest.update(place.as_bytes());
        let mut identity = Identity::default();
        identity.copy_from_slice(&digest.finish().as_ref()[..size_of::<Identity>()]);
        identity
    }
}

/// The device and source of a line of `/proc/PID/mountinfo`, if hosts can share that file system.
fn shared(line: &str) -> Option<(u64, String)> {
    let (mount, file_system) = line.split_once(" - ")?;
    let (major, minor) = mount.split(' ').nth(2)?.split_once(':')?;
    let device = libc::makedev(major.parse().ok()?, minor.parse().ok()?);
    let (kind, rest) = file_system.split_once(' ')?;
    let source = rest.split(' ').next()?;
    let is_shared = SHARED.contains(&kind) || source.contains(':') || source.starts_with("//");
    is_shared.then(|| (device, format!("{kind} {source}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_file_systems_are_distinguished_from_local_ones() {
        let line = |device: &str, kind: &str, source: &str| {
            shared(&format!(
                "36 35 {device} / /mnt\\040of\\040- rw,noatime master:1 - {kind} {source} rw,vers=4.2"
            ))
        };
        assert_eq!(line("0:45", "nfs4", "fs:/jobs"), Some((libc::makedev(0, 45), "nfs4 fs:/jobs".into())));
        assert_eq!(line("0:45", "cifs", "//fs/jobs").unwrap().1, "cifs //fs/jobs");
        assert_eq!(line("0:45", "gpfs", "jobs").unwrap().1, "gpfs jobs");
        assert_eq!(line("0:45", "virtiofs", "jobs"), None);
        assert_eq!(line("259:1", "ext4", "/dev/nvme0n1p1"), None);
        assert_eq!(line("0:45", "tmpfs", "tmpfs"), None);
    }

    /// File systems of two hosts that were copied from one disk.
    #[test]
    fn equal_numbers_and_birth_times_on_two_machines_are_two_files() {
        let file = fs::metadata("/etc/passwd").unwrap();
        let on = |machine: &str, source: Option<&str>| {
            let shared = source.map(|source| (file.st_dev(), source.to_owned())).into_iter().collect();
            FileSystems { machine: machine.to_owned(), shared }.identity(&file)
        };
        assert_eq!(on("a", None), on("a", None));
        assert_ne!(on("a", None), on("b", None));
        assert_eq!(on("a", Some("nfs4 fs:/jobs")), on("b", Some("nfs4 fs:/jobs")));
        assert_ne!(on("a", Some("nfs4 fs:/a")), on("a", Some("nfs4 fs:/b")));
    }
}
