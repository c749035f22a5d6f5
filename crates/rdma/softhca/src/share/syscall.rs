//! Results of system calls.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

use libc::c_long;

/// The return value of a call, or its error.
///
/// # Errors
/// The thread's `errno`, if `result` is negative.
pub(super) fn check(result: impl Into<c_long>) -> io::Result<usize> {
    usize::try_from(result.into()).map_err(|_| io::Error::last_os_error())
}

/// The descriptor that a call has just returned, unless that is an error.
///
/// # Errors
/// As for [`check`].
pub(super) fn owned(fd: impl Into<c_long>) -> io::Result<OwnedFd> {
    let fd = RawFd::try_from(check(fd)?).map_err(|_| io::ErrorKind::InvalidData)?;
    // SAFETY: the call has just returned the descriptor, so this is its only owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
