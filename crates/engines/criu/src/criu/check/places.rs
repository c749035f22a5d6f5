//! Maps the paths of a container to those of its host.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::criu::root::OwnRoot;
use crate::linux::mountinfo::mountpoints;
use instance::container::Bind;

/// The mounts of a container, which map its paths to paths of the host.
pub struct Places<'a> {
    /// The container's own file systems.
    pub own: OwnRoot<'a>,
    mountpoints: Vec<PathBuf>,
}

impl<'a> Places<'a> {
    /// The mounts of `container`, whose first process is `first`.
    pub fn of(own: OwnRoot<'a>, first: i32) -> io::Result<Self> {
        Ok(Self { own, mountpoints: mountpoints(first)? })
    }

    /// The host's path of the file that the container sees at `path`; `None` if the file travels with the container, is created anew, or
    /// belongs to a container image.
    pub fn on_host(&self, path: &Path) -> Option<PathBuf> {
        let above = self.mountpoints.iter().filter(|mountpoint| path.starts_with(mountpoint));
        let mountpoint = above.max_by_key(|mountpoint| mountpoint.components().count())?;
        let below = path.strip_prefix(mountpoint).ok()?;
        if let Some(Bind { source, .. }) = self.bind_at(mountpoint) {
            // A mounted file has no path below it.
            return Some(source.join(below).components().collect());
        }
        let is_root = mountpoint.parent().is_none();
        let is_written = || fs::symlink_metadata(self.own.layer.join(below)).is_ok();
        let rootfs = self.own.rootfs.filter(|_| is_root)?;
        (!is_written()).then(|| rootfs.join(below))
    }

    fn bind_at(&self, mountpoint: &Path) -> Option<&Bind> {
        self.own.binds.iter().find(|bind| bind.destination == mountpoint)
    }

    /// The file systems that travel with their contents, as paths of this host.
    pub fn travelling(&self, first: i32) -> impl Iterator<Item = PathBuf> {
        let own =
            self.mountpoints.iter().filter(|place| place.parent().is_some() && self.bind_at(place).is_none());
        own.filter_map(move |place| {
            Some(Path::new(&format!("/proc/{first}/root")).join(place.strip_prefix("/").ok()?))
        })
    }
}
