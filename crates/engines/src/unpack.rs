//! Unpacks a container's image, in a process of its own that can do nothing else.

use std::ffi::OsString;
use std::io;
use std::path::Path;

use oci_image::{Digest, Limits};

/// The word before the layout, the digest of the files, the directory for them and the limits, in place of the arguments of an
/// instance's first process.
pub(crate) const WORD: &str = "unpack";

/// What follows [`WORD`].
pub(crate) fn arguments(layout: &Path, root: &Digest, directory: &Path, limits: Limits) -> [OsString; 5] {
    let Limits { bytes, files } = limits;
    let number = |number: u64| number.to_string().into();
    [layout.into(), root.to_string().into(), directory.into(), number(bytes), number(files)]
}

/// Does what `arguments` say.
pub(crate) fn run(arguments: &[OsString]) -> io::Result<()> {
    let wrong = || io::Error::other("unpacking needs an image, a place and limits");
    let [layout, root, directory, bytes, files] = arguments else { return Err(wrong()) };
    let text = |word: &OsString| word.to_str().map(str::to_owned).ok_or_else(wrong);
    let number = |word| text(word)?.parse().map_err(io::Error::other);
    let root = text(root)?.parse().map_err(io::Error::other)?;
    let limits = Limits { bytes: number(bytes)?, files: number(files)? };
    oci_image::unpack(Path::new(layout), &root, Path::new(directory), limits).map_err(io::Error::other)
}
