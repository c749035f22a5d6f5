//! Network namespaces held by a descriptor, without a mount: so nothing is left behind, and CRIU finds
//! no mount that it does not know.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::thread;

/// A new network namespace. It lives as long as a descriptor or a process holds it.
///
/// # Errors
/// Those of `unshare`.
pub fn create() -> io::Result<OwnedFd> {
    on_own_thread(|| {
        // SAFETY: no memory is passed; the namespace changes for this thread alone.
        check(unsafe { libc::unshare(libc::CLONE_NEWNET) })?;
        Ok(File::open("/proc/thread-self/ns/net")?.into())
    })
}

/// Calls `inside` on a new thread in `namespace`, to which sockets that it makes belong.
///
/// # Errors
/// Those of `setns` and of the thread's start.
pub fn enter<T: Send>(namespace: BorrowedFd<'_>, inside: impl FnOnce() -> T + Send) -> io::Result<T> {
    on_own_thread(|| {
        join(namespace)?;
        Ok(inside())
    })
}

/// Moves the calling thread into `namespace` permanently. It only makes a system call, so a forked process may call it.
///
/// # Errors
/// Those of `setns`.
pub fn join(namespace: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: no memory is passed; the namespace changes for this thread alone.
    check(unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) })
}

fn on_own_thread<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let worker = thread::Builder::new().name("th-netns".into()).spawn_scoped(scope, work)?;
        worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
