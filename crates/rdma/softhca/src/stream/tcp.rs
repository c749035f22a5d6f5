//! A link over a connected TCP socket.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use libc::iovec;
use waiting::Uncancelled;

use super::{Interest, Stream, Waitable};

/// A stream over a connected TCP socket.
///
/// # Errors
/// If the socket's options cannot be set.
pub fn tcp_stream(socket: OwnedFd) -> io::Result<Box<dyn Stream>> {
    let yes: libc::c_int = 1;
    // SAFETY: the option's value is a live c_int of the length given.
    let done = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_NODELAY,
            (&raw const yes).cast(),
            size_of_val(&yes) as libc::socklen_t,
        )
    };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Box::new(Tcp { socket }))
}

struct Tcp {
    socket: OwnedFd,
}

fn message(vectors: &[iovec]) -> libc::msghdr {
    // SAFETY: a msghdr of zeros is valid and empty.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = vectors.as_ptr().cast_mut();
    message.msg_iovlen = vectors.len();
    message
}

fn count(done: isize) -> io::Result<usize> {
    usize::try_from(done).map_err(|_| io::Error::last_os_error())
}

// SAFETY: the kernel touches the memory that the vectors name and keeps nothing.
unsafe impl Stream for Tcp {
    unsafe fn write(&mut self, from: &[iovec]) -> io::Result<usize> {
        let _whole = Uncancelled::new();
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        let fd = self.socket.as_raw_fd();
        // SAFETY: the caller vouches for the memory that the vectors name; the kernel only reads it.
        count(unsafe {
            match from {
                [one] => libc::send(fd, one.iov_base, one.iov_len, flags),
                _ => libc::sendmsg(fd, &message(from), flags),
            }
        })
    }

    // SAFETY: the trait's contract, as for `write`.
    unsafe fn read(&mut self, into: &[iovec]) -> io::Result<usize> {
        let _whole = Uncancelled::new();
        let fd = self.socket.as_raw_fd();
        // SAFETY: the caller vouches for the memory that the vectors name.
        count(unsafe {
            match into {
                [one] => libc::recv(fd, one.iov_base, one.iov_len, libc::MSG_DONTWAIT),
                _ => libc::recvmsg(fd, &mut message(into), libc::MSG_DONTWAIT),
            }
        })
    }

    fn gathers(&self) -> bool {
        true
    }

    fn waitables(&self, interest: Interest, add: &mut dyn FnMut(Waitable)) {
        let Interest { reads, writes } = interest;
        add(Waitable { fd: self.socket.as_raw_fd(), readable: reads, writable: writes });
    }

    fn descriptors(&self, add: &mut dyn FnMut(RawFd)) {
        add(self.socket.as_raw_fd());
    }
}
