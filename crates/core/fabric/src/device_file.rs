//! The device file of the RDMA device.
//!
//! A hardware device has one for its commands to the kernel. The soft device needs none, but some programs (UCX) accept a
//! device only if `/dev/infiniband/<name>` is a character device that they can open for reading and writing. So the node
//! creates a link to `/dev/null` there, for all instances of a host.
//!
//! Other programs (Open MPI's `openib`) accept no device at all if sysfs has no class of RDMA devices, as on a kernel without
//! an RDMA driver. So the node creates a directory with that class as a substitute.

use std::ffi::{CStr, OsStr};
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::Path;

/// The directory of device files of RDMA devices.
pub const FOLDER: &str = "/dev/infiniband";

/// The name of the device and its file, which no kernel driver uses.
pub const NAME: &str = "transhume0";

/// The real sysfs, and its substitute on a kernel without RDMA devices.
const SYSFS: [&CStr; 2] = [c"/sys", c"/dev/infiniband/transhume-sysfs"];

/// The class directory in both.
const CLASS: &str = "class/infiniband";

/// The sysfs root in which programs find the class of RDMA devices.
#[must_use]
pub fn sysfs() -> &'static CStr {
    let has_class = |sysfs: &&CStr| path(sysfs).join(CLASS).is_dir();
    SYSFS.into_iter().find(has_class).unwrap_or(SYSFS[0])
}

fn path(sysfs: &CStr) -> &Path {
    Path::new(OsStr::from_bytes(sysfs.to_bytes()))
}

/// Creates the file and the class, unless they exist.
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

/// Removes both. Call it only when no node uses them any more.
pub fn remove() {
    // They do not exist if no node ran, and a folder with real devices is not empty.
    let _ = fs::remove_dir_all(path(SYSFS[1]));
    let _ = fs::remove_file(Path::new(FOLDER).join(NAME));
    let _ = fs::remove_dir(FOLDER);
}
