//! Blockers: reasons why a process tree cannot move, found before anything is stopped.
//!
//! CRIU may still refuse when it dumps, and then the instance runs on. The modules here find what can be known in advance, each with
//! the name of the process and a remedy:
//!
//! * [`findings`]: the result, to which the other modules add;
//! * [`descriptors`], [`sockets`], [`unix`]: open files and sockets;
//! * [`mappings`], [`system_v`]: mapped files and shared memory;
//! * [`network`]: addresses, groups, devices and routes of the instance;
//! * [`process`]: attributes of a process;
//! * [`places`], [`mounts`], [`written`]: the host's paths of a container's files, its mounts, and its written files;
//! * [`watches`]: inotify and fanotify watches;
//! * [`identity`], [`contents`], [`elf`]: whether two hosts have the same file;
//! * [`verify`]: requirements that the destination does not meet.

mod contents;
mod descriptors;
mod elf;
mod findings;
pub mod identity;
mod mappings;
mod mounts;
mod network;
mod places;
mod process;
mod sockets;
mod system_v;
mod unix;
pub mod verify;
mod watches;
mod written;

pub use self::descriptors::is_page_turner;
pub use self::elf::build_id_in;
pub use self::findings::Subject;

use std::thread;
use std::time::{Duration, Instant};

use self::contents::Regular;
use self::findings::{Findings, begin};
use crate::error::{Doing, Result};
use crate::instance::Blocker;
use crate::report::OpenFile;

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

/// How long to repeat an inspection that finds blockers: some last only a moment, such as a lock, or a connection that the program is
/// about to accept.
const MOMENT: Duration = Duration::from_secs(1);
/// Each pause between inspections is longer than the last by this, so that they do not keep step with a program that takes and releases
/// a lock.
const PAUSE: Duration = Duration::from_millis(1);

/// Inspects a running tree.
pub fn inspect(subject: &Subject<'_>) -> Result<Found> {
    let mut regular = Regular::default();
    // Only the first inspection reads file contents; later ones find them in `regular`.
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

/// Inspects the open files of a stopped tree again: blockers may have arisen after the check.
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
