//! The file of the RDMA device.
//!
//! Hardware has one, through which a program speaks with the kernel. This device needs none, but some programs (UCX) take a
//! device for real only if they can open `/dev/infiniband/<name>` for reading and writing, and find a character device
//! there. So there is a link to `/dev/null`, one for all instances of a host.
//!
//! Others (Open MPI's `openib`) believe in no device at all where sysfs has no class of such devices, as without an RDMA
//! driver in the kernel. So there is a directory in its place that has one.

use std::ffi::{CStr, OsStr};
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::Path;

const FOLDER: &str = "/dev/infiniband";

/// What the device and its file are called. No kernel driver calls one so.
pub const NAME: &str = "transhume0";

/// The real sysfs, and what stands in for it where that knows no RDMA devices.
const SYSFS: [&CStr; 2] = [c"/sys", c"/dev/infiniband/transhume-sysfs"];

/// What both have in them.
const CLASS: &str = "class/infiniband";

/// Where programs find the class of RDMA devices.
#[must_use]
pub fn sysfs() -> &'static CStr {
    let has_class = |sysfs: &&CStr| path(sysfs).join(CLASS).is_dir();
    SYSFS.into_iter().find(has_class).unwrap_or(SYSFS[0])
}

fn path(sysfs: &CStr) -> &Path {
    Path::new(OsStr::from_bytes(sysfs.to_bytes()))
}

/// Makes the file, and the class, unless they are there.
///
/// # Errors
/// Those of making directories and a link in `/dev`.
pub fn make() -> io::Result<()> {
    fs::create_dir_all(path(SYSFS[1]).join(CLASS))?;
    match symlink("../null", Path::new(FOLDER).join(NAME)) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// Removes both, for which no node may have a use any more.
pub fn remove() {
    // They are not there if no node ran, and real devices keep their folder.
    let _ = fs::remove_dir_all(path(SYSFS[1]));
    let _ = fs::remove_file(Path::new(FOLDER).join(NAME));
    let _ = fs::remove_dir(FOLDER);
}
