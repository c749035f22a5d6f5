//! Signals as events.

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// The signals that init receives: SIGCHLD, and those that it forwards to the command.
const HEARD: [libc::c_int; 6] =
    [libc::SIGCHLD, libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGUSR1, libc::SIGUSR2];

/// A descriptor that is readable when a signal is pending.
pub struct Signals(OwnedFd);

impl Signals {
    /// Blocks the signals, and receives them through a descriptor.
    pub fn block() -> io::Result<Self> {
        // SAFETY: the set is made empty before it is used.
        unsafe {
            let mut set: libc::sigset_t = mem::zeroed();
            libc::sigemptyset(&raw mut set);
            for signal in HEARD {
                libc::sigaddset(&raw mut set, signal);
            }
            if libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) == -1 {
                return Err(io::Error::last_os_error());
            }
            let fd = libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
            if fd == -1 { Err(io::Error::last_os_error()) } else { Ok(Self(OwnedFd::from_raw_fd(fd))) }
        }
    }

    /// The signals that are pending.
    pub fn take(&self) -> io::Result<Vec<libc::c_int>> {
        let mut taken = Vec::new();
        loop {
            // SAFETY: all-zero is a valid signalfd_siginfo.
            let mut info: libc::signalfd_siginfo = unsafe { mem::zeroed() };
            let size = mem::size_of_val(&info);
            // SAFETY: `info` is live, writable and as long as said.
            let length = unsafe { libc::read(self.0.as_raw_fd(), (&raw mut info).cast(), size) };
            match io::Error::last_os_error() {
                _ if length > 0 => taken.push(info.ssi_signo.cast_signed()),
                error if error.kind() == io::ErrorKind::Interrupted => {}
                error if error.kind() == io::ErrorKind::WouldBlock => return Ok(taken),
                error => return Err(error),
            }
        }
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
