//! Fingerprints of regular files, with which two hosts find out whether they have copies of the same file.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::linux::fs::MetadataExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use ring::digest::{Context, SHA256};

use super::elf;
use super::identity::FileSystems;
use crate::linux::files::statfs;
use crate::report::{Contents, Identity};

/// The largest file that is read as a whole, in bytes.
const WHOLE: u64 = 4 << 20;
/// The number of blocks that are read of a larger file: the first, the last, and samples between.
const SAMPLES: u64 = 32;
const BLOCK: u64 = 64 << 10;

/// The beginning of each SQLite database that has been written to.
const SQLITE: [u8; 16] = *b"SQLite format 3\0";

/// A cache of the contents of regular files on this host. A file whose size has not changed is read only once.
#[derive(Default)]
pub struct Regular {
    systems: OnceCell<FileSystems>,
    /// By device number, inode number and size.
    read: HashMap<(u64, u64, u64), Contents>,
}

impl Regular {
    /// The identity of a file, with which two hosts recognize a shared one.
    pub fn identity(&self, file: &Metadata) -> Identity {
        self.systems.get_or_init(FileSystems::mounted).identity(file)
    }

    /// The contents of the file that `via` leads to.
    pub fn contents(&mut self, via: &Path, file: &Metadata) -> Contents {
        let key = (file.st_dev(), file.st_ino(), file.st_size());
        self.read.entry(key).or_insert_with(|| of(via, file.st_size())).clone()
    }
}

/// The contents of the first `size` bytes of the file at `path`.
pub fn of(path: &Path, size: u64) -> Contents {
    if is_made_up(path) {
        return Contents::Any;
    }
    let read = open(path).and_then(|file| match elf::build_id(&file) {
        Some(id) => Ok(Contents::Build(id)),
        None => Ok(Contents::Digest(digest(&file, size)?)),
    });
    read.unwrap_or_else(|error| Contents::Unreadable(error.to_string()))
}

/// Whether the file at `path` is an SQLite database.
pub fn is_sqlite_database(path: &Path) -> bool {
    // Opening other files, such as a FIFO, may have side effects.
    let is_regular = fs::metadata(path).is_ok_and(|found| found.is_file());
    is_regular && !is_made_up(path) && beginning(path).is_ok_and(|found| found == SQLITE)
}

fn beginning(path: &Path) -> io::Result<[u8; SQLITE.len()]> {
    let mut bytes = [0; SQLITE.len()];
    open(path)?.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Whether the kernel generates the file when it is read, which may have side effects. Such file systems report no blocks.
fn is_made_up(path: &Path) -> bool {
    // These report no blocks either if they have no size limit.
    const OTHERS: [libc::__fsword_t; 2] = [libc::TMPFS_MAGIC, libc::FUSE_SUPER_MAGIC];
    statfs(path).is_some_and(|found| found.f_blocks == 0 && !OTHERS.contains(&found.f_type))
}

/// Opens a regular file. A FIFO that has replaced it meanwhile does not block the call.
fn open(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file any more"));
    }
    Ok(file)
}

/// The digest of the sampled blocks; of the remaining bytes, if the file has become shorter.
fn digest(mut file: &File, size: u64) -> io::Result<[u8; 32]> {
    let mut digest = Context::new(&SHA256);
    let mut block = Vec::new();
    for start in blocks(size) {
        block.clear();
        file.seek(SeekFrom::Start(start))?;
        file.take(BLOCK.min(size - start)).read_to_end(&mut block)?;
        digest.update(&block);
    }
    let mut bytes = [0; 32];
    bytes.copy_from_slice(digest.finish().as_ref());
    Ok(bytes)
}

/// The offsets of the blocks that are read of a file of `size` bytes.
fn blocks(size: u64) -> Vec<u64> {
    if size <= WHOLE {
        return (0..size).step_by(BLOCK as usize).collect();
    }
    let last = size - BLOCK;
    (0..SAMPLES - 1).map(|number| last / (SAMPLES - 1) * number).chain([last]).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn all_of_a_small_file_and_parts_of_a_large_one_are_read() {
        for size in [0, 1, BLOCK, BLOCK + 1, WHOLE] {
            let read: u64 = blocks(size).iter().map(|start| BLOCK.min(size - start)).sum();
            assert_eq!(read, size);
        }
        for size in [WHOLE + 1, 1 << 40, u64::MAX >> 1] {
            let blocks = blocks(size);
            assert_eq!((blocks[0], blocks[31], blocks.len()), (0, size - BLOCK, 32));
            assert!(blocks.is_sorted_by(|one, next| one + BLOCK <= *next), "{size}");
        }
    }

    #[test]
    fn a_changed_byte_in_a_sample_changes_the_digest() {
        let file = tempfile::tempfile().unwrap();
        let size = 1 << 40;
        file.set_len(size).unwrap();
        let before = digest(&file, size).unwrap();
        for at in [0, size - 1, blocks(size)[7] + 5] {
            file.write_at(&[1], at).unwrap();
            assert_ne!(digest(&file, size).unwrap(), before, "at {at}");
            file.write_at(&[0], at).unwrap();
        }
        file.set_len(size + 1).unwrap();
        assert_eq!(digest(&file, size).unwrap(), before, "what comes after is not read");
        file.set_len(size / 2).unwrap();
        assert_ne!(digest(&file, size).unwrap(), before);
    }

    #[test]
    fn files_that_the_kernel_generates_are_not_read() {
        let of = |path| of(Path::new(path), BLOCK);
        assert_eq!(of("/proc/version"), Contents::Any);
        assert_eq!(of("/sys/kernel/mm/transparent_hugepage/enabled"), Contents::Any);
        assert!(matches!(of("/etc/passwd"), Contents::Digest(_)));
    }

    #[test]
    fn a_database_is_recognized_by_its_first_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let is_database = |contents: &[u8]| {
            fs::write(&path, contents).unwrap();
            is_sqlite_database(&path)
        };
        assert!(is_database(&SQLITE) && is_database(&[&SQLITE[..], b"pages"].concat()));
        for other in [&b""[..], &SQLITE[..15], &[b"a", &SQLITE[..]].concat()] {
            assert!(!is_database(other), "{other:?}");
        }
        assert!(!is_sqlite_database(folder.path()) && !is_sqlite_database(&path.with_extension("none")));
    }

    #[test]
    fn an_unreadable_file_has_a_reason() {
        let folder = tempfile::tempdir().unwrap();
        let fifo = folder.path().join("fifo");
        assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        assert_eq!(of(&fifo, 1), Contents::Unreadable("it is not a regular file any more".into()));
        let Contents::Unreadable(reason) = of(&folder.path().join("none"), 1) else { panic!() };
        assert!(reason.starts_with("No such file"), "{reason}");
    }

    #[test]
    fn a_file_is_read_once_unless_it_grows() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let mut regular = Regular::default();
        let mut look = || regular.contents(&path, &fs::metadata(&path).unwrap());
        fs::write(&path, "one").unwrap();
        let one = look();
        fs::write(&path, "two").unwrap();
        assert_eq!(look(), one);
        fs::write(&path, "three").unwrap();
        assert_ne!(look(), one);
    }
}
