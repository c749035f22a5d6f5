//! The engine's configuration, and the host's resources for instances.

use std::ffi::OsString;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::Arc;

use fabric::NetworkKind;

use crate::container::containers::{ContainerConfig, Containers};
use crate::criu::root::RootFileSystem;
use crate::error::{Error, Result};
use crate::instance::{InstanceSpec, Workload};
use crate::process::host_root::HostRoot;
use engine_api::wiring::Wiring;

/// The configuration of the process engine.
#[derive(Clone, Debug)]
pub struct Config {
    /// The CRIU program, as `scripts/criu.sh` installs it.
    pub criu: PathBuf,
    /// The directory for records of instances; used by this node alone.
    pub state: PathBuf,
    /// Directories for images; used by this node alone. The first one with room is taken, so list a tmpfs first.
    pub images: Vec<PathBuf>,
    /// The bridge to which instances are linked, in the network namespace of this process.
    pub bridge: String,
    /// The overlay, if this host is part of one.
    pub overlay: Option<Arc<dyn Wiring>>,
    /// The command that runs [`crate::init::run`] with further arguments: `["/usr/bin/transhume", "init"]`. It is the first process of an
    /// instance, and the guard beside each CRIU that dumps.
    pub init: Vec<OsString>,
    /// The configuration for containers, if this host runs any.
    pub containers: Option<ContainerConfig>,
}

/// The resources that a host offers to instances.
pub struct Site {
    /// The wiring of instances on the bridge.
    pub bridge: Arc<dyn Wiring>,
    /// The wiring of instances on the overlay, if this host takes part in one.
    pub overlay: Option<Arc<dyn Wiring>>,
    /// The containers of this host, if it runs any.
    pub containers: Option<Containers>,
}

impl Site {
    /// The wiring for network devices of this kind.
    pub fn wiring(&self, kind: NetworkKind) -> Result<Arc<dyn Wiring>> {
        let missing = || {
            Error::unusable("this host is not part of an overlay", "choose another host, or use the bridge")
        };
        match kind {
            NetworkKind::Bridge => Ok(self.bridge.clone()),
            NetworkKind::Overlay => self.overlay.clone().ok_or_else(missing),
        }
    }

    fn containers(&self) -> Result<&Containers> {
        let missing = || Error::unusable("this host runs no containers", "choose another host");
        self.containers.as_ref().ok_or_else(missing)
    }

    /// Returns the root file system of an instance that exists or that will be made.
    pub fn root(&self, spec: &InstanceSpec) -> Result<Box<dyn RootFileSystem>> {
        match &spec.workload {
            Workload::Process(_) => Ok(Box::new(HostRoot)),
            Workload::Container(wanted) => Ok(Box::new(self.containers()?.find(&spec.name, wanted)?)),
            Workload::Vm(_) => Err(no_machines()),
        }
    }

    /// Makes the root file system of an instance, with its cgroups, for this network namespace.
    pub fn make_root(&self, spec: &InstanceSpec, network: BorrowedFd<'_>) -> Result<Box<dyn RootFileSystem>> {
        match &spec.workload {
            Workload::Process(_) => Ok(Box::new(HostRoot)),
            Workload::Container(wanted) => {
                Ok(Box::new(self.containers()?.create(&spec.name, wanted, network)?))
            }
            Workload::Vm(_) => Err(no_machines()),
        }
    }
}

fn no_machines() -> Error {
    Error::unusable("this engine cannot run virtual machines", "choose another host")
}
