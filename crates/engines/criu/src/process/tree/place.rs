//! Network namespace, link and root file system of an instance.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};

use fabric::netns;

use crate::criu::root::RootFileSystem;
use crate::error::{Doing, Result};
use crate::instance::InstanceSpec;
use crate::linux::task::Task;
use crate::process::network::link::Link;
use crate::process::record::Record;
use crate::process::site::Site;

/// The resources of an instance that exist before its first process.
pub struct Place {
    /// The network namespace.
    pub namespace: OwnedFd,
    /// The network device.
    pub link: Link,
    /// The root file system.
    pub root: Box<dyn RootFileSystem>,
}

impl Place {
    /// Makes the namespace and the link, which is cut. The root file system is made later.
    pub fn make(spec: &InstanceSpec, site: &Site) -> Result<Self> {
        let root = site.root(spec)?;
        let namespace = netns::create().doing(|| "making a network namespace".into())?;
        let kind = spec.network_kind;
        let link = Link::create(namespace.as_fd(), spec, site.wiring(kind)?)
            .doing(|| format!("making the link of `{}` to the {kind}", spec.name))?;
        Ok(Self { namespace, link, root })
    }

    /// Finds those of an instance by its first process.
    pub fn find(task: &Task, record: &Record, site: &Site) -> Result<Self> {
        let spec = &record.spec;
        let path = format!("/proc/{}/ns/net", task.id().pid);
        let namespace: OwnedFd = File::open(&path).doing(|| format!("opening {path}"))?.into();
        let link = Link::find(namespace.as_fd(), spec, site.wiring(spec.network_kind)?);
        let link = link.doing(|| format!("finding the link of `{}`", spec.name))?;
        let mut root = site.root(spec)?;
        if let Some(binds) = &record.binds {
            root.was_made_with(binds.clone());
        }
        Ok(Self { namespace, link, root })
    }
}
