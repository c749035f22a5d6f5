//! Unpacks a container's image, in a process of its own that can do nothing else.

use std::ffi::OsString;
use std::path::Path;
use std::{fs, io};

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

/// Does what `arguments` say, and returns the status to exit with. What is wrong with the image is a [`complaint`] on its standard error.
///
/// # Errors
/// If the arguments are not those.
pub(crate) fn run(arguments: &[OsString]) -> io::Result<i32> {
    let wrong = || io::Error::other("unpacking needs an image, a place and limits");
    let [layout, root, directory, bytes, files] = arguments else { return Err(wrong()) };
    let text = |word: &OsString| word.to_str().map(str::to_owned).ok_or_else(wrong);
    let number = |word| text(word)?.parse().map_err(io::Error::other);
    let root = text(root)?.parse().map_err(io::Error::other)?;
    let limits = Limits { bytes: number(bytes)?, files: number(files)? };
    let Err(error) = oci_image::unpack(Path::new(layout), &root, Path::new(directory), limits) else {
        return Ok(0);
    };
    serde_json::to_writer(io::stderr(), &error)?;
    Ok(1)
}

/// What is wrong with the image, if that is what was written to `log`.
pub(crate) fn complaint(log: &Path) -> Option<oci_image::Error> {
    serde_json::from_slice(&fs::read(log).ok()?).ok()
}
