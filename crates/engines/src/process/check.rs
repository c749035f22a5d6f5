//! Blockers: reasons why a process tree cannot move, found before anything is stopped.
//!
//! CRIU may still refuse when it dumps, and then the instance runs on. The modules here find what can be known in advance, each with
//! the name of the process and a remedy:
//!
//! * [`descriptors`], [`sockets`], [`unix`]: open files and sockets;
//! * [`mappings`], [`system_v`]: mapped files and shared memory;
//! * [`network`]: addresses, groups, devices and routes of the instance;
//! * [`process`]: attributes of a process;
//! * [`places`]: the host's paths of a container's files;
//! * [`watches`]: inotify and fanotify watches;
//! * [`identity`], [`contents`], [`elf`]: whether two hosts have the same file;
//! * [`verify`]: requirements that the destination does not meet.

mod contents;
mod descriptors;
mod elf;
mod identity;
mod mappings;
mod network;
mod places;
mod process;
mod sockets;
mod system_v;
mod unix;
pub mod verify;
mod watches;

pub use descriptors::is_page_turner;
pub use elf::build_id_in;
pub use mappings::range_and_path;
pub use places::used;

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, Metadata};
use std::os::linux::fs::MetadataExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use self::contents::Regular;
use self::places::Places;
use super::container::Container;
use super::task;
use crate::error::{Doing, Result};
use crate::instance::Network;
use crate::report::{Blocker, Contents, FileKind, OpenFile};

/// The process tree to inspect.
pub struct Subject<'a> {
    /// The first process. It shares the namespaces of the node that started it, except those that each instance or container has of its
    /// own.
    pub first: i32,
    /// The instance's link.
    pub network: &'a Network,
    /// Its file systems, if it is a container.
    pub container: Option<&'a Container>,
}

/// An inspection of a process tree in progress.
pub struct Findings<'a> {
    /// The instance's link.
    network: &'a Network,
    first: i32,
    /// The host's paths of its files, if it is a container.
    places: Option<Places<'a>>,
    /// The tree.
    members: HashSet<i32>,
    /// The tree is stopped: the needs are known already, and time matters.
    is_stopped: bool,
    /// Each blocker once, in the order found.
    blockers: Vec<Blocker>,
    files: BTreeMap<PathBuf, OpenFile>,
    regular: &'a mut Regular,
    /// The pipes with an open read end, by the kernel's names.
    pipes: HashSet<PathBuf>,
    memory: u64,
    /// Unnamed files that `memory` already includes, by device and inode number.
    nameless: HashSet<(u64, u64)>,
    kept: u64,
    layer: u64,
}

/// The result of inspecting a running tree.
pub struct Found {
    /// Reasons why it cannot move.
    pub blockers: Vec<Blocker>,
    /// Files that the destination must have too.
    pub files: Vec<OpenFile>,
    /// The memory in use by its processes, including unnamed files, in bytes.
    pub memory: u64,
    /// The contents of its tmpfs mounts, if it is a container, in bytes.
    pub kept: u64,
    /// The files that it has written, if it is a container, in bytes.
    pub layer: u64,
}

/// The kernel's suffix for the path of a deleted file.
const DELETED: &str = " (deleted)";

/// The kernel's prefix for the names of `memfd_create` files.
const MEMORY: &str = "/memfd:";

/// The unit of `st_blocks`, in bytes.
const BLOCK: u64 = 512;

/// The kernel's name for the files of `memfd_secret`.
const SECRET_MEMORY: &str = "/secretmem";

/// How long to repeat an inspection that finds blockers: some last only a moment, such as a lock, or a connection that the program is
/// about to accept.
const MOMENT: Duration = Duration::from_secs(1);
/// Each pause between inspections is longer than the last by this, so that they do not keep step with a program that takes and releases
/// a lock.
const PAUSE: Duration = Duration::from_millis(1);

/// Inspects a tree that runs.
pub fn inspect(subject: &Subject<'_>) -> Result<Found> {
    let mut regular = Regular::default();
    // Only the first look reads file contents; later ones find them in `regular`.
    let mut found = look(subject, &mut regular)?;
    let end = Instant::now() + MOMENT;
    let mut pause = Duration::ZERO;
    while !found.blockers.is_empty() && Instant::now() < end {
        pause += PAUSE;
        thread::sleep(pause);
        found = look(subject, &mut regular)?;
    }
    Ok(found)
}

fn look(subject: &Subject<'_>, regular: &mut Regular) -> Result<Found> {
    let (tree, mut findings) = begin(subject, regular)?;
    // It fails only if the process has ended.
    let _ended = findings.network();
    if findings.places.is_some() {
        findings.mounts();
        findings.message_queues();
    } else {
        findings.system_v();
    }
    for &pid in &tree {
        // A process that ends meanwhile has no blockers.
        let _ended = findings
            .process(pid)
            .and_then(|()| findings.mappings(pid))
            .and_then(|()| findings.descriptors(pid));
    }
    findings.pipes();
    let Findings { blockers, files, memory, kept, layer, .. } = findings;
    Ok(Found { blockers, files: files.into_values().collect(), memory, kept, layer })
}

/// Inspects the open files of a stopped tree again: blockers may have come after the check.
pub fn inspect_stopped(subject: &Subject<'_>) -> Result<Vec<Blocker>> {
    let mut regular = Regular::default();
    let (tree, mut findings) = begin(subject, &mut regular)?;
    findings.is_stopped = true;
    findings.volumes();
    for &pid in &tree {
        findings.descriptors(pid).doing(|| format!("inspecting the open files of process {pid}"))?;
    }
    Ok(findings.blockers)
}

fn begin<'a>(subject: &Subject<'a>, regular: &'a mut Regular) -> Result<(Vec<i32>, Findings<'a>)> {
    let Subject { first, network, container } = *subject;
    let places = container.map(|container| Places::of(container, first)).transpose();
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
    fn block(&mut self, what: impl Into<String>, remedy: impl Into<String>) {
        let blocker = Blocker::new(what, remedy);
        if !self.blockers.contains(&blocker) {
            self.blockers.push(blocker);
        }
    }

    /// CRIU dumps the contents of a deleted file, but not if the file still has another name.
    fn half_deleted(&mut self, pid: i32, path: &Path, how: &str) {
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
        // A file of the image that the layer hides looks the same.
        let replaced = "; if an upgrade replaced a file of the image, restart the program that uses it";
        self.block(format!("{what}, or was replaced in the container"), format!("{remedy}{replaced}"));
    }

    /// Counts an unnamed file, which travels once, however many processes share it: shared memory, for example.
    fn nameless_file(&mut self, metadata: &Metadata) {
        if self.nameless.insert((metadata.st_dev(), metadata.st_ino())) {
            self.memory += metadata.st_blocks() * BLOCK;
        }
    }

    /// Whether a file travels with a container or is created anew, so that it has another inode at the destination.
    fn becomes_another(&self, path: &Path) -> bool {
        self.places.as_ref().is_some_and(|places| places.on_host(path).is_none())
    }

    /// Notes that the destination must have this file. `via` leads to it even if its path has changed.
    fn need(&mut self, path: &Path, via: &Path) {
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
    fn need_on_host(&mut self, path: &Path) {
        self.note(path.to_owned(), path);
    }

    fn note(&mut self, path: PathBuf, via: &Path) {
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

fn kind_of(metadata: &Metadata) -> Option<FileKind> {
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

fn is_same(one: &Metadata, other: &Metadata) -> bool {
    (one.st_dev(), one.st_ino()) == (other.st_dev(), other.st_ino())
}

/// Whether a file has lost the name by which it was opened: `path` is the kernel's name for it, and `metadata` belongs to the open
/// file.
fn is_deleted(path: &Path, metadata: &Metadata) -> bool {
    let marked = path.as_os_str().as_bytes().ends_with(DELETED.as_bytes());
    metadata.st_nlink() == 0 || marked && fs::metadata(path).is_err()
}

/// A process as its user knows it: `sleep (1234)`.
fn named(pid: i32) -> String {
    let name = task::read(&format!("/proc/{pid}/comm")).unwrap_or_default();
    format!("{} ({pid})", name.trim())
}
