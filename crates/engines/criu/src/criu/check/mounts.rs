//! Checks the mounts of a container: its volumes and its own file systems.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::findings::Findings;
use super::written::Written;
use crate::linux::files::used;
use instance::container::Bind;

impl Findings<'_> {
    /// Records the files that the container has from the host, and the size of its written files.
    pub(super) fn mounts(&mut self) {
        let Some(places) = &self.places else { return };
        let (rootfs, written) = (places.own.rootfs.map(Path::to_owned), Written::below(&places.own.layer));
        let binds: Vec<Bind> = places.own.volumes.to_vec();
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
        let changed: Vec<Bind> = places.own.volumes.iter().filter(is_changed).cloned().collect();
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
