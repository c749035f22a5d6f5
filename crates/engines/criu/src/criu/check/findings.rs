//! The state of an inspection, to which each check adds.

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, Metadata};
use std::os::linux::fs::MetadataExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use super::contents::Regular;
use super::places::Places;
use crate::criu::root::OwnRoot;
use crate::error::{Doing, Result};
use crate::instance::Blocker;
use crate::instance::Network;
use crate::linux::task;
use crate::report::{Contents, FileKind, OpenFile};

/// The process tree to inspect.
pub struct Subject<'a> {
    /// The first process. It shares the namespaces of the node that started it, except those that each instance or container has of its
    /// own.
    pub first: i32,
    /// The instance's link.
    pub network: &'a Network,
    /// Its file systems, if it has any of its own.
    pub own: Option<OwnRoot<'a>>,
}

/// An inspection of a process tree in progress.
pub struct Findings<'a> {
    /// The instance's link.
    pub network: &'a Network,
    pub first: i32,
    /// The host's paths of its files, if it is a container.
    pub places: Option<Places<'a>>,
    /// The tree.
    pub members: HashSet<i32>,
    /// Whether the tree is stopped: its needs are known then, and time matters.
    pub is_stopped: bool,
    /// Each blocker once, in the order found.
    pub blockers: Vec<Blocker>,
    pub files: BTreeMap<PathBuf, OpenFile>,
    pub regular: &'a mut Regular,
    /// The pipes with an open read end, by the kernel's names.
    pub pipes: HashSet<PathBuf>,
    pub memory: u64,
    /// Unnamed files that `memory` already includes, by device and inode number.
    pub nameless: HashSet<(u64, u64)>,
    pub kept: u64,
    pub layer: u64,
}

/// The kernel's suffix for the path of a deleted file.
pub const DELETED: &str = " (deleted)";

/// The kernel's prefix for the names of `memfd_create` files.
pub const MEMORY: &str = "/memfd:";

/// The unit of `st_blocks`, in bytes.
pub const BLOCK: u64 = 512;

/// The kernel's name for the files of `memfd_secret`.
pub const SECRET_MEMORY: &str = "/secretmem";

/// Begins an inspection: returns the processes of the tree, and empty findings.
pub fn begin<'a>(subject: &Subject<'a>, regular: &'a mut Regular) -> Result<(Vec<i32>, Findings<'a>)> {
    let Subject { first, network, ref own } = *subject;
    let places = own.clone().map(|own| Places::of(own, first)).transpose();
    let places = places.doing(|| format!("reading the mounts of process {first}"))?;
    let tree = task::tree(first).doing(|| format!("listing the processes below {first}"))?;
    let findings = Findings {
        network,
        first,
        places,
        members: tree.iter().copied().collect(),
        is_stopped: false,
        blockers: Vec::new(),
        files: BTreeMap::new(),
        regular,
        pipes: HashSet::new(),
        memory: 0,
        nameless: HashSet::new(),
        kept: 0,
        layer: 0,
    };
    Ok((tree, findings))
}

impl Findings<'_> {
    pub fn block(&mut self, what: impl Into<String>, remedy: impl Into<String>) {
        let blocker = Blocker::new(what, remedy);
        if !self.blockers.contains(&blocker) {
            self.blockers.push(blocker);
        }
    }

    /// CRIU dumps the contents of a deleted file, but not if the file still has another name.
    pub fn half_deleted(&mut self, pid: i32, path: &Path, how: &str) {
        let path = path.display().to_string();
        let path = path.trim_end_matches(DELETED);
        if path == SECRET_MEMORY {
            let what = format!("{} has secret memory, which CRIU cannot read (memfd_secret)", named(pid));
            return self.block(what, "have it unmap and close that memory before the move");
        }
        let what = format!("{} has {path} {how}, which is deleted but has another name", named(pid));
        let remedy = "have it close the file, or delete its other names too (a semaphore's: sem_unlink)";
        if self.places.is_none() {
            return self.block(what, remedy);
        }
        // A file of the image that the layer hides has the same name.
        let replaced = "; if an upgrade replaced a file of the image, restart the program that uses it";
        self.block(format!("{what}, or was replaced in the container"), format!("{remedy}{replaced}"));
    }

    /// Counts an unnamed file, which travels once, however many processes share it: shared memory, for example.
    pub fn nameless_file(&mut self, metadata: &Metadata) {
        if self.nameless.insert((metadata.st_dev(), metadata.st_ino())) {
            self.memory += metadata.st_blocks() * BLOCK;
        }
    }

    /// Whether a file travels with a container or is created anew, so that it has another inode at the destination.
    pub fn becomes_another(&self, path: &Path) -> bool {
        self.places.as_ref().is_some_and(|places| places.on_host(path).is_none())
    }

    /// Notes that the destination must have this file. `via` leads to it even if its path has changed.
    pub fn need(&mut self, path: &Path, via: &Path) {
        if self.is_stopped {
            return;
        }
        // A container's own files travel with it.
        let path = match &self.places {
            Some(places) => places.on_host(path),
            None => Some(path.to_owned()),
        };
        let Some(path) = path else { return };
        self.note(path, via);
    }

    /// Notes that the destination must have the same file at `path` as this host. The unused entries of a directory may differ.
    pub fn need_on_host(&mut self, path: &Path) {
        self.note(path.to_owned(), path);
    }

    pub fn note(&mut self, path: PathBuf, via: &Path) {
        if self.files.contains_key(&path) {
            return;
        }
        let Ok(metadata) = fs::metadata(via) else { return };
        // Other types, such as a socket, cannot exist at the destination too; `Regular` never matches them.
        let kind = kind_of(&metadata).unwrap_or(FileKind::Regular);
        let is_regular = metadata.is_file();
        let identity = is_regular.then(|| self.regular.identity(&metadata));
        let contents = if is_regular { self.regular.contents(via, &metadata) } else { Contents::Any };
        // If the process has closed it meanwhile, it is not needed, and `via` may lead to another file.
        if fs::metadata(via).is_ok_and(|now| is_same(&now, &metadata)) {
            let (mode, size) = (metadata.st_mode() & 0o7777, metadata.st_size());
            self.files.insert(path.clone(), OpenFile { path, kind, mode, size, identity, contents });
        }
    }
}

pub fn kind_of(metadata: &Metadata) -> Option<FileKind> {
    let kind = metadata.file_type();
    if kind.is_dir() {
        Some(FileKind::Directory)
    } else if kind.is_fifo() {
        Some(FileKind::Fifo)
    } else if kind.is_char_device() {
        let device = metadata.st_rdev();
        Some(FileKind::Character { major: libc::major(device), minor: libc::minor(device) })
    } else {
        kind.is_file().then_some(FileKind::Regular)
    }
}

pub fn is_same(one: &Metadata, other: &Metadata) -> bool {
    (one.st_dev(), one.st_ino()) == (other.st_dev(), other.st_ino())
}

/// Whether a file has lost the name with which it was opened. `path` is the kernel's name for it, and `metadata` belongs to the
/// open file.
pub fn is_deleted(path: &Path, metadata: &Metadata) -> bool {
    let marked = path.as_os_str().as_bytes().ends_with(DELETED.as_bytes());
    metadata.st_nlink() == 0 || marked && fs::metadata(path).is_err()
}

/// A process as its user knows it: `sleep (1234)`.
pub fn named(pid: i32) -> String {
    let name = task::read(&format!("/proc/{pid}/comm")).unwrap_or_default();
    format!("{} ({pid})", name.trim())
}
