//! What pins a process tree to its host, found before anything is touched.
//!
//! CRIU itself has the last word when it dumps, and then the instance runs on. Here is what can be
//! told in advance, with its name and the way out:
//!
//! * [`descriptors`], [`sockets`], [`unix`]: what is open;
//! * [`mappings`], [`system_v`]: what is mapped or shared;
//! * [`network`]: what is set up in the instance's network;
//! * [`process`]: what a process is;
//! * [`places`]: where the files of a container are;
//! * [`watches`]: what is watched there;
//! * [`identity`], [`contents`], [`elf`]: by what a file is told from others;
//! * [`verify`]: what the destination lacks.

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
mod written;

pub use descriptors::is_page_turner;
pub use elf::build_id_in;

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
use crate::criu::root::OwnRoot;
use crate::error::{Doing, Result};
use crate::instance::Network;
use crate::linux::task;
use crate::report::{Blocker, Contents, FileKind, OpenFile};

/// The process tree that is looked at.
pub struct Subject<'a> {
    /// The first process, which is in the namespaces of the node that started it, but for those that each instance or container
    /// has.
    pub first: i32,
    /// The instance's link.
    pub network: &'a Network,
    /// Its file systems, if it has any of its own.
    pub own: Option<OwnRoot<'a>>,
}

/// What was found in a process tree.
pub struct Findings<'a> {
    /// The instance's link.
    network: &'a Network,
    first: i32,
    /// Where its files are on the host, if it is a container.
    places: Option<Places<'a>>,
    /// The tree.
    members: HashSet<i32>,
    /// Nothing runs: what the destination must have is known, and time matters.
    is_stopped: bool,
    /// Each reason once, in the order found.
    blockers: Vec<Blocker>,
    files: BTreeMap<PathBuf, OpenFile>,
    regular: &'a mut Regular,
    /// The pipes that can be read from, as the kernel calls them.
    pipes: HashSet<PathBuf>,
    memory: u64,
    /// Files without a name that are in the memory already, by their devices and numbers.
    nameless: HashSet<(u64, u64)>,
    kept: u64,
    layer: u64,
}

/// What is found of a tree that runs.
pub struct Found {
    /// What pins it.
    pub blockers: Vec<Blocker>,
    /// What the destination must have too.
    pub files: Vec<OpenFile>,
    /// The memory that its processes have in use, with their files that have no name, in bytes.
    pub memory: u64,
    /// What is in its file systems in memory, if it is a container, in bytes.
    pub kept: u64,
    /// What it has written, if it is a container, in bytes.
    pub layer: u64,
}

/// What the kernel puts after the name that a file had.
const DELETED: &str = " (deleted)";

/// Begins what the kernel calls memory of `memfd_create`.
const MEMORY: &str = "/memfd:";

/// In what files' lengths on their device are counted, in bytes.
const BLOCK: u64 = 512;

/// What the kernel calls the files of `memfd_secret`.
const SECRET_MEMORY: &str = "/secretmem";

/// How long it is looked again: what is in the way may be there for a moment only, such as a lock, or a connection that
/// is about to be accepted.
const MOMENT: Duration = Duration::from_secs(1);
/// The pauses between grow by this, so that they do not keep step with a program that takes and gives up a lock.
const PAUSE: Duration = Duration::from_millis(1);

/// Inspects a tree that runs.
pub fn inspect(subject: &Subject<'_>) -> Result<Found> {
    let mut regular = Regular::default();
    // It may read much, which the others need not.
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
    // As long as it has not ended.
    let _ended = findings.network();
    if findings.places.is_some() {
        findings.mounts();
        findings.message_queues();
    } else {
        findings.system_v();
    }
    for &pid in &tree {
        // A process that ends meanwhile pins nothing.
        let _ended = findings
            .process(pid)
            .and_then(|()| findings.mappings(pid))
            .and_then(|()| findings.descriptors(pid));
    }
    findings.pipes();
    let Findings { blockers, files, memory, kept, layer, .. } = findings;
    Ok(Found { blockers, files: files.into_values().collect(), memory, kept, layer })
}

/// Looks again at what a tree has open, which is stopped now: what pins it may have come after the check.
pub fn inspect_stopped(subject: &Subject<'_>) -> Result<Vec<Blocker>> {
    let mut regular = Regular::default();
    let (tree, mut findings) = begin(subject, &mut regular)?;
    findings.is_stopped = true;
    findings.volumes();
    for &pid in &tree {
        findings.descriptors(pid).doing(|| format!("looking at what process {pid} has open"))?;
    }
    Ok(findings.blockers)
}

fn begin<'a>(subject: &Subject<'a>, regular: &'a mut Regular) -> Result<(Vec<i32>, Findings<'a>)> {
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
    fn block(&mut self, what: impl Into<String>, remedy: impl Into<String>) {
        let blocker = Blocker::new(what, remedy);
        if !self.blockers.contains(&blocker) {
            self.blockers.push(blocker);
        }
    }

    /// CRIU carries a deleted file in its images, but not one that others may still find by another name.
    fn half_deleted(&mut self, pid: i32, path: &Path, how: &str) {
        let path = path.display().to_string();
        let path = path.trim_end_matches(DELETED);
        if path == SECRET_MEMORY {
            let what = format!("{} has memory that nobody else can read (memfd_secret)", named(pid));
            return self.block(what, "let it unmap and close that before the move");
        }
        let what = format!("{} has {path} {how}, which is deleted but has another name", named(pid));
        let remedy = "let it close the file, or delete its other names too (a semaphore's: sem_unlink)";
        if self.places.is_none() {
            return self.block(what, remedy);
        }
        // A layer says the same of what it only hides.
        let replaced = "; of a file of the image that was replaced, as by an upgrade, start the program again that uses it";
        self.block(format!("{what}, or was replaced in the container"), format!("{remedy}{replaced}"));
    }

    /// What has no name travels, and once, however many processes have it: such is the memory that they share.
    fn nameless_file(&mut self, metadata: &Metadata) {
        if self.nameless.insert((metadata.st_dev(), metadata.st_ino())) {
            self.memory += metadata.st_blocks() * BLOCK;
        }
    }

    /// Whether a file travels with a container, or is made anew: elsewhere it has another inode.
    fn becomes_another(&self, path: &Path) -> bool {
        self.places.as_ref().is_some_and(|places| places.on_host(path).is_none())
    }

    /// The destination must have this file. `via` leads to it whatever its path is now.
    fn need(&mut self, path: &Path, via: &Path) {
        if self.is_stopped {
            return;
        }
        // What a container has not from its host travels.
        let path = match &self.places {
            Some(places) => places.on_host(path),
            None => Some(path.to_owned()),
        };
        let Some(path) = path else { return };
        self.note(path, via);
    }

    /// The destination must have the same at `path` as this host has. What is in a folder may differ, as far as it is not in use.
    fn need_on_host(&mut self, path: &Path) {
        self.note(path.to_owned(), path);
    }

    fn note(&mut self, path: PathBuf, via: &Path) {
        if self.files.contains_key(&path) {
            return;
        }
        let Ok(metadata) = fs::metadata(via) else { return };
        // No host has the same of what is none of these, such as a socket.
        let kind = kind_of(&metadata).unwrap_or(FileKind::Regular);
        let is_regular = metadata.is_file();
        let identity = is_regular.then(|| self.regular.identity(&metadata));
        let contents = if is_regular { self.regular.contents(via, &metadata) } else { Contents::Any };
        // Closed meanwhile it is not needed, and something else may have been read.
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

/// Whether a file has lost the name by which it was opened: `path` is what the kernel calls it, `metadata` is of what is
/// open.
fn is_deleted(path: &Path, metadata: &Metadata) -> bool {
    let marked = path.as_os_str().as_bytes().ends_with(DELETED.as_bytes());
    metadata.st_nlink() == 0 || marked && fs::metadata(path).is_err()
}

/// A process as its user knows it: `sleep (1234)`.
fn named(pid: i32) -> String {
    let name = task::read(&format!("/proc/{pid}/comm")).unwrap_or_default();
    format!("{} ({pid})", name.trim())
}
