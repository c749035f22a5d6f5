//! Options of sockets. Those that only tune are kept and given back.

use libc::{c_int, c_void, socklen_t};

use crate::errno::{Errno, INVALID, Result, status};

use super::find;
use super::socket::Socket;

/// `SOL_RDMA`, and the largest of its options.
const LEVEL_RDMA: c_int = 0x10000;
const LAST_RDMA: c_int = 4;

/// The longest value that is kept.
const MAX_VALUE: usize = 64;

fn is_known(level: c_int, option: c_int) -> bool {
    match level {
        libc::SOL_SOCKET => matches!(
            option,
            libc::SO_REUSEADDR
                | libc::SO_RCVBUF
                | libc::SO_SNDBUF
                | libc::SO_LINGER
                | libc::SO_KEEPALIVE
                | libc::SO_OOBINLINE
        ),
        libc::IPPROTO_TCP => matches!(
            option,
            libc::TCP_NODELAY
                | libc::TCP_MAXSEG
                | libc::TCP_KEEPIDLE
                | libc::TCP_KEEPINTVL
                | libc::TCP_KEEPCNT
        ),
        libc::IPPROTO_IPV6 => option == libc::IPV6_V6ONLY,
        LEVEL_RDMA => (0..=LAST_RDMA).contains(&option),
        _ => false,
    }
}

fn set(socket: &Socket, level: c_int, option: c_int, value: &[u8]) -> Result<()> {
    if !is_known(level, option) {
        return Err(Errno(libc::ENOTSUP));
    }
    let mut inner = socket.now();
    if (level, option) == (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) {
        waiting::lock(&inner.id()?.core.state).only_family = value.iter().any(|byte| *byte != 0);
    }
    inner.options.insert((level, option), value.to_vec());
    Ok(())
}

fn get(socket: &Socket, level: c_int, option: c_int) -> Result<Vec<u8>> {
    let mut inner = socket.now();
    if (level, option) == (libc::SOL_SOCKET, libc::SO_ERROR) {
        return Ok(std::mem::take(&mut inner.error).to_ne_bytes().to_vec());
    }
    if !is_known(level, option) {
        return Err(Errno(libc::ENOTSUP));
    }
    Ok(inner.options.get(&(level, option)).cloned().unwrap_or_else(|| vec![0; size_of::<c_int>()]))
}

pub(crate) unsafe extern "C" fn rsetsockopt(
    socket: c_int,
    level: c_int,
    option: c_int,
    value: *const c_void,
    length: socklen_t,
) -> c_int {
    let length = length as usize;
    if value.is_null() || length > MAX_VALUE {
        return status(Err(INVALID));
    }
    // SAFETY: the contract of sockets: a value as long as stated.
    let value = unsafe { std::slice::from_raw_parts(value.cast(), length) };
    status(find(socket).and_then(|socket| set(&socket, level, option, value)))
}

pub(crate) unsafe extern "C" fn rgetsockopt(
    socket: c_int,
    level: c_int,
    option: c_int,
    value: *mut c_void,
    length: *mut socklen_t,
) -> c_int {
    if value.is_null() || length.is_null() {
        return status(Err(INVALID));
    }
    status(find(socket).and_then(|socket| get(&socket, level, option)).map(|got| {
        // SAFETY: the contract of sockets: as much room as the length says.
        unsafe {
            let room = got.len().min(*length as usize);
            std::ptr::copy_nonoverlapping(got.as_ptr(), value.cast(), room);
            *length = room as socklen_t;
        }
    }))
}

/// `F_GETFL` and `F_SETFL`, of which `O_NONBLOCK` alone counts. C passes the flags as a variable argument, in the
/// same register.
pub(crate) unsafe extern "C" fn rfcntl(socket: c_int, command: c_int, flags: c_int) -> c_int {
    let done = find(socket).and_then(|socket| {
        let mut inner = socket.now();
        match command {
            libc::F_GETFL => Ok(if inner.nonblocking { libc::O_NONBLOCK } else { 0 }),
            libc::F_SETFL => {
                inner.nonblocking = flags & libc::O_NONBLOCK != 0;
                Ok(0)
            }
            _ => Err(Errno(libc::ENOTSUP)),
        }
    });
    crate::errno::number(done)
}
