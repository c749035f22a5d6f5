//! Containers: instances with a root file system of their own, made by an OCI runtime.
//!
//! ```text
//! source                          destination
//!   create                          create          the runtime makes it, with its cgroup; nothing runs in it yet
//!   start                           end_trial       this container was a trial: only its cgroup stays
//!   pack_written    the layer       unpack_written  unpacks the layer and mounts the root; CRIU mounts the rest
//!   remove                          remove
//! ```
//!
//! * [`containers`]: all containers of a host;
//! * [`overlay`]: the root of a container, an overlay file system with a layer of its own;
//! * [`runtime`], [`oci`]: calls of the OCI runtime, and the configuration for it;
//! * [`unpacked`]: unpacked container images of this host;
//! * [`layer`]: packs and unpacks the layer for a move;
//! * [`support`], [`libraries`]: files of the host that every container sees;
//! * [`cgroup`]: the cgroups of a container.

pub mod containers;
pub mod layer;
pub mod libraries;
pub mod oci;
pub mod overlay;
pub mod runtime;
pub mod support;
pub mod unpacked;

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process;
use std::time::Duration;

use self::oci::Wanted;
use self::overlay::Overlay;
use self::runtime::Runtime;
use crate::criu::root::{FirstProcess, OwnRoot, Packing, RootFileSystem};
use crate::engine::Watch;
use crate::error::{Doing, Error, Result};
use crate::instance::{InstanceName, Program};
use crate::linux::cgroup::{self, Kills, LiftedLimit};
use crate::linux::files::absent_is_fine;
use crate::linux::mountinfo::mountpoints;
use crate::linux::spawn::descriptor_limit;
use crate::linux::task::{Task, TaskId};
use crate::report::Shortage;
use instance::container::{Bind, Config};

/// How long killed processes may take to end.
const KILLED: Duration = Duration::from_secs(10);

/// A container on this host.
pub struct Container {
    name: InstanceName,
    runtime: Runtime,
    folder: PathBuf,
    overlay: Overlay,
    /// Whether the directory below its layer belongs to a container image.
    is_of_image: bool,
    /// The user's bind mounts of the host.
    own: Vec<Bind>,
    /// All bind mounts of the host.
    binds: Vec<Bind>,
    /// The cgroup controllers that its limits need.
    controllers: Vec<String>,
    /// The mount points in it.
    places: Vec<PathBuf>,
    /// The first process that the runtime has made, as long as it waits to be started.
    waiting: Option<Task>,
    /// The files with which later processes join its cgroups.
    doors: Vec<File>,
    /// Its limit of processes while it is restored.
    lifted: Option<LiftedLimit>,
    search_path: Option<OsString>,
}

impl Container {
    fn beside_own(&self) -> impl Iterator<Item = &Bind> {
        self.binds.iter().filter(|bind| !self.own.contains(bind))
    }

    /// Refuses what is missing on this host: the runtime's own error would only name a failed call.
    pub fn all_is_here(&self) -> Result<()> {
        let name = &self.name;
        if !self.overlay.rootfs().is_dir() {
            let what = format!(
                "the root file system of `{name}`, {}, is not a directory on this host",
                self.overlay.rootfs().display()
            );
            return Err(Error::unusable(what, "create it on this host too, at the same path"));
        }
        let strange = |path: &&Path| path.as_os_str().as_bytes().iter().any(|byte| b",:\\".contains(byte));
        if let Some(path) = [self.overlay.rootfs(), &self.folder].into_iter().find(strange) {
            let what = format!("{} has a comma, a colon or a backslash in its name", path.display());
            return Err(Error::unusable(what, "use a path without these characters"));
        }
        match self.binds.iter().find(|bind| !bind.source.exists()) {
            None => Ok(()),
            Some(Bind { source, .. }) => {
                let what = format!("{}, which `{name}` mounts, is not on this host", source.display());
                Err(Error::unusable(what, "create it on this host too, at the same path"))
            }
        }
    }

    /// Lets the runtime make it, with a first process that `init` runs. Nothing runs in it yet.
    pub fn make(
        &mut self,
        program: &Program,
        config: Config,
        network: BorrowedFd<'_>,
        init: Vec<String>,
    ) -> Result<()> {
        let folder = self.folder.clone();
        let doing = || format!("making the container of `{}` in {}", self.name, folder.display());
        private::directory(&self.folder)
            .and_then(|()| self.overlay.lay_out())
            .and_then(|()| self.overlay.mount())
            .doing(doing)?;
        let network = PathBuf::from(format!("/proc/{}/fd/{}", process::id(), network.as_raw_fd()));
        let wanted = Wanted {
            name: &self.name,
            program,
            config,
            root: &self.overlay.root(),
            network: &network,
            cgroup: &format!("/{}", self.cgroup()),
            descriptors: descriptor_limit(),
            init,
            beside: self.beside_own().cloned().collect(),
        };
        fs::write(self.folder.join("config.json"), wanted.configuration().to_string()).doing(doing)?;
        self.runtime.call(&["create", "--pid-file", "pid", "--bundle", "."])?;
        let pid = fs::read_to_string(self.folder.join("pid")).doing(doing)?;
        let pid = pid.trim().parse().map_err(io::Error::other).doing(doing)?;
        self.waiting = TaskId::of(pid).ok().and_then(Task::open);
        self.doors = cgroup::doors(pid).doing(doing)?;
        self.is_mounted_as_said(pid)
    }

    /// Refuses a path through a symbolic link, and a file system mounted below another one: CRIU would get wrong mount points.
    fn is_mounted_as_said(&self, pid: i32) -> Result<()> {
        let mounts = mountpoints(pid).doing(|| format!("reading the mounts of `{}`", self.name))?;
        for Bind { source, destination } in &self.binds {
            if !mounts.contains(destination) {
                let what =
                    format!("{} leads through a symbolic link in `{}`", destination.display(), self.name);
                return Err(Error::unusable(what, "mount it at the link's target path"));
            }
            let below = |path: &&PathBuf| path.starts_with(destination) && *path != destination;
            let known = |path: &&PathBuf| self.places.contains(*path);
            if let Some(path) = mounts.iter().filter(below).find(|path| !known(path)) {
                let what = format!(
                    "{}, which `{}` mounts, contains another file system, mounted at {}",
                    source.display(),
                    self.name,
                    path.display()
                );
                return Err(Error::unusable(
                    what,
                    "mount that one separately too, or use `bind` instead of `rbind`",
                ));
            }
        }
        Ok(())
    }

    /// The file with `tar`'s standard error.
    fn tar_log(&self) -> PathBuf {
        self.folder.join("tar.log")
    }

    /// The name of its cgroups.
    fn cgroup(&self) -> String {
        fabric::cgroup_name(&self.folder)
    }
}

impl RootFileSystem for Container {
    fn own(&self) -> Option<OwnRoot<'_>> {
        Some(OwnRoot {
            root: self.overlay.root(),
            rootfs: (!self.is_of_image).then_some(self.overlay.rootfs()),
            layer: self.overlay.layer(),
            binds: &self.binds,
            volumes: &self.own,
            controllers: &self.controllers,
            search_path: self.search_path.as_deref(),
        })
    }

    fn is_made(&self) -> bool {
        !self.doors.is_empty()
    }

    fn was_made_with(&mut self, binds: Vec<Bind>) {
        self.binds = binds;
    }

    fn start(&mut self, _: &FirstProcess<'_>) -> Result<i32> {
        let gone = || Error::State { name: self.name.clone(), is: "gone", must: "prepared" };
        let first = self.waiting.take().ok_or_else(gone)?;
        self.runtime.call(&["start"])?;
        Ok(first.id().pid)
    }

    fn end_trial(&mut self) {
        if let Some(waiting) = self.waiting.take() {
            let _gone = waiting.signal(libc::SIGKILL);
            waiting.ended_within(KILLED);
        }
    }

    fn pack_written(&self, images: &Path) -> Result<Packing> {
        let doing = format!("packing the written files of `{}`", self.name);
        layer::pack(&self.overlay.layer(), images, self.tar_log(), doing)
    }

    fn unpack_written(&mut self, images: &Path, watch: &Watch<'_>) -> Result<()> {
        self.end_trial();
        let doing = format!("unpacking the written files of `{}`", self.name);
        self.overlay.unmount().and_then(|()| self.overlay.lay_out()).doing(|| doing.clone())?;
        layer::unpack(&self.overlay.layer(), images, self.tar_log(), doing.clone())?.succeed(watch)?;
        self.overlay.mount().doing(|| doing)
    }

    fn join_cgroups(&mut self, first: i32) -> Result<()> {
        let limiting = || format!("setting the resource limits of `{}`", self.name);
        if self.lifted.is_none() {
            self.lifted = LiftedLimit::of(&self.cgroup()).doing(limiting)?;
        }
        cgroup::join(&self.doors, first).doing(limiting)
    }

    fn restore_process_limit(&mut self) -> Result<()> {
        let Some(lifted) = &self.lifted else { return Ok(()) };
        lifted.set_again().doing(|| format!("setting the process limit of `{}`", self.name))?;
        self.lifted = None;
        Ok(())
    }

    fn shortage(&self) -> Shortage {
        cgroup::shortage(&self.cgroup()).unwrap_or_default()
    }

    fn kills(&self) -> Option<Box<dyn Fn() -> bool + Sync>> {
        let kills = Kills::of(&self.cgroup())?;
        Some(Box::new(move || kills.any()))
    }

    fn out_of_memory(&self, before: Shortage) -> Option<Error> {
        let name = &self.name;
        let Shortage { kills, limit } = self.shortage();
        match limit {
            _ if kills == before.kills => None,
            Some(limit) => {
                let limit = limit >> 20;
                let what = format!("`{name}` needs more memory than its limit on this host, {limit} MiB");
                Some(Error::unusable(
                    what,
                    "have it use less memory, or start it with a higher limit (`--memory`)",
                ))
            }
            None => {
                let what = format!("this host has too little memory for `{name}`");
                Some(Error::unusable(what, "choose another host, or end another instance there"))
            }
        }
    }

    fn remove(&mut self) -> Result<()> {
        self.waiting = None;
        self.doors.clear();
        if self.runtime.knows_of_it()
            && let Err(error) = self.runtime.call(&["delete", "--force"])
        {
            // Its folder may be gone, or still be used by a process that was just killed.
            let cleared = cgroup::remove(&self.cgroup());
            cleared.map_err(|_| error)?;
        }
        let remove = || {
            self.overlay.unmount()?;
            absent_is_fine(fs::remove_dir_all(&self.folder))
        };
        remove().doing(|| format!("deleting the container of `{}`", self.name))
    }
}
