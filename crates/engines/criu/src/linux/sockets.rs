//! Options and state of sockets.

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, OwnedFd};

/// Whether `poll` reports one of these events for a socket.
pub fn has(socket: &OwnedFd, events: libc::c_short) -> bool {
    let mut poll = libc::pollfd { fd: socket.as_raw_fd(), events, revents: 0 };
    // SAFETY: one live pollfd is passed.
    unsafe { libc::poll(&raw mut poll, 1, 0) == 1 && poll.revents & events != 0 }
}

/// The value of a numeric socket option.
pub fn option(socket: &OwnedFd, level: libc::c_int, name: libc::c_int) -> io::Result<libc::c_int> {
    let mut value: libc::c_int = 0;
    let mut length = mem::size_of_val(&value) as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes into `value`.
    let result = unsafe {
        libc::getsockopt(socket.as_raw_fd(), level, name, (&raw mut value).cast(), &raw mut length)
    };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(value) }
}

/// Sets a numeric socket option.
pub fn set_option(
    socket: &OwnedFd,
    level: libc::c_int,
    name: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    let length = mem::size_of_val(&value) as libc::socklen_t;
    // SAFETY: `value` is live and as long as said.
    let result =
        unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const value).cast(), length) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
