//! `SOCK_SEQPACKET` Unix sockets with abstract names: packets with descriptors as ancillary data.
//!
//! An abstract name belongs to a network namespace. So a listener made inside an instance's
//! namespace is reachable from that instance only, whatever its mount namespace is.

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use crate::attach::{MAX_DESCRIPTORS, MAX_MESSAGE};

/// A buffer for ancillary data with [`MAX_DESCRIPTORS`], aligned for `cmsghdr`.
#[repr(C, align(8))]
struct Ancillary([u8; 64]);

/// A packet and its descriptors.
#[derive(Debug)]
pub struct Packet {
    /// The message's bytes. Empty when the other side has closed.
    pub bytes: Vec<u8>,
    /// At most [`MAX_DESCRIPTORS`], all close-on-exec. Fewer than were sent if this process has reached its limit.
    pub descriptors: Vec<OwnedFd>,
    /// Whether all sent descriptors have arrived.
    pub is_whole: bool,
}

/// A non-blocking, close-on-exec listener on the abstract `name`, in the calling thread's network
/// namespace.
///
/// # Errors
/// Those of `socket`, `bind` (`EADDRINUSE`: another listener has the name) and `listen`.
pub fn listen(name: &[u8]) -> io::Result<OwnedFd> {
    let socket = new_socket(libc::SOCK_NONBLOCK)?;
    let (address, length) = abstract_address(name)?;
    // SAFETY: `address` is a live sockaddr_un of which `length` bytes are initialised.
    check(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) })?;
    // SAFETY: no memory is passed.
    check(unsafe { libc::listen(socket.as_raw_fd(), libc::SOMAXCONN) })?;
    Ok(socket)
}

/// The next connection of `listener`, non-blocking and close-on-exec.
///
/// # Errors
/// Those of `accept`; `WouldBlock` when there is none.
pub fn accept(listener: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // SAFETY: a null address asks for none.
    let fd = check(unsafe {
        libc::accept4(
            listener.as_raw_fd(),
            std::ptr::null_mut(),
            std::ptr::null_mut(),
            libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC,
        )
    })?;
    Ok(owned(fd))
}

/// A blocking, close-on-exec connection to the abstract `name`, in the calling thread's network
/// namespace.
///
/// # Errors
/// Those of `connect`; `ConnectionRefused` without a listener.
pub fn connect(name: &[u8]) -> io::Result<OwnedFd> {
    let socket = unconnected()?;
    connect_by(socket.as_fd(), name)?;
    Ok(socket)
}

/// A blocking, close-on-exec socket for [`connect_by`].
///
/// # Errors
/// Those of `socket`.
pub fn unconnected() -> io::Result<OwnedFd> {
    new_socket(0)
}

/// Connects `socket` to the abstract `name`, in the network namespace in which it was made.
///
/// # Errors
/// Those of `connect`, after which the call may be repeated; `ConnectionRefused` without a listener.
pub fn connect_by(socket: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
    let (address, length) = abstract_address(name)?;
    // SAFETY: `address` is a live sockaddr_un of which `length` bytes are initialised.
    check(unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), length) }).map(drop)
}

/// Two blocking, close-on-exec ends of a connection.
///
/// # Errors
/// Those of `socketpair`.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut pair = [0; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: the kernel writes two descriptors into `pair`.
    check(unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, pair.as_mut_ptr()) })?;
    Ok(pair.map(owned).into())
}

/// Sends one packet. Never raises SIGPIPE.
///
/// # Errors
/// `InvalidInput` past [`MAX_MESSAGE`] or [`MAX_DESCRIPTORS`]; otherwise those of `sendmsg`.
pub fn send(socket: BorrowedFd<'_>, bytes: &[u8], beside: &[BorrowedFd<'_>]) -> io::Result<()> {
    send_with(socket, bytes, beside, 0)
}

/// As [`send`], also on a blocking socket without a wait.
///
/// # Errors
/// `WouldBlock` if there is no room for the packet; otherwise as there.
pub fn try_send(socket: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<()> {
    send_with(socket, bytes, &[], libc::MSG_DONTWAIT)
}

fn send_with(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    beside: &[BorrowedFd<'_>],
    flags: libc::c_int,
) -> io::Result<()> {
    if bytes.len() > MAX_MESSAGE || beside.len() > MAX_DESCRIPTORS {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut ancillary = Ancillary([0; 64]);
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let mut header = message_header(&mut part);
    if !beside.is_empty() {
        let payload = u32::try_from(mem::size_of_val(beside)).expect("at most four descriptors");
        header.msg_control = ancillary.0.as_mut_ptr().cast();
        // SAFETY: CMSG_SPACE only computes.
        header.msg_controllen = unsafe { libc::CMSG_SPACE(payload) } as usize;
        // SAFETY: msg_control points at `ancillary`, which has room for four descriptors and is
        // aligned for cmsghdr, so the first header and its data lie inside it.
        unsafe {
            let first = libc::CMSG_FIRSTHDR(&raw const header);
            (*first).cmsg_level = libc::SOL_SOCKET;
            (*first).cmsg_type = libc::SCM_RIGHTS;
            (*first).cmsg_len = libc::CMSG_LEN(payload) as usize;
            let data = libc::CMSG_DATA(first).cast::<RawFd>();
            for (position, descriptor) in beside.iter().enumerate() {
                data.add(position).write_unaligned(descriptor.as_raw_fd());
            }
        }
    }
    loop {
        // SAFETY: `header` points at the live `part` and `ancillary`.
        let sent =
            unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const header, libc::MSG_NOSIGNAL | flags) };
        match sent {
            -1 if interrupted() => {}
            -1 => return Err(io::Error::last_os_error()),
            _ => return Ok(()),
        }
    }
}

/// Receives one packet with all its descriptors.
///
/// # Errors
/// `InvalidData` for a packet that exceeds the limits, including this process' limit of descriptors; otherwise those of
/// `recvmsg` (`WouldBlock` on a non-blocking socket without a packet).
pub fn receive(socket: BorrowedFd<'_>) -> io::Result<Packet> {
    let packet = receive_what_fits(socket)?;
    if packet.is_whole { Ok(packet) } else { Err(io::ErrorKind::InvalidData.into()) }
}

/// Receives one packet, without descriptors beyond this process' limit.
///
/// # Errors
/// `InvalidData` for a packet that is too long; otherwise those of `recvmsg`.
pub fn receive_what_fits(socket: BorrowedFd<'_>) -> io::Result<Packet> {
    let mut bytes = vec![0; MAX_MESSAGE];
    let mut ancillary = Ancillary([0; 64]);
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut header = message_header(&mut part);
    header.msg_control = ancillary.0.as_mut_ptr().cast();
    // SAFETY: CMSG_SPACE only computes.
    header.msg_controllen =
        unsafe { libc::CMSG_SPACE(mem::size_of::<[RawFd; MAX_DESCRIPTORS]>() as u32) } as usize;
    let received = loop {
        // SAFETY: `header` points at the live, writable `bytes` and `ancillary`.
        let got = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, libc::MSG_CMSG_CLOEXEC) };
        match got {
            -1 if interrupted() => {}
            -1 => return Err(io::Error::last_os_error()),
            length => break length.unsigned_abs(),
        }
    };
    let descriptors = descriptors_beside(&header);
    if header.msg_flags & libc::MSG_TRUNC != 0 {
        return Err(io::ErrorKind::InvalidData.into());
    }
    bytes.truncate(received);
    Ok(Packet { bytes, descriptors, is_whole: header.msg_flags & libc::MSG_CTRUNC == 0 })
}

/// The credentials of the process at the other end when it connected: its PID in our PID namespace, UID, GID.
///
/// # Errors
/// Those of `getsockopt(SO_PEERCRED)`.
pub fn peer_credentials(socket: BorrowedFd<'_>) -> io::Result<libc::ucred> {
    let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = mem::size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes into `credentials`.
    check(unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut credentials).cast(),
            &raw mut length,
        )
    })?;
    Ok(credentials)
}

fn new_socket(flags: libc::c_int) -> io::Result<OwnedFd> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | flags;
    // SAFETY: no memory is passed.
    Ok(owned(check(unsafe { libc::socket(libc::AF_UNIX, kind, 0) })?))
}

fn abstract_address(name: &[u8]) -> io::Result<(libc::sockaddr_un, libc::socklen_t)> {
    // SAFETY: all-zero is a valid sockaddr_un.
    let mut address: libc::sockaddr_un = unsafe { mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let path = address.sun_path.get_mut(1..=name.len()).ok_or(io::ErrorKind::InvalidInput)?;
    for (to, from) in path.iter_mut().zip(name) {
        *to = from.cast_signed();
    }
    let length = mem::offset_of!(libc::sockaddr_un, sun_path) + 1 + name.len();
    Ok((address, length as libc::socklen_t))
}

fn message_header(part: &mut libc::iovec) -> libc::msghdr {
    // SAFETY: all-zero is a valid msghdr: no address, no parts, no ancillary data.
    let mut header: libc::msghdr = unsafe { mem::zeroed() };
    header.msg_iov = part;
    header.msg_iovlen = 1;
    header
}

fn descriptors_beside(header: &libc::msghdr) -> Vec<OwnedFd> {
    let mut found = Vec::new();
    // SAFETY: the kernel filled msg_control with well-formed headers up to msg_controllen, and
    // each descriptor that it put there is new and ours alone.
    unsafe {
        let mut next = libc::CMSG_FIRSTHDR(header);
        while let Some(message) = next.as_ref() {
            if message.cmsg_level == libc::SOL_SOCKET && message.cmsg_type == libc::SCM_RIGHTS {
                let count = (message.cmsg_len - libc::CMSG_LEN(0) as usize) / mem::size_of::<RawFd>();
                let data = libc::CMSG_DATA(message).cast::<RawFd>();
                found.extend((0..count).map(|at| owned(data.add(at).read_unaligned())));
            }
            next = libc::CMSG_NXTHDR(header, message);
        }
    }
    found
}

fn owned(fd: RawFd) -> OwnedFd {
    // SAFETY: callers pass a descriptor that the kernel has just made for us.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn interrupted() -> bool {
    io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, Write};
    use std::os::fd::AsFd;

    use super::*;

    fn pair(name: &[u8]) -> (OwnedFd, OwnedFd) {
        let listener = listen(name).unwrap();
        let near = connect(name).unwrap();
        let far = accept(listener.as_fd()).unwrap();
        (near, far)
    }

    #[test]
    fn a_packet_arrives_with_its_descriptor() {
        let (near, far) = pair(b"transhume-test/descriptor");
        let mut file = tempfile();
        file.write_all(b"hello").unwrap();
        send(near.as_fd(), b"take this", &[file.as_fd()]).unwrap();
        let packet = receive(far.as_fd()).unwrap();
        assert_eq!(packet.bytes, b"take this");
        let mut copy = File::from(packet.descriptors.into_iter().next().unwrap());
        let mut text = String::new();
        std::io::Seek::rewind(&mut copy).unwrap();
        copy.read_to_string(&mut text).unwrap();
        assert_eq!(text, "hello");
    }

    #[test]
    fn receiving_from_a_closed_peer_gives_an_empty_packet_and_sending_fails() {
        let (near, far) = pair(b"transhume-test/closed");
        drop(near);
        assert!(receive(far.as_fd()).unwrap().bytes.is_empty());
        assert_eq!(send(far.as_fd(), b"x", &[]).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn packets_beyond_the_limits_are_refused() {
        let (near, _far) = pair(b"transhume-test/limits");
        assert!(send(near.as_fd(), &vec![0; MAX_MESSAGE + 1], &[]).is_err());
        assert!(listen(&[b'x'; 200]).is_err());
    }

    fn tempfile() -> File {
        // SAFETY: the name is a NUL-terminated literal.
        File::from(owned(check(unsafe { libc::memfd_create(c"test".as_ptr(), 0) }).unwrap()))
    }
}
