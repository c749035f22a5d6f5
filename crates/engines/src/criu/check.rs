//! What pins a process tree to its host, found before anything is touched.
//!
//! CRIU itself has the last word when it dumps, and then the instance runs on. Here is what can be
//! told in advance, with its name and the way out:
//!
//! * [`findings`]: all that is found, to which each of these adds:
//! * [`descriptors`], [`sockets`], [`unix`]: what is open;
//! * [`mappings`], [`system_v`]: what is mapped or shared;
//! * [`network`]: what is set up in the instance's network;
//! * [`process`]: what a process is;
//! * [`places`], [`mounts`], [`written`]: where the files of a container are, what it has mounted, and what it has written;
//! * [`watches`]: what is watched there;
//! * [`identity`], [`contents`], [`elf`]: by what a file is told from others;
//! * [`verify`]: what the destination lacks.

mod contents;
mod descriptors;
mod elf;
mod findings;
mod identity;
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
use crate::report::{Blocker, OpenFile};

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
