//! What a container has mounted: from its host, and of its own.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::findings::Findings;
use super::written::Written;
use crate::criu::root::Bind;
use crate::linux::files::used;

impl Findings<'_> {
    /// What the container has from the host, and how much it has written.
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
        let changed: Vec<Bind> = places.own.volumes.iter().filter(is_changed).cloned().collect();
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
