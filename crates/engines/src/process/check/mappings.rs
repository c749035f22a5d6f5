//! What a process has mapped.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::linux::fs::MetadataExt;
use std::path::Path;

use super::super::task;
use super::{DELETED, Findings, is_deleted, named};
use crate::guard::MAPPING;

/// The ring of asynchronous requests to disks, which is no file.
const REQUESTS: &str = "/[aio] (deleted)";

impl Findings<'_> {
    pub(super) fn mappings(&mut self, pid: i32) -> io::Result<()> {
        let maps = task::read(&format!("/proc/{pid}/maps"))?;
        let mut seen = HashSet::new();
        for (range, path) in maps.lines().filter_map(range_and_path) {
            // What has no name is not told apart by it.
            if path.ends_with(DELETED) || seen.insert(path) {
                self.mapping(pid, range, path);
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
            self.block(what, "let it close the device");
        } else if path.starts_with(MAPPING) {
            let what = format!(
                "{} has code in it that a failed dump has left, and would not be restored",
                named(pid)
            );
            self.block(what, "start the instance again");
        } else if path != REQUESTS {
            self.mapped_file(pid, Path::new(&format!("/proc/{pid}/map_files/{range}")));
        }
    }

    fn mapped_file(&mut self, pid: i32, via: &Path) {
        // Byte for byte, which a line of the list is not.
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

/// The address range and the path of a line of `/proc/PID/maps` that maps a file by path.
pub fn range_and_path(line: &str) -> Option<(&str, &str)> {
    let (range, rest) = line.split_once(' ')?;
    let path = rest.splitn(5, ' ').nth(4)?.trim_start();
    path.starts_with('/').then_some((range, path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_may_hold_blanks() {
        let line = "7f00-7f10 r-xp 00000000 fe:00 123                        /opt/my lib.so";
        assert_eq!(range_and_path(line), Some(("7f00-7f10", "/opt/my lib.so")));
        assert_eq!(range_and_path("7f00-7f10 rw-p 00000000 00:00 0 "), None);
        assert_eq!(range_and_path("7f00-7f10 rw-p 00000000 00:00 0      [heap]"), None);
    }
}
