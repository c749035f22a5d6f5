//! Files of a process about itself, such as `/proc/self/maps`.
//!
//! CRIU records such a file by the PID on this host, which belongs to another process on another host. CRIU opens the file in its
//! own process, so the image can name `/proc/self` instead.

use std::fs;
use std::io;
use std::path::Path;

use crate::criu::fixups::fixup::{Fixup, StoppedTree};
use crate::criu::protobuf::{not_understood, with, with_entries};
use crate::linux::task;

/// CRIU's image of open files.
pub const FILES: &str = "files.img";

/// Field of `file_entry`: a regular file or a directory.
const REGULAR: u64 = 3;
/// Field of `reg_file_entry`.
const NAME: u64 = 6;

/// Whether `path` is in a process's directory of `/proc`. Its PID belongs to another process on another host.
pub fn is_of_a_process(path: &Path) -> bool {
    path.to_str().and_then(split).is_some()
}

/// Whether `path` is in the directory of process `pid` itself, and not in that of one of its threads.
pub fn is_own(pid: i32, path: &Path) -> bool {
    path.to_str().and_then(split).is_some_and(|(owner, rest)| owner == pid && !rest.starts_with("/task"))
}

/// `/proc/12/maps` → 12 and `/maps`.
fn split(path: &str) -> Option<(i32, &str)> {
    let path = path.strip_prefix("/proc/")?;
    let end = path.find('/').unwrap_or(path.len());
    Some((path[..end].parse().ok()?, &path[end..]))
}

/// The fixup of files about a process itself.
pub struct OwnFiles;

impl Fixup for OwnFiles {
    fn name(&self) -> &'static str {
        "files of a process about itself"
    }

    fn lacks(&self) -> &'static str {
        "CRIU records a file of /proc/PID by a PID that belongs to another process on another host"
    }

    fn save(&mut self, stopped: &StoppedTree<'_>) -> io::Result<()> {
        // A container has a /proc of its own, in which PIDs stay the same.
        if stopped.has_own_root {
            return Ok(());
        }
        mend(stopped.images, stopped.tree)
    }
}

/// Corrects the names in the images of a stopped tree.
///
/// # Errors
/// If a process has another process's file open, with its name, or if an image cannot be read or written.
fn mend(images: &Path, tree: &[i32]) -> io::Result<()> {
    let path = images.join(FILES);
    let image = fs::read(&path)?;
    if !image.windows(b"/proc/".len()).any(|bytes| bytes == b"/proc/") {
        return Ok(());
    }
    for &pid in tree {
        refuse_others(pid)?;
    }
    fs::write(&path, renamed(&image).ok_or_else(|| not_understood(&path))?)
}

fn refuse_others(pid: i32) -> io::Result<()> {
    for number in task::numbers_in(&format!("/proc/{pid}/fd"))? {
        let Ok(path) = fs::read_link(format!("/proc/{pid}/fd/{number}")) else { continue };
        if is_of_a_process(&path) && !is_own(pid, &path) {
            let what = format!("process {pid} has {} of another process open", path.display());
            return Err(io::Error::new(io::ErrorKind::Unsupported, what));
        }
    }
    Ok(())
}

/// The image with the names changed.
fn renamed(image: &[u8]) -> Option<Vec<u8>> {
    with_entries(image, |entry| with(entry, REGULAR, |file| with(file, NAME, |name| Some(by_self(name)))))
}

fn by_self(name: &[u8]) -> Vec<u8> {
    match std::str::from_utf8(name).ok().and_then(split) {
        Some((_, rest)) => format!("/proc/self{rest}").into_bytes(),
        None => name.to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::criu::protobuf::{MAGIC, Message};

    #[test]
    fn a_process_directory_is_distinguished_from_the_rest_of_proc() {
        assert!(is_of_a_process(Path::new("/proc/12/maps")));
        assert!(!is_of_a_process(Path::new("/proc/cpuinfo")));
        assert!(!is_of_a_process(Path::new("/srv/12")));
    }

    #[test]
    fn a_processs_own_directory_is_distinguished_from_others() {
        assert!(is_own(12, Path::new("/proc/12/maps")) && is_own(12, Path::new("/proc/12")));
        assert!(!is_own(13, Path::new("/proc/12/maps")));
        assert!(!is_own(12, Path::new("/proc/12/task/13/stat")));
    }

    fn image(entries: &[(&[u8], &[u8])]) -> Vec<u8> {
        let mut image = vec![7; MAGIC];
        for (name, build) in entries {
            let mut file = Message::default();
            file.number(1, 300);
            file.bytes(NAME, name);
            // A repeated field.
            file.number(11, 1);
            file.number(11, 2);
            let mut entry = Message::default();
            entry.number(1, 1);
            entry.bytes(REGULAR, &file.0);
            entry.bytes(4, build);
            image.extend((entry.0.len() as u32).to_le_bytes());
            image.extend(entry.0);
        }
        image
    }

    #[test]
    fn names_are_changed_and_nothing_else() {
        let before = image(&[(b"/proc/12/maps", b"/proc/12/maps"), (b"/srv/12", b""), (b"/proc/stat", b"")]);
        let after = image(&[(b"/proc/self/maps", b"/proc/12/maps"), (b"/srv/12", b""), (b"/proc/stat", b"")]);
        assert_eq!(renamed(&before), Some(after));
    }

    #[test]
    fn a_damaged_image_is_refused() {
        let whole = image(&[(b"/proc/12/maps", b"")]);
        for length in (0..MAGIC).chain(MAGIC + 1..whole.len()) {
            assert_eq!(renamed(&whole[..length]), None, "{length}");
        }
    }
}
