//! The file of the RDMA device.
//!
//! Hardware has one, through which a program speaks with the kernel. This device needs none, but some programs (UCX) take a
//! device for real only if they can open `/dev/infiniband/<name>` for reading and writing, and find a character device
//! there. So there is a link to `/dev/null`, one for all instances of a host.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::symlink;
use std::path::Path;

const FOLDER: &str = "/dev/infiniband";

/// What the device and its file are called. No kernel driver calls one so.
pub const NAME: &str = "transhume0";

/// Makes the file, unless it is there.
///
/// # Errors
/// Those of making a directory and a link in `/dev`.
pub fn make() -> io::Result<()> {
    fs::create_dir_all(FOLDER)?;
    match symlink("../null", Path::new(FOLDER).join(NAME)) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// Removes the file, for which no node may have a use any more.
pub fn remove() {
    // It is not there if no node ran, and real devices keep their folder.
    let _ = fs::remove_file(Path::new(FOLDER).join(NAME));
    let _ = fs::remove_dir(FOLDER);
}
