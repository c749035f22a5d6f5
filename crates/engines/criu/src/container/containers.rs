//! All containers of a host.

use std::ffi::OsString;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::container::Container;
use crate::container::overlay::Overlay;
use crate::container::runtime::Runtime;
use crate::container::support::Support;
use crate::container::unpacked::Unpacked;
use crate::criu::pages::tar;
use crate::criu::root::RootFileSystem;
use crate::error::{Doing, Error, Result};
use crate::instance::Blocker;
use crate::instance::{self, ContainerImage, InstanceName, Root};
use crate::linux::cgroup;
use crate::linux::files::free_bytes;
use crate::report::{Needs, Shortage};
use instance::container::Bind;
use instance::container::Config;

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
    /// The directory that containers see as `/dev/infiniband`.
    pub devices: Option<PathBuf>,
}

/// The containers of a host: makes them, and finds existing ones.
pub struct Containers {
    runtime: Option<PathBuf>,
    support: Support,
    images: Unpacked,
    /// The directory with a folder for each container.
    folder: PathBuf,
    /// The command line of an instance's first process, before the engine's arguments.
    init: Vec<OsString>,
    /// The search path for programs that CRIU starts, if it differs from this process's own.
    search_path: Option<OsString>,
}

impl Containers {
    /// Makes nothing yet except a folder in `state`.
    pub fn new(config: &ContainerConfig, init: &[OsString], state: &Path) -> Result<Self> {
        let program = init.first().map(PathBuf::from).unwrap_or_default();
        let ContainerConfig { libraries, hosts, devices, .. } = config;
        let found = Support::find(&program, libraries.as_deref(), hosts.as_deref(), devices.as_deref());
        let support = found.doing(|| "finding the files that containers need from this host".into())?;
        let folder =
            std::path::absolute(&config.folder).doing(|| format!("finding {}", config.folder.display()))?;
        let unpacked = std::path::absolute(&config.unpacked)
            .doing(|| format!("finding {}", config.unpacked.display()))?;
        let images = Unpacked::new(unpacked, init);
        // Without it, CRIU's archives are compressed.
        let search_path = tar::provide(&state.join("tools")).ok();
        Ok(Self {
            runtime: config.runtime.clone(),
            support,
            images,
            folder,
            init: init.to_vec(),
            search_path,
        })
    }

    /// Whether this host has an OCI runtime.
    pub fn has_runtime(&self) -> bool {
        self.runtime.is_some()
    }

    /// The room for files that containers write, in bytes.
    pub fn room(&self) -> u64 {
        // The folder is made with the first container.
        let there = self.folder.ancestors().find(|folder| folder.exists());
        there.and_then(|folder| free_bytes(folder).ok()).unwrap_or(0)
    }

    /// The reason why this host cannot provide an image, if it cannot.
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

    /// The container of an instance, which exists or will be made.
    pub fn find(&self, name: &InstanceName, wanted: &instance::Container) -> Result<Container> {
        Ok(self.new_container(name, wanted, &parse(&wanted.config)?))
    }

    fn new_container(&self, name: &InstanceName, wanted: &instance::Container, config: &Config) -> Container {
        let rootfs = match &wanted.root {
            Root::Image(image) => self.images.place(&image.root),
            Root::Directory(directory) => Arc::new(directory.clone()),
        };
        let folder = self.folder.join(name.as_str());
        Container {
            name: name.clone(),
            runtime: Runtime::new(self.runtime.as_deref(), name, &folder),
            overlay: Overlay::new(rootfs.clone(), &folder),
            folder,
            is_of_image: wanted.image().is_some(),
            own: config.binds().to_vec(),
            binds: self.binds(config, wanted, &rootfs),
            controllers: config.controllers(),
            places: config.places(),
            waiting: None,
            doors: Vec::new(),
            lifted: None,
            search_path: self.search_path.clone(),
        }
    }

    /// The environment of a container's programs loads the libraries, so they must exist.
    fn has_libraries_for(&self, name: &InstanceName, wanted: &instance::Container) -> Result<()> {
        if !wanted.rdma || self.support.has_libraries() {
            return Ok(());
        }
        let what = format!("the RDMA libraries, which `{name}` needs, are missing on this host");
        let remedy = "build them beside the node's program with `make build` and restart the node, or start the instance with \
            `--without-rdma`";
        Err(Error::unusable(what, remedy))
    }

    /// The bind mounts of the host in a container of `rootfs`.
    fn binds(&self, config: &Config, wanted: &instance::Container, rootfs: &Path) -> Vec<Bind> {
        let beside = self.support.binds_beside(config);
        let over = wanted.rdma.then(|| self.support.binds_over(config, rootfs));
        config.binds().iter().cloned().chain(beside).chain(over.into_iter().flatten()).collect()
    }

    /// The memory shortages that the cgroups of the container of this name have recorded.
    pub fn shortage(&self, name: &InstanceName) -> Shortage {
        cgroup::shortage(&fabric::cgroup_name(&self.folder.join(name.as_str()))).unwrap_or_default()
    }

    /// Lets the runtime make a container in this network namespace, which waits to be started. It replaces the remains of a crash.
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
            self.images.provide(image, container.overlay.rootfs())?;
            container.binds = self.binds(&config, wanted, container.overlay.rootfs());
        }
        container.all_is_here()?;
        let made = container.make(&wanted.program, config, network, self.support.init(&self.init));
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
