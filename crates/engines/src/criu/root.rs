//! The root file system of an instance, as CRIU and the phases of a move use it.
//!
//! A process instance uses the file systems of its host. A container has a root and cgroups of its own. CRIU does not make them, and
//! this module knows nothing of containers: both use [`RootFileSystem`].

use std::ffi::{OsStr, OsString};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use instance::container::Bind;

use crate::engine::Watch;
use crate::error::{Error, Result};
use crate::instance::{InstanceName, Program, ResourceLimit};
use crate::linux::helper::Helper;
use crate::report::Shortage;

/// The file systems that an instance has of its own, as this host sees them.
#[derive(Clone, Debug)]
pub struct OwnRoot<'a> {
    /// Where its root is mounted.
    pub root: PathBuf,
    /// The directory of the host below its layer; `None` if that is a container image.
    pub rootfs: Option<&'a Path>,
    /// The layer with what it has written.
    pub layer: PathBuf,
    /// What it sees of the host beside its root. CRIU mounts all else.
    pub binds: &'a [Bind],
    /// What the user shows it of the host.
    pub volumes: &'a [Bind],
    /// The cgroup controllers that its limits need.
    pub controllers: &'a [String],
    /// Where CRIU finds programs, if not where this process does.
    pub search_path: Option<&'a OsStr>,
}

impl OwnRoot<'_> {
    /// Where it sees what each host has of its own for containers.
    pub fn support(&self) -> Vec<PathBuf> {
        let beside = self.binds.iter().filter(|bind| !self.volumes.contains(bind));
        beside.map(|bind| bind.destination.clone()).collect()
    }
}

/// What the first process of an instance is started with.
pub struct FirstProcess<'a> {
    /// The instance's name.
    pub name: &'a InstanceName,
    /// The program that the instance runs.
    pub program: &'a Program,
    /// The command of the first process, with the arguments that come before the engine's.
    pub init: &'a [OsString],
    /// The network namespace.
    pub network: BorrowedFd<'a>,
    /// The limit of descriptors, unless the instance has one of its own.
    pub descriptors: ResourceLimit,
}

/// The root file system of one instance on this host, and its cgroups. As it stands here it is that of its host, which needs
/// nothing in a move.
pub trait RootFileSystem: Send {
    /// The file systems of its own; `None` if it sees those of its host.
    fn own(&self) -> Option<OwnRoot<'_>> {
        None
    }

    /// Whether it is made, so that the instance can be started or restored in it.
    fn is_made(&self) -> bool {
        true
    }

    /// What the instance sees of the host since it was made, whatever one that is made now would see.
    fn was_made_with(&mut self, _binds: Vec<Bind>) {}

    /// Starts the command of the instance in it, and returns the number of its first process, which is our child.
    fn start(&mut self, first: &FirstProcess<'_>) -> Result<i32>;

    /// Source, once the instance is stopped: begins to pack what it has written into its images.
    fn pack_written(&self, _images: &Path) -> Result<Packing> {
        Ok(Packing(None))
    }

    /// Destination: ends what only tried whether the instance can be made.
    fn end_trial(&mut self) {}

    /// Destination, before CRIU restores: brings back what the instance has written.
    fn unpack_written(&mut self, _images: &Path, _watch: &Watch<'_>) -> Result<()> {
        Ok(())
    }

    /// Destination: puts the first process of a tree that is being restored into the cgroups. What it forks is there too, and may be
    /// more than there will be processes: see [`Self::restore_process_limit`].
    fn join_cgroups(&mut self, _first: i32) -> Result<()> {
        Ok(())
    }

    /// Destination: the tree is restored, and has no more processes than before.
    fn restore_process_limit(&mut self) -> Result<()> {
        Ok(())
    }

    /// What its cgroups tell of memory.
    fn shortage(&self) -> Shortage {
        Shortage::default()
    }

    /// What tells, at little cost, whether the kernel has ended one of its processes for want of memory from now on; `None` if
    /// that is not counted.
    fn kills(&self) -> Option<Box<dyn Fn() -> bool + Sync>> {
        None
    }

    /// Why the kernel has ended what was being restored, if that is what happened since there was `before`.
    fn out_of_memory(&self, _before: Shortage) -> Option<Error> {
        None
    }

    /// Deletes all of it. Nothing to do is no error.
    fn remove(&mut self) -> Result<()> {
        Ok(())
    }
}

/// What an instance has written, while it is packed beside CRIU's work, or unpacked. It ends with this.
pub struct Packing(pub Option<Packer>);

/// The program that packs or unpacks.
pub struct Packer {
    /// The program.
    pub helper: Helper,
    /// How long it may take.
    pub patience: Duration,
    /// What it does, to say so if it fails.
    pub doing: String,
}

impl Packing {
    /// Waits for a good end; otherwise it says why.
    pub fn succeed(self, watch: &Watch<'_>) -> Result<()> {
        let Some(Packer { helper, patience, doing }) = self.0 else { return Ok(()) };
        helper.succeed(patience, watch.cancelled, || doing)
    }
}
