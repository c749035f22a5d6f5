//! Unpacks a container image, in a process that is confined to the target directory.

use std::ffi::OsString;
use std::path::Path;
use std::{fs, io};

use oci_image::{Digest, Limits};

/// The first argument of this mode, in place of the arguments of an instance's first process. The layout, the digest of the files,
/// their directory and the limits follow.
pub(crate) const WORD: &str = "unpack";

/// The arguments after [`WORD`].
pub(crate) fn arguments(layout: &Path, root: &Digest, directory: &Path, limits: Limits) -> [OsString; 5] {
    let Limits { bytes, files } = limits;
    let number = |number: u64| number.to_string().into();
    [layout.into(), root.to_string().into(), directory.into(), number(bytes), number(files)]
}

/// Unpacks according to `arguments`, and returns the exit status. If the image is bad, the reason goes to standard error as a
/// [`complaint`].
///
/// # Errors
/// If the arguments are invalid.
pub(crate) fn run(arguments: &[OsString]) -> io::Result<i32> {
    let wrong = || io::Error::other("unpacking needs an image, a directory and limits");
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

/// The reason why the image is bad, if `log` contains one.
pub(crate) fn complaint(log: &Path) -> Option<oci_image::Error> {
    serde_json::from_slice(&fs::read(log).ok()?).ok()
}
