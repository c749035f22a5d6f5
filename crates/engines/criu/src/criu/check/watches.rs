//! Blockers among the watches (inotify, fanotify) that a process of a container has on its root.
//!
//! The kernel describes a watched file by its inode number and a file handle. An overlay file system without an index cannot open files
//! by handle, and an index would belong to this host. Then CRIU searches a fixed list of directories for the inode number.

use std::fs;
use std::os::linux::fs::MetadataExt;
use std::path::Path;

use super::descriptors::is_message_queue;
use super::findings::{Findings, named};

/// The directories that CRIU searches: `hints` in its `irmap.c`.
const LOOKED_THROUGH: [&str; 7] = [
    "etc",
    "var/spool",
    "var/log",
    "usr/share/dbus-1/system-services",
    "var/lib/polkit-1/localauthority",
    "usr/share/polkit-1/actions",
    "lib/udev",
];

impl Findings<'_> {
    /// `info` is the `fdinfo` of the inotify or fanotify descriptor.
    pub(super) fn watches(&mut self, pid: i32, kind: &str, info: &str) {
        if self.places.is_none() {
            return;
        }
        let root = format!("/proc/{}/root/", self.first);
        let Ok(metadata) = fs::metadata(&root) else { return };
        let on_root = watched(info).filter(|(device, _)| *device == metadata.st_dev());
        let mut inodes = on_root.map(|(_, inode)| inode).filter(|inode| *inode != metadata.st_ino());
        let is_found = |inode: u64| {
            let mut places = LOOKED_THROUGH.iter();
            places.any(|place| is_below(&Path::new(&root).join(place), metadata.st_dev(), inode))
        };
        if inodes.any(|inode| !is_found(inode)) {
            let what =
                format!("{} watches files in the container's own root file system ({kind})", named(pid));
            self.block(
                what,
                format!("have it watch a volume or /dev/shm, or close the {kind} before the move"),
            );
        }
    }

    /// Checks the message queues. Queues that no process has open are blockers too: CRIU dumps none.
    pub(super) fn message_queues(&mut self) {
        let Some(places) = &self.places else { return };
        let found: Vec<String> = places
            .travelling(self.first)
            .filter(|place| is_message_queue(place))
            .flat_map(fs::read_dir)
            .flatten()
            .flatten()
            .map(|queue| queue.file_name().to_string_lossy().into_owned())
            .collect();
        for queue in found {
            let what = format!("the container has the message queue /{queue}");
            self.block(what, "have it remove the queue before the move (mq_unlink): CRIU cannot dump it");
        }
    }
}

/// The device and number of each watched inode: `inotify wd:1 ino:2e sdev:fe00001 mask:…`.
fn watched(info: &str) -> impl Iterator<Item = (u64, u64)> + '_ {
    info.lines().filter_map(|line| {
        let number = |name: &str| {
            let field = line.split(' ').find_map(|field| field.strip_prefix(name))?;
            u64::from_str_radix(field, 16).ok()
        };
        // The number of bits with which the kernel encodes a minor number.
        const MINOR_BITS: u32 = 20;
        let (inode, device) = (number("ino:")?, number("sdev:")?);
        let (major, minor) = (device >> MINOR_BITS, device & ((1 << MINOR_BITS) - 1));
        Some((libc::makedev(major as u32, minor as u32), inode))
    })
}

/// Whether the inode is at `path` or below, without following links.
fn is_below(path: &Path, device: u64, inode: u64) -> bool {
    let Ok(metadata) = fs::symlink_metadata(path) else { return false };
    if (metadata.st_dev(), metadata.st_ino()) == (device, inode) {
        return true;
    }
    let entries = metadata.is_dir().then(|| fs::read_dir(path)).into_iter().flatten().flatten();
    entries.flatten().any(|entry| is_below(&entry.path(), device, inode))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watches_are_parsed_as_the_kernel_writes_them() {
        let info = "pos:\t0\nflags:\t02004000\ninotify wd:1 ino:95a0f2 sdev:28 mask:106 ignored_mask:0 fhandle-bytes:20\n\
                    fanotify flags:0 event-flags:0\nfanotify ino:2 sdev:fe00001 mflags:0 mask:8\nfanotify mnt_id:12 mflags:0\n";
        let expected = [(libc::makedev(0, 0x28), 0x95a0f2), (libc::makedev(0xfe, 1), 2)];
        assert_eq!(watched(info).collect::<Vec<_>>(), expected);
    }
}
