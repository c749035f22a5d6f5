//! Blockers among the memory mappings of a process.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::linux::fs::MetadataExt;
use std::path::Path;

use super::findings::{DELETED, Findings, MEMORY, is_deleted, named};
use crate::criu::guard::MAPPING;
use crate::linux::maps::range_and_path;
use crate::linux::task;

/// The ring of the kernel's asynchronous I/O (`io_setup`), which is not a file.
const REQUESTS: &str = "/[aio] (deleted)";

impl Findings<'_> {
    pub(super) fn mappings(&mut self, pid: i32) -> io::Result<()> {
        let maps = task::read(&format!("/proc/{pid}/maps"))?;
        let mut seen = HashSet::new();
        for line in maps.lines() {
            let Some((range, path)) = range_and_path(line) else { continue };
            // Deleted files may share a name.
            if path.ends_with(DELETED) || seen.insert(path) {
                self.mapping(pid, range, path);
            }
            if path.starts_with(MEMORY) && is_shared(line) {
                self.sealed(pid, range, path);
            }
        }
        Ok(())
    }

    fn mapping(&mut self, pid: i32, range: &str, path: &str) {
        if path.starts_with("/SYSV") && self.places.is_none() {
            self.shares_memory(pid, "attached");
        } else if path.starts_with("/dev/") && !path.starts_with("/dev/shm/") && path != "/dev/zero (deleted)"
        {
            let what = format!("{} has the device {path} mapped", named(pid));
            self.block(what, "have it unmap and close the device");
        } else if path.starts_with(MAPPING) {
            let what =
                format!("{} contains code that a failed dump has left, and cannot be restored", named(pid));
            self.block(what, "start the instance again");
        } else if path != REQUESTS {
            self.mapped_file(pid, Path::new(&format!("/proc/{pid}/map_files/{range}")));
        }
    }

    /// CRIU maps such a file writable, and then cannot seal it.
    fn sealed(&mut self, pid: i32, range: &str, path: &str) {
        let seals = File::open(format!("/proc/{pid}/map_files/{range}"))
            // SAFETY: no memory is passed.
            .map(|memory| unsafe { libc::fcntl(memory.as_raw_fd(), libc::F_GET_SEALS) });
        if seals.is_ok_and(|seals| seals > 0 && seals & libc::F_SEAL_WRITE != 0) {
            let path = path.trim_end_matches(DELETED);
            let what =
                format!("{} has a shared mapping of {path}, which is sealed (F_SEAL_WRITE)", named(pid));
            self.block(what, "have it map the file privately (MAP_PRIVATE), or unmap it before the move");
        }
    }

    fn mapped_file(&mut self, pid: i32, via: &Path) {
        // Byte for byte: the list escapes some characters.
        let (Ok(path), Ok(metadata)) = (fs::read_link(via), fs::metadata(via)) else { return };
        if !is_deleted(&path, &metadata) {
            self.need(&path, via);
        } else if metadata.st_nlink() > 0 {
            self.half_deleted(pid, &path, "mapped");
        } else {
            self.nameless_file(&metadata);
        }
    }
}

/// Whether a line of `/proc/PID/maps` describes a shared mapping, by its rights: `r--s`.
fn is_shared(line: &str) -> bool {
    line.split(' ').nth(1).is_some_and(|rights| rights.ends_with('s'))
}
