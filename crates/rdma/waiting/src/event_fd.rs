//! Descriptors that become readable.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use crate::{Uncancelled, cancellation};

/// An eventfd. It reaches nothing outside the process, so that it is carried by a checkpoint.
#[derive(Debug)]
pub struct EventFd(OwnedFd);

impl EventFd {
    /// `flags`: those of `eventfd`; always close-on-exec.
    ///
    /// # Errors
    /// Those of `eventfd`.
    pub fn new(flags: libc::c_int) -> io::Result<Self> {
        // SAFETY: no memory is passed.
        let fd = unsafe { libc::eventfd(0, flags | libc::EFD_CLOEXEC) };
        if fd == -1 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and ours alone.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// For polling.
    #[must_use]
    pub fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// In a forked child: what the number stands for is the child's own from now on, and holds nothing, unless the program has closed it.
    /// False if it stays what the parent has, too, for want of a descriptor or of `/proc`.
    pub fn replace_in_child(&self) -> bool {
        // SAFETY: no memory is passed.
        let flags = unsafe { libc::fcntl(self.fd(), libc::F_GETFL) };
        if flags == -1 {
            return true;
        }
        let Ok(kind) = std::fs::read_link(format!("/proc/self/fd/{}", self.fd())) else { return false };
        if kind.as_os_str() != "anon_inode:[eventfd]" {
            return true;
        }
        let Ok(own) = Self::new(flags & libc::O_NONBLOCK) else { return false };
        // SAFETY: both are open, and the number is this eventfd's.
        unsafe { libc::dup3(own.fd(), self.fd(), libc::O_CLOEXEC) != -1 }
    }

    /// Adds one. The counter holds more than can ever be queued, so that this does not wait.
    pub fn signal(&self) {
        let _whole = Uncancelled::new();
        let one = 1u64;
        // SAFETY: eight readable bytes are passed.
        unsafe { libc::write(self.fd(), (&raw const one).cast(), 8) };
    }

    /// Takes all; waits for it unless the descriptor is non-blocking.
    ///
    /// # Errors
    /// `EAGAIN`, `EINTR`.
    pub fn wait(&self) -> io::Result<()> {
        let mut value = 0u64;
        // SAFETY: eight writable bytes are passed.
        let got = unsafe { cancellation::read(self.fd(), (&raw mut value).cast(), 8) };
        if got == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Takes all without waiting, whatever flags the program has set on the descriptor.
    pub fn clear(&self) {
        let _whole = Uncancelled::new();
        let mut value = 0u64;
        let part = libc::iovec { iov_base: (&raw mut value).cast(), iov_len: 8 };
        // SAFETY: one vector of eight writable bytes is passed.
        unsafe { libc::preadv2(self.fd(), &raw const part, 1, -1, libc::RWF_NOWAIT) };
    }
}
