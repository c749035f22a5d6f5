//! Sending and receiving.

use std::net::SocketAddr;
use std::sync::Arc;

use libc::{c_int, c_void, iovec, msghdr, sockaddr, socklen_t, ssize_t};

use crate::address;
use crate::errno::{Errno, INVALID, Result, number};

use super::calls::tell;
use super::packets::Fate;
use super::socket::{Inner, Phase, Socket, Wait};
use super::stream::Stream;
use super::{unfinished, with};

/// A count, or -1 and `errno`.
fn count(work: impl FnOnce() -> Result<usize>) -> ssize_t {
    number(|| work().map(usize::cast_signed))
}

/// Whether the connection has anything to read, or room to write.
fn connected(inner: &Inner) -> Option<Result<()>> {
    match inner.phase {
        Phase::Connected => Some(Ok(())),
        Phase::Accepting => None,
        Phase::Over if inner.error != 0 => Some(Err(Errno(inner.error))),
        _ => Some(Err(Errno(libc::ENOTCONN))),
    }
}

fn read_some(inner: &mut Inner, into: &mut [u8], peeks: bool) -> Option<Result<usize>> {
    if let Some(stream) = &mut inner.stream
        && stream.has_data()
        && !inner.reads_no_more
    {
        return Some(Ok(stream.read(into, peeks)));
    }
    if into.is_empty() || inner.reads_no_more {
        return Some(Ok(0));
    }
    let ended = inner.stream.as_ref().is_some_and(Stream::has_ended);
    match connected(inner)? {
        Err(errno) => Some(Err(errno)),
        Ok(()) if ended => Some(Ok(0)),
        Ok(()) if inner.has_hung_up() => Some(Err(Errno(libc::ECONNRESET))),
        Ok(()) => None,
    }
}

/// A datagram, and its source; bytes beyond the buffer are lost.
fn receive_datagram(socket: &Arc<Socket>, into: &mut [u8], flags: c_int) -> Result<(usize, SocketAddr)> {
    let peeks = flags & libc::MSG_PEEK != 0;
    socket.until(Wait::of(flags), None, |inner| inner.read_datagram(into, peeks))
}

fn send_datagram(socket: &Arc<Socket>, data: &[u8], flags: c_int, to: Option<SocketAddr>) -> Result<usize> {
    let fate = socket.until(Wait::of(flags), None, |inner| inner.send_datagram(data, to).transpose())?;
    if fate == Fate::Waits {
        unfinished::enter(socket);
    }
    Ok(data.len())
}

/// Only streams have this.
fn of_streams(socket: &Socket) -> Result<()> {
    if socket.carries_datagrams() { Err(Errno(libc::EOPNOTSUPP)) } else { Ok(()) }
}

pub(super) fn receive(socket: &Arc<Socket>, into: &mut [u8], flags: c_int) -> Result<usize> {
    if socket.carries_datagrams() {
        return receive_datagram(socket, into, flags).map(|(got, _)| got);
    }
    let (wait, peeks) = (Wait::of(flags), flags & libc::MSG_PEEK != 0);
    let mut done = 0;
    loop {
        let got = socket.until(wait, None, |inner| read_some(inner, &mut into[done..], peeks));
        match got {
            Err(_) if done > 0 => return Ok(done),
            Err(errno) => return Err(errno),
            Ok(0) => return Ok(done),
            Ok(got) => done += got,
        }
        if done == into.len() || peeks || flags & libc::MSG_WAITALL == 0 {
            return Ok(done);
        }
    }
}

fn write_some(
    inner: &mut Inner,
    write: &mut impl FnMut(&mut Stream) -> Option<Result<usize>>,
) -> Option<Result<usize>> {
    if inner.writes_no_more {
        return Some(Err(Errno(libc::EPIPE)));
    }
    match connected(inner)? {
        Err(errno) => Some(Err(errno)),
        Ok(()) if inner.has_hung_up() => Some(Err(Errno(libc::ECONNRESET))),
        Ok(()) => write(inner.stream.as_mut()?),
    }
}

/// Sends all, or as much as fits if the socket does not wait.
pub(super) fn send(socket: &Arc<Socket>, from: &[u8], flags: c_int) -> Result<usize> {
    if socket.carries_datagrams() {
        return send_datagram(socket, from, flags, None);
    }
    write_all(socket, from.len(), flags, |stream, done| {
        stream.has_room().then(|| Ok(stream.write(&from[done..])))
    })
}

/// Calls `write` with the number of written bytes until all are written.
pub(super) fn write_all(
    socket: &Arc<Socket>,
    length: usize,
    flags: c_int,
    mut write: impl FnMut(&mut Stream, usize) -> Option<Result<usize>>,
) -> Result<usize> {
    let wait = Wait::of(flags);
    let mut done = 0;
    while done < length {
        let wrote = socket.until(wait, None, |inner| write_some(inner, &mut |stream| write(stream, done)));
        match wrote {
            Ok(wrote) => done += wrote,
            Err(_) if done > 0 => return Ok(done),
            Err(errno) => return Err(errno),
        }
    }
    Ok(done)
}

/// # Safety
/// `at` can be written for `length` bytes.
unsafe fn writable<'a>(at: *mut c_void, length: usize) -> &'a mut [u8] {
    // SAFETY: the caller's promise; no bytes need no place.
    if length == 0 { &mut [] } else { unsafe { std::slice::from_raw_parts_mut(at.cast(), length) } }
}

/// # Safety
/// `at` can be read for `length` bytes.
pub(super) unsafe fn readable<'a>(at: *const c_void, length: usize) -> &'a [u8] {
    // SAFETY: the caller's promise; no bytes need no place.
    if length == 0 { &[] } else { unsafe { std::slice::from_raw_parts(at.cast(), length) } }
}

/// Calls `step` with each part until one is not done in full.
///
/// # Safety
/// There are `number` parts.
unsafe fn each(
    parts: *const iovec,
    number: usize,
    mut step: impl FnMut(&iovec) -> Result<usize>,
) -> Result<usize> {
    let mut total = 0;
    for at in 0..number {
        // SAFETY: the caller's promise.
        let part = unsafe { &*parts.add(at) };
        match step(part) {
            Ok(done) => {
                total += done;
                if done < part.iov_len {
                    break;
                }
            }
            Err(errno) if total == 0 => return Err(errno),
            Err(_) => break,
        }
    }
    Ok(total)
}

pub(crate) unsafe extern "C" fn rrecv(
    socket: c_int,
    at: *mut c_void,
    length: usize,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the contract of sockets: memory as long as stated.
    count(|| with(socket, |socket| receive(socket, unsafe { writable(at, length) }, flags)))
}

pub(crate) unsafe extern "C" fn rrecvfrom(
    socket: c_int,
    at: *mut c_void,
    length: usize,
    flags: c_int,
    from: *mut sockaddr,
    from_length: *mut socklen_t,
) -> ssize_t {
    count(|| {
        // SAFETY: the contract of sockets: memory as long as stated.
        with(socket, |socket| unsafe {
            let into = writable(at, length);
            let (got, sender) = if socket.carries_datagrams() {
                receive_datagram(socket, into, flags).map(|(got, sender)| (got, Some(sender)))?
            } else {
                (receive(socket, into, flags)?, socket.now()?.addresses()?.1)
            };
            tell(sender, from, from_length)?;
            Ok(got)
        })
    })
}

/// Parts after the first non-empty one are filled with available data without waiting.
///
/// # Safety
/// There are `number` parts, each as long as it says.
unsafe fn scatter(socket: &Arc<Socket>, parts: *const iovec, number: usize, flags: c_int) -> Result<usize> {
    of_streams(socket)?;
    let mut flags = flags;
    // SAFETY: the contract of sockets: parts as many, and as long, as stated.
    unsafe {
        each(parts, number, |part| {
            let got = receive(socket, writable(part.iov_base, part.iov_len), flags);
            if part.iov_len > 0 {
                flags |= libc::MSG_DONTWAIT;
            }
            got
        })
    }
}

pub(crate) unsafe extern "C" fn rrecvmsg(socket: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the contract of sockets.
    let Some(message) = (unsafe { message.as_ref() }) else { return count(|| Err(INVALID)) };
    // SAFETY: as above.
    count(|| with(socket, |socket| unsafe { scatter(socket, message.msg_iov, message.msg_iovlen, flags) }))
}

pub(crate) unsafe extern "C" fn rread(socket: c_int, at: *mut c_void, length: usize) -> ssize_t {
    // SAFETY: as above.
    unsafe { rrecv(socket, at, length, 0) }
}

pub(crate) unsafe extern "C" fn rreadv(socket: c_int, parts: *const iovec, number: c_int) -> ssize_t {
    let Ok(number) = usize::try_from(number) else { return count(|| Err(INVALID)) };
    // SAFETY: as above.
    count(|| with(socket, |socket| unsafe { scatter(socket, parts, number, 0) }))
}

pub(crate) unsafe extern "C" fn rsend(
    socket: c_int,
    at: *const c_void,
    length: usize,
    flags: c_int,
) -> ssize_t {
    // SAFETY: as above.
    count(|| with(socket, |socket| send(socket, unsafe { readable(at, length) }, flags)))
}

/// On a stream the address is of no account.
pub(crate) unsafe extern "C" fn rsendto(
    socket: c_int,
    at: *const c_void,
    length: usize,
    flags: c_int,
    to: *const sockaddr,
    _: socklen_t,
) -> ssize_t {
    count(|| {
        // SAFETY: as above; NULL, or a whole address.
        with(socket, |socket| unsafe {
            let data = readable(at, length);
            if !socket.carries_datagrams() {
                return send(socket, data, flags);
            }
            let to = if to.is_null() { None } else { Some(address::read(to)?) };
            send_datagram(socket, data, flags, to)
        })
    })
}

/// # Safety
/// There are `number` parts, each as long as it says.
unsafe fn gather(socket: &Arc<Socket>, parts: *const iovec, number: usize, flags: c_int) -> Result<usize> {
    of_streams(socket)?;
    // SAFETY: the contract of sockets: parts as many, and as long, as stated.
    unsafe { each(parts, number, |part| send(socket, readable(part.iov_base, part.iov_len), flags)) }
}

pub(crate) unsafe extern "C" fn rsendmsg(socket: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the contract of sockets.
    let Some(message) = (unsafe { message.as_ref() }) else { return count(|| Err(INVALID)) };
    // SAFETY: as above.
    count(|| with(socket, |socket| unsafe { gather(socket, message.msg_iov, message.msg_iovlen, flags) }))
}

pub(crate) unsafe extern "C" fn rwrite(socket: c_int, at: *const c_void, length: usize) -> ssize_t {
    // SAFETY: as above.
    unsafe { rsend(socket, at, length, 0) }
}

pub(crate) unsafe extern "C" fn rwritev(socket: c_int, parts: *const iovec, number: c_int) -> ssize_t {
    let Ok(number) = usize::try_from(number) else { return count(|| Err(INVALID)) };
    // SAFETY: as above.
    count(|| with(socket, |socket| unsafe { gather(socket, parts, number, 0) }))
}
