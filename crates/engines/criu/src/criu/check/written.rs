//! Measures the files that a container has written, and checks that they can be unpacked at the destination.

use std::ffi::OsString;
use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, ResolveFlags, open, openat2};

/// The length limit of a path in a system call, in bytes. `tar` passes whole paths, from `.` on, when it unpacks.
const LONGEST: usize = libc::PATH_MAX as usize - 1;

/// The contents of a layer.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// The size of all files, in bytes.
    pub bytes: u64,
    /// A path that cannot be unpacked, as the container sees it. Files below it are not inspected.
    pub too_long: Option<PathBuf>,
}

impl Written {
    /// Measures the files below `layer`. Files that disappear meanwhile are not counted.
    pub fn below(layer: &Path) -> Self {
        let mut found = Self::default();
        let Ok(layer) = open(layer, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()) else {
            return found;
        };
        let mut path = PathBuf::from(".");
        let mut levels = vec![found.count(&layer, &path)];
        while let Some(folders) = levels.last_mut() {
            if let Some(name) = folders.pop() {
                path.push(name);
                levels.push(found.count(&layer, &path));
            } else {
                levels.pop();
                path.pop();
            }
        }
        found
    }

    /// Counts the files in the folder at `path`, and returns its subfolders. The folder is opened for each call: a deep tree has
    /// more folders than a process may have descriptors.
    fn count(&mut self, layer: &OwnedFd, path: &Path) -> Vec<OsString> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        // The container may replace the folder with a link meanwhile.
        let Ok(folder) = openat2(layer, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS) else {
            return Vec::new();
        };
        let mut folders = Vec::new();
        let entries = fs::read_dir(format!("/proc/self/fd/{}", folder.as_raw_fd()));
        for entry in entries.into_iter().flatten().flatten() {
            let (Ok(metadata), name) = (entry.metadata(), entry.file_name()) else { continue };
            let is_too_long = path.as_os_str().len() + 1 + name.len() > LONGEST;
            if is_too_long && self.too_long.is_none() {
                self.too_long = path.join(&name).strip_prefix(".").ok().map(|path| Path::new("/").join(path));
            }
            if !metadata.is_dir() {
                self.bytes += metadata.blocks() * 512;
            } else if !is_too_long {
                folders.push(name);
            }
        }
        folders
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use rustix::fs::{mkdirat, openat};

    use super::*;

    /// Makes nested folders with names of `name` bytes, until the path of the last one has the length `length`.
    fn dig(layer: &Path, name: usize, length: usize) -> OwnedFd {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mut folder = open(layer, flags, Mode::empty()).unwrap();
        let mut left = length - 1;
        while left > 0 {
            let part = left.min(1 + name);
            // A slash alone is no folder.
            let part = if left - part == 1 { part - 1 } else { part };
            let name = "d".repeat(part - 1);
            mkdirat(&folder, &name, Mode::RWXU).unwrap();
            folder = openat(&folder, &name, flags, Mode::empty()).unwrap();
            left -= part;
        }
        folder
    }

    fn file_in(folder: &OwnedFd) {
        fs::write(format!("/proc/self/fd/{}/file", folder.as_raw_fd()), [1; 4096]).unwrap();
    }

    #[test]
    fn all_files_are_counted_without_following_links() {
        let layer = tempfile::tempdir().unwrap();
        assert_eq!(Written::below(&layer.path().join("none")), Written::default());
        for (name, length) in [(200, 4000), (7, 90), (3, 30)] {
            file_in(&dig(layer.path(), name, length));
        }
        symlink("/usr", layer.path().join("link")).unwrap();
        let found = Written::below(layer.path());
        assert_eq!(found, Written { bytes: 3 * 4096, too_long: None });
    }

    #[test]
    fn paths_that_tar_cannot_unpack_are_found_at_any_depth() {
        for name in [1, 200] {
            let layer = tempfile::tempdir().unwrap();
            let last = dig(layer.path(), name, LONGEST);
            assert_eq!(Written::below(layer.path()), Written::default());
            file_in(&last);
            let Written { bytes, too_long } = Written::below(layer.path());
            let too_long = too_long.unwrap();
            assert_eq!((bytes, too_long.as_os_str().len()), (4096, LONGEST - 1 + "/file".len()));
            assert!(
                too_long.starts_with(Path::new("/").join("d".repeat(name))) && too_long.ends_with("file")
            );
        }
    }
}
