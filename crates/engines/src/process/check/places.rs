//! Maps the paths of a container to those of its host.

use std::ffi::CString;
use std::fs;
use std::io;
use std::mem;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::super::container::{self, Container};
use super::Findings;
use instance::container::Bind;

/// The mounts of a container, by which a path in it is mapped to one of the host.
pub struct Places<'a> {
    container: &'a Container,
    layer: PathBuf,
    mountpoints: Vec<PathBuf>,
}

impl<'a> Places<'a> {
    /// The mounts of `container`, whose first process is `first`.
    pub fn of(container: &'a Container, first: i32) -> io::Result<Self> {
        Ok(Self { container, layer: container.layer(), mountpoints: container::mountpoints(first)? })
    }

    /// The host's path of the file that the container sees at `path`; `None` if the file travels with the container, is created anew, or
    /// belongs to a container image.
    pub fn on_host(&self, path: &Path) -> Option<PathBuf> {
        let above = self.mountpoints.iter().filter(|mountpoint| path.starts_with(mountpoint));
        let mountpoint = above.max_by_key(|mountpoint| mountpoint.components().count())?;
        let below = path.strip_prefix(mountpoint).ok()?;
        if let Some(Bind { source, .. }) = self.bind_at(mountpoint) {
            // Of a file that is mounted there is nothing below.
            return Some(source.join(below).components().collect());
        }
        let is_root = mountpoint.parent().is_none();
        let is_written = || fs::symlink_metadata(self.layer.join(below)).is_ok();
        let rootfs = self.container.rootfs().filter(|_| is_root)?;
        (!is_written()).then(|| rootfs.join(below))
    }

    fn bind_at(&self, mountpoint: &Path) -> Option<&Bind> {
        self.container.binds().iter().find(|bind| bind.destination == mountpoint)
    }

    /// The file systems that travel with their contents, as paths of this host.
    pub(super) fn travelling(&self, first: i32) -> impl Iterator<Item = PathBuf> {
        let own =
            self.mountpoints.iter().filter(|place| place.parent().is_some() && self.bind_at(place).is_none());
        own.filter_map(move |place| {
            Some(Path::new(&format!("/proc/{first}/root")).join(place.strip_prefix("/").ok()?))
        })
    }
}

impl Findings<'_> {
    /// Notes the files that the container has from the host, and how much it has written.
    pub(super) fn mounts(&mut self) {
        let Some(places) = &self.places else { return };
        let (rootfs, written) = (places.container.rootfs().map(Path::to_owned), places.container.written());
        let binds: Vec<Bind> = places.container.own().to_vec();
        let kept: u64 = places.travelling(self.first).map(|place| used(&place)).sum();
        self.kept = kept;
        self.layer = written.bytes;
        if let Some(path) = written.too_long {
            self.too_long(&path);
        }
        if let Some(rootfs) = rootfs {
            self.need_on_host(&rootfs);
        }
        binds.iter().for_each(|bind| self.need_on_host(&bind.source));
        self.volumes();
    }

    /// Blocks on a path that is too long, showing its beginning only.
    fn too_long(&mut self, path: &Path) {
        let path = path.as_os_str().as_bytes();
        let beginning = String::from_utf8_lossy(&path[..path.len().min(60)]);
        let length = path.len();
        let most = libc::PATH_MAX - 1;
        self.block(
            format!("the path {beginning}… in the container has {length} bytes, and a path must have fewer than {most} to move"),
            "rename or remove that file",
        );
    }

    /// Checks that each volume is still the directory at its source path. A bind mount keeps its directory even if that is moved or
    /// replaced, but the destination mounts the directory that it finds at the path.
    pub(super) fn volumes(&mut self) {
        let Some(places) = &self.places else { return };
        let root = PathBuf::from(format!("/proc/{}/root", self.first));
        let is_changed = |bind: &&Bind| {
            let inside = root.join(bind.destination.strip_prefix("/").unwrap_or(&bind.destination));
            let Ok(mounted) = fs::metadata(inside) else { return false };
            let there = fs::metadata(&bind.source);
            !there.is_ok_and(|there| (there.dev(), there.ino()) == (mounted.dev(), mounted.ino()))
        };
        let changed: Vec<Bind> = places.container.own().iter().filter(is_changed).cloned().collect();
        for Bind { source, destination } in changed {
            let (source, destination) = (source.display(), destination.display());
            self.block(
                format!(
                    "the volume at {destination} was moved, removed or replaced on the host, at {source}"
                ),
                "put {source} back, or start the container again",
            );
        }
    }
}

/// The bytes in use of the tmpfs at `place`; 0 for other file systems.
pub fn used(place: &Path) -> u64 {
    let found = statfs(place).filter(|found| found.f_type == libc::TMPFS_MAGIC);
    found.map_or(0, |found| (found.f_blocks - found.f_bfree) * found.f_bsize.unsigned_abs())
}

/// The statistics of the file system at `place`.
pub(super) fn statfs(place: &Path) -> Option<libc::statfs> {
    let path = CString::new(place.as_os_str().as_bytes()).ok()?;
    // SAFETY: all-zero is a valid statfs.
    let mut found: libc::statfs = unsafe { mem::zeroed() };
    // SAFETY: `path` is a live C string, and `found` is live and writable.
    let result = unsafe { libc::statfs(path.as_ptr(), &raw mut found) };
    (result == 0).then_some(found)
}
