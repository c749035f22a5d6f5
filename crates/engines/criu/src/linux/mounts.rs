//! The mount namespace of a process instance: that of its host, except that each instance has its own pseudo-terminals.
//! So a pseudo-terminal keeps its number on every host.
//!
//! The mount namespace is not part of the images: each host creates its own. The functions here only make system calls.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

const TERMINALS: &std::ffi::CStr = c"/dev/pts";
/// The options of the host's mount by systemd, with [`instance::container::MOST_TERMINALS`] as the limit.
const OPTIONS: &std::ffi::CStr = c"newinstance,ptmxmode=0666,mode=0620,gid=5,max=32";

/// Gives the calling process, which has one thread, a mount namespace of its own. Later mounts of the host appear there too, if the
/// host's mounts are shared.
pub fn have_own() -> io::Result<()> {
    let (none, kind) = (std::ptr::null(), c"devpts".as_ptr());
    let safe = libc::MS_NOSUID | libc::MS_NOEXEC;
    // SAFETY: the strings are live, and null where the kernel reads none.
    unsafe {
        check(libc::unshare(libc::CLONE_NEWNS))?;
        check(libc::mount(none, c"/".as_ptr(), none, libc::MS_REC | libc::MS_SLAVE, none.cast()))?;
        check(libc::mount(kind, TERMINALS.as_ptr(), kind, safe, OPTIONS.as_ptr().cast()))
    }
}

/// Moves the calling process, which has one thread, into a mount namespace.
pub fn enter(namespace: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: no memory is passed.
    check(unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNS) })
}

fn check(result: i32) -> io::Result<()> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
