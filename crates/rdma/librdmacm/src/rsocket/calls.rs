//! Sockets: create, bind, listen, connect, accept, close.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use libc::{c_int, sockaddr, socklen_t};

use crate::address;
use crate::errno::{Errno, INVALID, Result, number, status};

use super::socket::{Phase, Socket, Wait};
use super::{enter, find, remove, unfinished, with};

/// How long closing waits for written data to arrive.
const LINGER: Duration = Duration::from_secs(10);

/// Writes an address to the program's buffer, truncated to its length, as for other sockets.
///
/// # Safety
/// Both are NULL, or `length` says how much can be written to `address`.
pub(super) unsafe fn tell(
    from: Option<SocketAddr>,
    address: *mut sockaddr,
    length: *mut socklen_t,
) -> Result<()> {
    if address.is_null() || length.is_null() {
        return Ok(());
    }
    let (storage, size) = address::store(from.ok_or(Errno(libc::ENOTCONN))?);
    // SAFETY: the caller's promise; the storage is larger than any address.
    unsafe {
        let room = (*length).min(size) as usize;
        std::ptr::copy_nonoverlapping((&raw const storage).cast::<u8>(), address.cast(), room);
        *length = size;
    }
    Ok(())
}

fn open(domain: c_int, kind: c_int, protocol: c_int) -> Result<c_int> {
    let has_family = matches!(domain, libc::AF_INET | libc::AF_INET6);
    // Types with flags are refused, as up to rdma-core 62: its librspreload.so then makes a kernel socket, for a
    // program that may call functions that it does not wrap, such as accept4.
    match (kind, protocol) {
        (libc::SOCK_STREAM, 0 | libc::IPPROTO_TCP) if has_family => Socket::new(domain).map(enter),
        (libc::SOCK_DGRAM, 0 | libc::IPPROTO_UDP) if has_family => Socket::for_datagrams(domain).map(enter),
        _ => Err(Errno(libc::ENOTSUP)),
    }
}

fn connect(socket: &Arc<Socket>, to: SocketAddr) -> Result<()> {
    if socket.carries_datagrams() {
        return socket.now()?.connect_datagrams(to);
    }
    let waits = {
        let mut inner = socket.now()?;
        match inner.phase {
            Phase::Fresh => inner.connect(to)?,
            Phase::Connected => return Err(Errno(libc::EISCONN)),
            Phase::Resolving | Phase::Routing | Phase::Connecting => return Err(Errno(libc::EALREADY)),
            Phase::Accepting | Phase::Listening | Phase::Over => return Err(INVALID),
        }
        !inner.nonblocking
    };
    if !waits {
        unfinished::enter(socket);
        return Err(Errno(libc::EINPROGRESS));
    }
    socket.until(Wait::Always, None, |inner| match inner.phase {
        Phase::Connected => Some(Ok(())),
        Phase::Over => Some(Err(Errno(inner.error))),
        _ => None,
    })
}

/// Ends sending; with `reads`, also reading.
fn shut(socket: &Arc<Socket>, reads: bool, writes: bool) -> Result<()> {
    let mut inner = socket.now()?;
    if !matches!(inner.phase, Phase::Connected | Phase::Accepting | Phase::Over) {
        return Err(Errno(libc::ENOTCONN));
    }
    inner.reads_no_more |= reads;
    inner.writes_no_more |= writes;
    // The event that they wait for will not come.
    inner.tell_sleepers(true);
    drop(inner);
    if !writes {
        return Ok(());
    }
    socket.until(Wait::Always, Some(LINGER), |inner| {
        let hung_up = inner.has_hung_up() || inner.phase == Phase::Over;
        (hung_up || inner.end()).then_some(Ok(()))
    })
}

fn close(socket: &Arc<Socket>) {
    let Ok(remains) = socket.now().map(|mut inner| inner.abandon()) else { return socket.close_number() };
    if socket.carries_datagrams() || shut(socket, true, true).is_ok() {
        // Data that has not arrived by then is lost.
        let _ = socket.until(Wait::Always, Some(LINGER), |inner| {
            (inner.is_flushed() || inner.has_hung_up()).then_some(Ok(()))
        });
    }
    unfinished::leave(socket.number());
    // From here on its number may be another's.
    drop(remains);
}

pub(crate) unsafe extern "C" fn rsocket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    number(|| open(domain, kind, protocol))
}

pub(crate) unsafe extern "C" fn rbind(socket: c_int, to: *const sockaddr, _: socklen_t) -> c_int {
    // SAFETY: the contract of sockets: a whole address.
    let address = unsafe { address::read(to) };
    status(|| find(socket).and_then(|socket| socket.now()?.id()?.bind(address?)))
}

pub(crate) unsafe extern "C" fn rlisten(socket: c_int, backlog: c_int) -> c_int {
    status(|| {
        let socket = find(socket)?;
        if socket.carries_datagrams() {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        socket.listen(backlog)?;
        unfinished::enter(&socket);
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn raccept(socket: c_int, from: *mut sockaddr, length: *mut socklen_t) -> c_int {
    number(|| {
        let accepted = with(socket, Socket::accept)?;
        let remote = accepted.now()?.addresses()?.1;
        // SAFETY: the contract of sockets: NULL, or as much room as the length says.
        unsafe { tell(remote, from, length)? };
        Ok(enter(accepted))
    })
}

pub(crate) unsafe extern "C" fn rconnect(socket: c_int, to: *const sockaddr, _: socklen_t) -> c_int {
    // SAFETY: the contract of sockets: a whole address.
    let to = unsafe { address::read(to) };
    status(|| with(socket, |socket| connect(socket, to?)))
}

pub(crate) unsafe extern "C" fn rshutdown(socket: c_int, how: c_int) -> c_int {
    let (reads, writes) = match how {
        libc::SHUT_RD => (true, false),
        libc::SHUT_WR => (false, true),
        libc::SHUT_RDWR => (true, true),
        _ => return status(|| Err(INVALID)),
    };
    status(|| find(socket).and_then(|socket| shut(&socket, reads, writes)))
}

pub(crate) unsafe extern "C" fn rclose(socket: c_int) -> c_int {
    status(|| remove(socket).map(|socket| close(&socket)))
}

pub(crate) unsafe extern "C" fn rgetsockname(
    socket: c_int,
    address: *mut sockaddr,
    length: *mut socklen_t,
) -> c_int {
    // SAFETY: the contract of sockets: as much room as the length says.
    status(|| find(socket).and_then(|socket| unsafe { tell(socket.now()?.addresses()?.0, address, length) }))
}

pub(crate) unsafe extern "C" fn rgetpeername(
    socket: c_int,
    address: *mut sockaddr,
    length: *mut socklen_t,
) -> c_int {
    // SAFETY: as above.
    status(|| find(socket).and_then(|socket| unsafe { tell(socket.now()?.addresses()?.1, address, length) }))
}
