//! From an image's layers to its files.
//!
//! This is done in a process of its own, whose root becomes the directory with the files: no name and no link in a layer leads out
//! of it. What is compressed ill, or is very large, ends that process alone.

use std::fs::File;
use std::io;
use std::path::Path;

use crate::blob::{Measured, decompressed, open};
use crate::layer::Unpacking;
use crate::layout::{Layer, Layout, damaged};
use crate::{Error, Result};
use instance::Digest;

/// How much an image may unpack to.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The bytes of all layers, with what describes the files.
    pub bytes: u64,
    /// The files of all layers.
    pub files: u64,
}

/// Address space of the process that unpacks. Names and attributes of files are as long as a layer says.
const MEMORY: u64 = 1 << 30;

/// Unpacks the image of the layout in `layout` whose files are known by `root` into `directory`, which is empty. For a process that
/// does nothing else: it cannot leave that directory any more.
///
/// # Errors
/// If the image is not there, is not what its digests say, or unpacks to more than `limits` allow.
pub fn unpack(layout: &Path, root: &Digest, directory: &Path, limits: Limits) -> Result<()> {
    let layers = layers(layout, root)?;
    limit_memory().and_then(|()| confine(directory)).map_err(|error| {
        let what = format!("unpacking into {} cannot begin ({error})", directory.display());
        Error::new(what, "run the node as root")
    })?;
    apply_all(layers, limits)
}

/// The layers of an image, from below.
pub(crate) fn layers(layout: &Path, root: &Digest) -> Result<Vec<(Layer, File)>> {
    let image = Layout::open(layout)?.with_root(root)?.ok_or_else(|| {
        let what = format!("there is no image with the files {root} in {}", layout.display());
        Error::new(what, "put the image there again")
    })?;
    let open = |layer: &Layer| match open(&layer.blob) {
        Ok(file) => Ok((layer.clone(), file)),
        Err(error) => Err(damaged(&layer.blob.display().to_string(), &error.to_string())),
    };
    image.layers().iter().map(open).collect()
}

/// Unpacks layers, one above the other, into the root directory of this process.
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

/// Unpacks a layer above those that are there, and returns what is left of the limits.
fn apply(blob: File, expected: &Digest, limits: Limits) -> io::Result<Limits> {
    let mut measured = Measured::new(decompressed(blob)?, limits.bytes);
    let files = Unpacking::of(limits.files).all(&mut measured)?;
    let (digest, bytes) = measured.finish()?;
    if digest != *expected {
        return Err(io::Error::other(format!("it unpacks to {digest}, and should to {expected}")));
    }
    Ok(Limits { bytes, files })
}
