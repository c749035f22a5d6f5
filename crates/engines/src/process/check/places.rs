//! Where the files of a container are on its host.

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

/// See the module.
pub struct Places<'a> {
    container: &'a Container,
    layer: PathBuf,
    mountpoints: Vec<PathBuf>,
}

impl<'a> Places<'a> {
    /// Those of a container whose first process is `first`.
    pub fn of(container: &'a Container, first: i32) -> io::Result<Self> {
        Ok(Self { container, layer: container.layer(), mountpoints: container::mountpoints(first)? })
    }

    /// Where the host has what the container sees at `path`; `None` if that travels with it, is made anew, or is an image's.
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

    /// The file systems that travel with what is in them, as this host sees them.
    pub(super) fn travelling(&self, first: i32) -> impl Iterator<Item = PathBuf> {
        let own =
            self.mountpoints.iter().filter(|place| place.parent().is_some() && self.bind_at(place).is_none());
        own.filter_map(move |place| {
            Some(Path::new(&format!("/proc/{first}/root")).join(place.strip_prefix("/").ok()?))
        })
    }
}

impl Findings<'_> {
    /// What the container has from the host, and how much it has written.
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

    /// Its name is no help as a whole.
    fn too_long(&mut self, path: &Path) {
        let path = path.as_os_str().as_bytes();
        let beginning = String::from_utf8_lossy(&path[..path.len().min(60)]);
        let length = path.len();
        let most = libc::PATH_MAX - 1;
        self.block(
            format!("the path {beginning}… in the container has {length} bytes, and paths of {most} or more do not move"),
            "rename or remove what is there",
        );
    }

    /// Each volume is still what is at its place on the host: a mount keeps what it was made of, whatever becomes of that, and the
    /// destination mounts what it finds there.
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
                    "what it has at {destination} was moved, removed or replaced on the host, at {source}"
                ),
                "put it back there, or start the container again",
            );
        }
    }
}

/// What is in use of the file system in memory at `place`, in bytes; of others nothing.
pub fn used(place: &Path) -> u64 {
    let found = statfs(place).filter(|found| found.f_type == libc::TMPFS_MAGIC);
    found.map_or(0, |found| (found.f_blocks - found.f_bfree) * found.f_bsize.unsigned_abs())
}

/// The file system at `place`.
pub(super) fn statfs(place: &Path) -> Option<libc::statfs> {
    let path = CString::new(place.as_os_str().as_bytes()).ok()?;
    // SAFETY: all-zero is a valid statfs.
    let mut found: libc::statfs = unsafe { mem::zeroed() };
    // SAFETY: `path` is a live C string, and `found` is live and writable.
    let result = unsafe { libc::statfs(path.as_ptr(), &raw mut found) };
    (result == 0).then_some(found)
}
