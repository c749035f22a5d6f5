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
    /// The mount point of its root.
    pub root: PathBuf,
    /// The directory of the host below its layer; `None` if that is a container image.
    pub rootfs: Option<&'a Path>,
    /// The layer: the files that it has written.
    pub layer: PathBuf,
    /// All bind mounts of the host in it. CRIU makes the other mounts.
    pub binds: &'a [Bind],
    /// The user's bind mounts of the host.
    pub volumes: &'a [Bind],
    /// The cgroup controllers that its limits need.
    pub controllers: &'a [String],
    /// The search path for programs that CRIU starts, if it differs from this process's own.
    pub search_path: Option<&'a OsStr>,
}

impl OwnRoot<'_> {
    /// The mount points of the support files, which each host provides itself.
    pub fn support(&self) -> Vec<PathBuf> {
        let beside = self.binds.iter().filter(|bind| !self.volumes.contains(bind));
        beside.map(|bind| bind.destination.clone()).collect()
    }
}

/// The inputs for the first process of an instance.
pub struct FirstProcess<'a> {
    /// The instance's name.
    pub name: &'a InstanceName,
    /// The program that the instance runs.
    pub program: &'a Program,
    /// The command line of the first process, before the engine's arguments.
    pub init: &'a [OsString],
    /// The network namespace.
    pub network: BorrowedFd<'a>,
    /// The limit of descriptors, unless the instance has one of its own.
    pub descriptors: ResourceLimit,
}

/// The root file system of one instance on this host, and its cgroups. The default methods describe the host's root file system,
/// with which a move does nothing.
pub trait RootFileSystem: Send {
    /// The instance's own file systems; `None` if it uses those of its host.
    fn own(&self) -> Option<OwnRoot<'_>> {
        None
    }

    /// Whether it is made, so that the instance can be started or restored in it.
    fn is_made(&self) -> bool {
        true
    }

    /// Sets the bind mounts with which the instance was made, whichever a new instance would get now.
    fn was_made_with(&mut self, _binds: Vec<Bind>) {}

    /// Starts the command of the instance in it, and returns the PID of its first process, a child of this process.
    fn start(&mut self, first: &FirstProcess<'_>) -> Result<i32>;

    /// Source, once the instance is stopped: begins to pack the files that it has written into its images.
    fn pack_written(&self, _images: &Path) -> Result<Packing> {
        Ok(Packing(None))
    }

    /// Destination: removes the trial that tested whether the instance can be made.
    fn end_trial(&mut self) {}

    /// Destination, before CRIU restores: unpacks the files that the instance has written.
    fn unpack_written(&mut self, _images: &Path, _watch: &Watch<'_>) -> Result<()> {
        Ok(())
    }

    /// Destination: moves the first process of a tree that is being restored into the cgroups. Its children are in there too.
    /// During the restore they may be more than the instance's processes: see [`Self::restore_process_limit`].
    fn join_cgroups(&mut self, _first: i32) -> Result<()> {
        Ok(())
    }

    /// Destination: sets the process limit again, after the tree is restored and has no more processes than before.
    fn restore_process_limit(&mut self) -> Result<()> {
        Ok(())
    }

    /// The memory shortages that its cgroups have recorded.
    fn shortage(&self) -> Shortage {
        Shortage::default()
    }

    /// A cheap function that tells whether the kernel has killed one of its processes for lack of memory since this call; `None` if
    /// the kernel does not count that.
    fn kills(&self) -> Option<Box<dyn Fn() -> bool + Sync>> {
        None
    }

    /// The error for a restore that failed because the kernel has killed processes for lack of memory since `before`, if that
    /// happened.
    fn out_of_memory(&self, _before: Shortage) -> Option<Error> {
        None
    }

    /// Deletes all of it. Succeeds if there is nothing to delete.
    fn remove(&mut self) -> Result<()> {
        Ok(())
    }
}

/// The packing of written files beside CRIU's work, or their unpacking. Dropping it ends it.
pub struct Packing(pub Option<Packer>);

/// The program that packs or unpacks.
pub struct Packer {
    /// The program.
    pub helper: Helper,
    /// How long it may take.
    pub patience: Duration,
    /// The operation, for errors.
    pub doing: String,
}

impl Packing {
    /// Waits until it succeeds, or returns the reason of its failure.
    pub fn succeed(self, watch: &Watch<'_>) -> Result<()> {
        let Some(Packer { helper, patience, doing }) = self.0 else { return Ok(()) };
        helper.succeed(patience, watch.cancelled, || doing)
    }
}
