//! Containers: instances with a root file system of their own, which an OCI runtime makes.
//!
//! ```text
//! source                          destination
//!   create                          create        the runtime makes it, with its cgroup: nothing runs in it yet
//!   start                           make_way      it was a trial, and only the cgroup stays
//!   carry       the layer's image   bring_back    the layer and the root; CRIU mounts all else, and runs in the cgroup
//!   remove                          remove
//! ```
//!
//! The root is an overlay file system: the lower directory is the user's, the upper one is the instance's own layer.

use std::ffi::{CString, OsStr, OsString};
use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{self, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::cgroup::LiftedLimit;
use super::helper::ended_within;
use super::layer::{self, Packing};
use super::oci::Wanted;
use super::record::absent_is_fine;
use super::support::Support;
use super::task::{Task, TaskId};
use super::unpacked::Unpacked;
use super::written::Written;
use super::{archives, cgroup, images, launch};
use crate::engine::Watch;
use crate::error::{Doing, Error, Result};
use crate::instance::container::{Bind, Config};
use crate::instance::{self, ContainerImage, InstanceName, Root};
use crate::report::{Blocker, Needs, Shortage};

/// The configuration for containers on a host.
#[derive(Clone, Debug)]
pub struct ContainerConfig {
    /// The OCI runtime, if there is one: runc, or one with the same commands.
    pub runtime: Option<PathBuf>,
    /// The directory in which each container has a folder with its mounted root; used by this node alone.
    pub folder: PathBuf,
    /// The directory for unpacked images; used by this node alone.
    pub unpacked: PathBuf,
    /// The folder with the drop-in libraries.
    pub libraries: Option<PathBuf>,
    /// The file that containers see as `/etc/hosts`.
    pub hosts: Option<PathBuf>,
}

/// How long the runtime may take for a call, which takes some hundredths of a second.
const CALL: Duration = Duration::from_secs(30);
/// How long what was killed may take to end.
const KILLED: Duration = Duration::from_secs(10);

/// Makes containers.
pub struct Containers {
    runtime: Option<PathBuf>,
    support: Support,
    images: Unpacked,
    /// A folder of each in there.
    folder: PathBuf,
    /// What an instance's first process is started with.
    init: Vec<OsString>,
    /// Where CRIU finds programs, if not where this process does.
    search_path: Option<OsString>,
}

/// A container on this host.
pub struct Container {
    name: InstanceName,
    runtime: Option<PathBuf>,
    folder: PathBuf,
    /// The directory below its layer.
    rootfs: Arc<PathBuf>,
    /// Whether that is an image's.
    is_of_image: bool,
    /// What the user shows it of the host.
    own: Vec<Bind>,
    /// All that it sees of the host beside its root.
    binds: Vec<Bind>,
    /// The cgroup controllers that its limits need.
    controllers: Vec<String>,
    /// Where file systems are mounted in it.
    places: Vec<PathBuf>,
    /// What the runtime has made, as long as it waits to be started.
    waiting: Option<Task>,
    /// By which its processes join its cgroups, for those that are yet to come.
    doors: Vec<File>,
    /// Its limit of processes while it is restored.
    lifted: Option<LiftedLimit>,
    search_path: Option<OsString>,
}

impl Containers {
    /// Nothing is made yet, but a folder in `state`.
    pub fn new(config: &ContainerConfig, init: &[OsString], state: &Path) -> Result<Self> {
        let program = init.first().map(PathBuf::from).unwrap_or_default();
        let support = Support::find(&program, config.libraries.as_deref(), config.hosts.as_deref())
            .doing(|| "finding the files that containers need from this host".into())?;
        let folder =
            std::path::absolute(&config.folder).doing(|| format!("finding {}", config.folder.display()))?;
        let unpacked = std::path::absolute(&config.unpacked)
            .doing(|| format!("finding {}", config.unpacked.display()))?;
        let images = Unpacked::new(unpacked, init);
        // Without it, archives are compressed.
        let search_path = archives::provide(&state.join("tools")).ok();
        Ok(Self {
            runtime: config.runtime.clone(),
            support,
            images,
            folder,
            init: init.to_vec(),
            search_path,
        })
    }

    /// Whether there is anything that makes containers.
    pub fn has_runtime(&self) -> bool {
        self.runtime.is_some()
    }

    /// Room for what containers write, in bytes.
    pub fn room(&self) -> u64 {
        // The folder comes with the first of them.
        let there = self.folder.ancestors().find(|folder| folder.exists());
        there.and_then(|folder| images::free_bytes(folder).ok()).unwrap_or(0)
    }

    /// Why this host cannot have an image, if it cannot.
    pub fn lack(&self, image: &ContainerImage) -> Option<Blocker> {
        self.images.lack(image).map(|error| {
            let what = format!("the destination does not have the container's image ({})", error.what);
            Blocker::new(what, error.remedy)
        })
    }

    /// The support files that a container has on another host and that this host lacks.
    pub fn unsupported(&self, needs: &Needs) -> Vec<Blocker> {
        let lacks = needs.support.iter().filter(|place| !self.support.has(place, needs.rootfs.as_deref()));
        lacks
            .map(|place| {
                let what = format!(
                    "the destination has no file for {}, which the container mounts",
                    place.display()
                );
                Blocker::new(what, "run the same version of transhume on both hosts, with the same libraries")
            })
            .collect()
    }

    /// The container of an instance, which is here already or yet to be made.
    pub fn find(&self, name: &InstanceName, wanted: &instance::Container) -> Result<Container> {
        Ok(self.new_container(name, wanted, &parse(&wanted.config)?))
    }

    fn new_container(&self, name: &InstanceName, wanted: &instance::Container, config: &Config) -> Container {
        let rootfs = match &wanted.root {
            Root::Image(image) => self.images.place(&image.root),
            Root::Directory(directory) => Arc::new(directory.clone()),
        };
        Container {
            name: name.clone(),
            runtime: self.runtime.clone(),
            folder: self.folder.join(name.as_str()),
            is_of_image: wanted.image().is_some(),
            own: config.binds().to_vec(),
            binds: self.binds(config, wanted, &rootfs),
            rootfs,
            controllers: config.controllers(),
            places: config.places(),
            waiting: None,
            doors: Vec::new(),
            lifted: None,
            search_path: self.search_path.clone(),
        }
    }

    /// Programs of a container are told to load the libraries, whether or not they are there.
    fn has_libraries_for(&self, name: &InstanceName, wanted: &instance::Container) -> Result<()> {
        if !wanted.rdma || self.support.has_libraries() {
            return Ok(());
        }
        let what = format!("the RDMA libraries, which `{name}` needs, are missing on this host");
        let remedy = "build them beside the node's program with `make build` and restart the node, or start the instance with \
            `--without-rdma`";
        Err(Error::unusable(what, remedy))
    }

    /// What a container of `rootfs` sees of the host.
    fn binds(&self, config: &Config, wanted: &instance::Container, rootfs: &Path) -> Vec<Bind> {
        let beside = self.support.binds_beside(config);
        let over = wanted.rdma.then(|| self.support.binds_over(config, rootfs));
        config.binds().iter().cloned().chain(beside).chain(over.into_iter().flatten()).collect()
    }

    /// What the cgroups of the container of this name tell of memory.
    pub fn shortage(&self, name: &InstanceName) -> Shortage {
        cgroup::shortage(&fabric::cgroup_name(&self.folder.join(name.as_str()))).unwrap_or_default()
    }

    /// Has the runtime make a container that waits to be started, in this network namespace. It takes the place of a crash's
    /// leftover.
    pub fn create(
        &self,
        name: &InstanceName,
        wanted: &instance::Container,
        network: BorrowedFd<'_>,
    ) -> Result<Container> {
        let config = parse(&wanted.config)?;
        self.has_libraries_for(name, wanted)?;
        let mut container = self.new_container(name, wanted, &config);
        container.remove()?;
        if let Some(image) = wanted.image() {
            self.images.provide(image, &container.rootfs)?;
            container.binds = self.binds(&config, wanted, &container.rootfs);
        }
        container.all_is_here()?;
        let made = container.make(self, &wanted.program, config, network);
        if let Err(error) = made {
            container.remove()?;
            return Err(error);
        }
        Ok(container)
    }
}

fn parse(config: &str) -> Result<Config> {
    Config::parse(config).map_err(|why| Error::unusable(why.what, why.remedy))
}

impl Container {
    /// Where its root is mounted.
    pub fn root(&self) -> PathBuf {
        self.folder.join("root")
    }

    /// The layer with what it has written.
    pub fn layer(&self) -> PathBuf {
        self.folder.join("layer")
    }

    /// Where CRIU finds programs, if not where this process does.
    pub fn search_path(&self) -> Option<&OsStr> {
        self.search_path.as_deref()
    }

    /// Where the overlay file system keeps what it has not finished.
    fn work(&self) -> PathBuf {
        self.folder.join("work")
    }

    /// The directory of the host of which it was made; `None` if that is an image.
    pub fn rootfs(&self) -> Option<&Path> {
        (!self.is_of_image).then_some(self.rootfs.as_path())
    }

    /// What it sees of the host, beside its root.
    pub fn binds(&self) -> &[Bind] {
        &self.binds
    }

    /// What of these it has seen since it was made, whatever one that is made now would.
    pub fn was_made_with(&mut self, binds: Vec<Bind>) {
        self.binds = binds;
    }

    /// Where it sees what each host has of its own for containers.
    pub fn support(&self) -> Vec<PathBuf> {
        self.beside_own().map(|bind| bind.destination.clone()).collect()
    }

    fn beside_own(&self) -> impl Iterator<Item = &Bind> {
        self.binds.iter().filter(|bind| !self.own.contains(bind))
    }

    /// The cgroup controllers that its limits need.
    pub fn controllers(&self) -> Vec<String> {
        self.controllers.clone()
    }

    /// What the user shows it of the host.
    pub fn own(&self) -> &[Bind] {
        &self.own
    }

    /// Whether it has been made, and can be started or restored.
    pub fn is_made(&self) -> bool {
        !self.doors.is_empty()
    }

    /// Puts the first process of a tree that is being restored into the cgroups. What it forks is there too, and may be more than
    /// there will be processes: see [`Self::limit_processes`].
    pub fn take_in(&mut self, first: i32) -> Result<()> {
        let limiting = || format!("setting the resource limits of `{}`", self.name);
        if self.lifted.is_none() {
            self.lifted = LiftedLimit::of(&self.cgroup()).doing(limiting)?;
        }
        cgroup::take_in(&self.doors, first).doing(limiting)
    }

    /// The tree is restored, and has no more processes than before.
    pub fn limit_processes(&mut self) -> Result<()> {
        let Some(lifted) = &self.lifted else { return Ok(()) };
        lifted.set_again().doing(|| format!("setting the process limit of `{}`", self.name))?;
        self.lifted = None;
        Ok(())
    }

    /// The name of its cgroups.
    pub fn cgroup(&self) -> String {
        fabric::cgroup_name(&self.folder)
    }

    /// What its cgroups tell of memory.
    pub fn shortage(&self) -> Shortage {
        cgroup::shortage(&self.cgroup()).unwrap_or_default()
    }

    /// Why the kernel has ended what was being restored, if that is what happened since there was `before`.
    pub fn too_large(&self, before: Shortage) -> Option<Error> {
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

    /// The runtime names what is missing by a call that failed.
    fn all_is_here(&self) -> Result<()> {
        let name = &self.name;
        if !self.rootfs.is_dir() {
            let what = format!(
                "the root file system of `{name}`, {}, is not a directory on this host",
                self.rootfs.display()
            );
            return Err(Error::unusable(what, "create it on this host too, at the same path"));
        }
        let strange = |path: &&PathBuf| path.as_os_str().as_bytes().iter().any(|byte| b",:\\".contains(byte));
        if let Some(path) = [self.rootfs.as_ref(), &self.folder].into_iter().find(strange) {
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

    fn make(
        &mut self,
        all: &Containers,
        program: &instance::Program,
        config: Config,
        network: BorrowedFd<'_>,
    ) -> Result<()> {
        let folder = self.folder.clone();
        let doing = || format!("making the container of `{}` in {}", self.name, folder.display());
        private::directory(&self.folder)
            .and_then(|()| self.lay_out())
            .and_then(|()| self.mount_root())
            .doing(doing)?;
        let network = PathBuf::from(format!("/proc/{}/fd/{}", process::id(), network.as_raw_fd()));
        let wanted = Wanted {
            name: &self.name,
            program,
            config,
            root: &self.root(),
            network: &network,
            cgroup: &format!("/{}", self.cgroup()),
            descriptors: launch::descriptor_limit(),
            init: all.support.init(&all.init),
            beside: self.beside_own().cloned().collect(),
        };
        fs::write(self.folder.join("config.json"), wanted.configuration().to_string()).doing(doing)?;
        self.call(&["create", "--pid-file", "pid", "--bundle", "."])?;
        let pid = fs::read_to_string(self.folder.join("pid")).doing(doing)?;
        let pid = pid.trim().parse().map_err(io::Error::other).doing(doing)?;
        self.waiting = TaskId::of(pid).ok().and_then(Task::open);
        self.doors = cgroup::doors(pid).doing(doing)?;
        self.is_mounted_as_said(pid)
    }

    /// A path through a symbolic link, or a file system below another one, is not what CRIU would be told.
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

    /// Has the runtime start the command, and returns the first process' number.
    pub fn start(&mut self) -> Result<i32> {
        let gone = || Error::State { name: self.name.clone(), is: "gone", must: "prepared" };
        let first = self.waiting.take().ok_or_else(gone)?;
        self.call(&["start"])?;
        Ok(first.id().pid)
    }

    /// Ends what only tried whether it can be made, but for its cgroups.
    pub fn make_way(&mut self) {
        if let Some(waiting) = self.waiting.take() {
            let _gone = waiting.signal(libc::SIGKILL);
            waiting.ended_within(KILLED);
        }
    }

    /// Begins to pack the layer as an image: the instance is stopped.
    pub fn begin_to_carry(&self, images: &Path) -> Result<Packing> {
        let doing = format!("packing the written files of `{}`", self.name);
        layer::pack(&self.layer(), images, self.tar_log(), doing)
    }

    /// Unpacks the layer, and mounts the root with it.
    pub fn bring_back(&mut self, images: &Path, watch: &Watch<'_>) -> Result<()> {
        self.make_way();
        let doing = format!("unpacking the written files of `{}`", self.name);
        self.unmount_root().and_then(|()| self.lay_out()).doing(|| doing.clone())?;
        layer::unpack(&self.layer(), images, self.tar_log(), doing.clone())?.succeed(watch)?;
        self.mount_root().doing(|| doing)
    }

    /// What `tar` complains of.
    fn tar_log(&self) -> PathBuf {
        self.folder.join("tar.log")
    }

    /// What is in the layer.
    pub fn written(&self) -> Written {
        Written::below(&self.layer())
    }

    /// Ends what waits; deletes all of it. Nothing to do is no error.
    pub fn remove(&mut self) -> Result<()> {
        self.waiting = None;
        self.doors.clear();
        if self.runtime_folder().exists()
            && let Err(error) = self.call(&["delete", "--force"])
        {
            // It may be gone itself, or be used by what has just been killed.
            let cleared = cgroup::remove(&self.cgroup());
            cleared.map_err(|_| error)?;
        }
        let remove = || {
            self.unmount_root()?;
            absent_is_fine(fs::remove_dir_all(&self.folder))
        };
        remove().doing(|| format!("deleting the container of `{}`", self.name))
    }

    /// Makes an empty layer.
    fn lay_out(&self) -> io::Result<()> {
        let layer = self.layer();
        for folder in [&layer, &self.work(), &self.root()] {
            absent_is_fine(fs::remove_dir_all(folder))?;
            fs::create_dir(folder)?;
        }
        // It is the root directory that the instance sees.
        let rootfs = fs::metadata(self.rootfs.as_path())?;
        fs::set_permissions(&layer, Permissions::from_mode(rootfs.mode()))?;
        std::os::unix::fs::chown(&layer, Some(rootfs.uid()), Some(rootfs.gid()))
    }

    fn mount_root(&self) -> io::Result<()> {
        let (layer, work, root) = (self.layer(), self.work(), self.root());
        // What the layer refers to by number would be something else on another host.
        let options = format!(
            "lowerdir={},upperdir={},workdir={},index=off,metacopy=off,redirect_dir=off,xino=off",
            self.rootfs.display(),
            layer.display(),
            work.display()
        );
        let (root, options) = (CString::new(root.as_os_str().as_bytes())?, CString::new(options)?);
        let kind = c"overlay".as_ptr();
        // SAFETY: all are live C strings.
        check(unsafe { libc::mount(kind, root.as_ptr(), kind, 0, options.as_ptr().cast()) })?;
        // SAFETY: the path is a live C string, and nothing else is passed.
        check(unsafe {
            libc::mount(std::ptr::null(), root.as_ptr(), std::ptr::null(), libc::MS_PRIVATE, std::ptr::null())
        })
    }

    /// No error if it is not mounted.
    fn unmount_root(&self) -> io::Result<()> {
        let root = CString::new(self.root().as_os_str().as_bytes())?;
        // SAFETY: the path is a live C string.
        match check(unsafe { libc::umount2(root.as_ptr(), libc::MNT_DETACH) }) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOENT)) => Ok(()),
            other => other,
        }
    }

    fn runtime_folder(&self) -> PathBuf {
        self.folder.join("runtime")
    }

    /// Calls the runtime, in the container's folder.
    fn call(&self, words: &[&str]) -> Result<()> {
        let log = self.folder.join("runtime.log");
        absent_is_fine(fs::remove_file(&log)).doing(|| format!("deleting {}", log.display()))?;
        let runtime = self.runtime.as_ref().ok_or_else(|| {
            Error::unusable("there is no OCI runtime on this host", "install runc, and restart the node")
        })?;
        let mut command = Command::new(runtime);
        command
            .arg("--root")
            .arg(self.runtime_folder())
            .arg("--log")
            .arg(&log)
            .args(["--log-format", "json"]);
        command.args(words).arg(self.name.as_str()).current_dir(&self.folder);
        // What it starts inherits these.
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        // SAFETY: between fork and exec, system calls only.
        unsafe { command.pre_exec(launch::leave_the_node) };
        let called = command.spawn().and_then(|child| ended_within(child, CALL, &|| false));
        let called = called.map_err(|error| error.to_string()).and_then(|status| {
            if status.success() { Ok(()) } else { Err(format!("it ended with {status}")) }
        });
        called.map_err(|ended| {
            let program = runtime.display();
            let reason = last_error(&fs::read_to_string(&log).unwrap_or_default());
            let reason = reason.unwrap_or(ended);
            let what =
                format!("{program} could not {} the container of `{}` ({reason})", words[0], self.name);
            Error::unusable(what, "check that the program is installed and can run the container by itself")
        })
    }
}

/// The mount points that process `pid` sees.
pub fn mountpoints(pid: i32) -> io::Result<Vec<PathBuf>> {
    let mounts = fs::read_to_string(format!("/proc/{pid}/mountinfo"))?;
    Ok(mounts.lines().filter_map(|line| line.split(' ').nth(4)).map(unescaped).collect())
}

/// The kernel writes blanks and the like as `\040`.
pub fn unescaped(field: &str) -> PathBuf {
    let mut bytes = Vec::new();
    let mut rest = field.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let octal = tail.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        let octal = octal.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        (bytes, rest) = match octal.filter(|_| first == b'\\') {
            Some(byte) => ([bytes, vec![byte]].concat(), &tail[3..]),
            None => ([bytes, vec![first]].concat(), tail),
        };
    }
    PathBuf::from(std::ffi::OsStr::from_bytes(&bytes))
}

/// What the runtime said last that went wrong: each line of its log is an object.
fn last_error(log: &str) -> Option<String> {
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut errors = lines.filter(|line| line["level"] == "error");
    errors.next_back()?["msg"].as_str().map(str::to_owned)
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blanks_of_mount_points_are_read_as_the_kernel_writes_them() {
        assert_eq!(unescaped("/srv/a\\040b\\134c"), PathBuf::from("/srv/a b\\c"));
        assert_eq!(unescaped("/srv/a\\"), PathBuf::from("/srv/a\\"));
    }

    #[test]
    fn the_runtimes_reason_is_its_last_error() {
        let log =
            "{\"level\":\"warning\",\"msg\":\"a\"}\n{\"level\":\"error\",\"msg\":\"no such file\"}\nnoise\n";
        assert_eq!(last_error(log).as_deref(), Some("no such file"));
        assert_eq!(last_error(""), None);
    }
}
