//! Unpacks the layers of an image.
//!
//! A separate process does this, with the target directory as its root: no name and no link in a layer leads out of it. Bad
//! compression or a very large layer ends only that process.

use std::fs::File;
use std::io;
use std::path::Path;

use crate::blob::{Measured, decompressed, open};
use crate::layer::Unpacking;
use crate::layout::{Layer, Layout, damaged};
use crate::{Error, Result};
use instance::Digest;

/// Limits on the unpacked files of an image.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The bytes of all layers, including file headers.
    pub bytes: u64,
    /// The files of all layers.
    pub files: u64,
}

/// The limit of address space of the unpacking process, since a layer may declare names and attributes of any length.
const MEMORY: u64 = 1 << 30;

/// Unpacks the image with the files `root` of the layout in `layout` into the empty `directory`. The calling process is confined to
/// that directory afterwards, so it must do nothing else.
///
/// # Errors
/// If the image does not exist, does not match its digests, or exceeds `limits`.
pub fn unpack(layout: &Path, root: &Digest, directory: &Path, limits: Limits) -> Result<()> {
    let layers = layers(layout, root)?;
    limit_memory().and_then(|()| confine(directory)).map_err(|error| {
        let what = format!("unpacking into {} cannot start ({error})", directory.display());
        Error::new(what, "run the node as root")
    })?;
    apply_all(layers, limits)
}

/// The layers of an image, the lowest first.
pub(crate) fn layers(layout: &Path, root: &Digest) -> Result<Vec<(Layer, File)>> {
    let image = Layout::open(layout)?.with_root(root)?.ok_or_else(|| {
        let what = format!("there is no image with the files {root} in {}", layout.display());
        Error::new(what, "copy the image there again")
    })?;
    let open = |layer: &Layer| match open(&layer.blob) {
        Ok(file) => Ok((layer.clone(), file)),
        Err(error) => Err(damaged(&layer.blob.display().to_string(), &error.to_string())),
    };
    image.layers().iter().map(open).collect()
}

/// Unpacks layers in order into the root directory of this process.
pub(crate) fn apply_all(layers: Vec<(Layer, File)>, limits: Limits) -> Result<()> {
    let mut left = limits;
    for (layer, file) in layers {
        left = apply(file, &layer.unpacked, left)
            .map_err(|error| damaged(&layer.blob.display().to_string(), &error.to_string()))?;
    }
    Ok(())
}

fn limit_memory() -> io::Result<()> {
    let limit = libc::rlimit { rlim_cur: MEMORY, rlim_max: MEMORY };
    // SAFETY: `limit` is live.
    if unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) } == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Makes `directory` the root of this process.
pub(crate) fn confine(directory: &Path) -> io::Result<()> {
    // SAFETY: no memory is passed.
    unsafe { libc::umask(0) };
    std::os::unix::fs::chroot(directory)?;
    std::env::set_current_dir("/")
}

/// Unpacks a layer over the existing files, and returns the remaining limits.
fn apply(blob: File, expected: &Digest, limits: Limits) -> io::Result<Limits> {
    let mut measured = Measured::new(decompressed(blob)?, limits.bytes);
    let files = Unpacking::of(limits.files).all(&mut measured)?;
    let (digest, bytes) = measured.finish()?;
    if digest != *expected {
        return Err(io::Error::other(format!("it unpacks to {digest} instead of {expected}")));
    }
    Ok(Limits { bytes, files })
}
