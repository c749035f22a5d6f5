//! Files, and the statistics of file systems.

use std::ffi::CString;
use std::io;
use std::mem;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Treats the deletion of a missing file as a success.
pub fn absent_is_fine(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Free bytes of the file system under a directory.
pub fn free_bytes(directory: &Path) -> io::Result<u64> {
    let path = CString::new(directory.as_os_str().as_bytes())?;
    // SAFETY: all-zero is a valid statvfs.
    let mut found: libc::statvfs = unsafe { mem::zeroed() };
    // SAFETY: `path` is a live C string, and `found` is live and writable.
    if unsafe { libc::statvfs(path.as_ptr(), &raw mut found) } == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok(found.f_bavail * found.f_frsize)
}

/// The bytes in use of the tmpfs at `place`; 0 for other file systems.
pub fn used(place: &Path) -> u64 {
    let found = statfs(place).filter(|found| found.f_type == libc::TMPFS_MAGIC);
    found.map_or(0, |found| (found.f_blocks - found.f_bfree) * found.f_bsize.unsigned_abs())
}

/// The statistics of the file system at `place`.
pub fn statfs(place: &Path) -> Option<libc::statfs> {
    let path = CString::new(place.as_os_str().as_bytes()).ok()?;
    // SAFETY: all-zero is a valid statfs.
    let mut found: libc::statfs = unsafe { mem::zeroed() };
    // SAFETY: `path` is a live C string, and `found` is live and writable.
    let result = unsafe { libc::statfs(path.as_ptr(), &raw mut found) };
    (result == 0).then_some(found)
}
