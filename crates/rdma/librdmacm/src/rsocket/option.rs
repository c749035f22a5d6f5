//! Options of sockets. Sizes are fixed, regardless of a program's request; other tuning options are stored and
//! returned.

use cm::socket::MAX_MAPPINGS;
use libc::{c_int, c_void, socklen_t};

use crate::errno::{Errno, INVALID, Result, number, status};

use super::socket::{Inner, Phase, Socket};
use super::{find, packets, stream};

/// `SOL_RDMA`, and its options.
const LEVEL_RDMA: c_int = 0x10000;
const RDMA_SQSIZE: c_int = 0;
const RDMA_RQSIZE: c_int = 1;
const RDMA_INLINE: c_int = 2;
const RDMA_IOMAPSIZE: c_int = 3;
const LAST_RDMA: c_int = 4;

/// `TCP_MAXSEG`: the path's MTU; without a path, the value of rdma-core.
const MTU: usize = 4096;
const MTU_WITHOUT_PATH: usize = 2048;

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
    let mut inner = socket.now()?;
    if (level, option) == (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) {
        waiting::lock(&inner.id()?.core.state).only_family = value.iter().any(|byte| *byte != 0);
    }
    inner.options.insert((level, option), value.to_vec());
    Ok(())
}

/// Sizes for so many requests, and so many bytes, in each direction.
#[derive(Clone, Copy)]
pub(super) struct Sizes {
    pub(super) send_requests: usize,
    pub(super) receive_requests: usize,
    pub(super) send_bytes: usize,
    pub(super) receive_bytes: usize,
}

/// Read-only options.
fn given(socket: &Socket, inner: &mut Inner, level: c_int, option: c_int) -> Option<c_int> {
    let sizes = if socket.carries_datagrams() { packets::SIZES } else { stream::SIZES };
    let size = match (level, option) {
        (libc::SOL_SOCKET, libc::SO_ERROR) => return Some(std::mem::take(&mut inner.error)),
        (libc::SOL_SOCKET, libc::SO_DOMAIN) => return Some(socket.domain()),
        (libc::SOL_SOCKET, libc::SO_TYPE) if socket.carries_datagrams() => return Some(libc::SOCK_DGRAM),
        (libc::SOL_SOCKET, libc::SO_TYPE) => return Some(libc::SOCK_STREAM),
        (libc::SOL_SOCKET, libc::SO_PROTOCOL) if socket.carries_datagrams() => {
            return Some(libc::IPPROTO_UDP);
        }
        (libc::SOL_SOCKET, libc::SO_PROTOCOL) => return Some(libc::IPPROTO_TCP),
        (libc::SOL_SOCKET, libc::SO_ACCEPTCONN) => usize::from(inner.phase == Phase::Listening),
        (libc::SOL_SOCKET, libc::SO_SNDBUF) => sizes.send_bytes,
        (libc::SOL_SOCKET, libc::SO_RCVBUF) => sizes.receive_bytes,
        (libc::IPPROTO_TCP, libc::TCP_MAXSEG) if inner.stream.is_some() => MTU,
        (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => MTU_WITHOUT_PATH,
        (LEVEL_RDMA, RDMA_SQSIZE) => sizes.send_requests,
        (LEVEL_RDMA, RDMA_RQSIZE) => sizes.receive_requests,
        (LEVEL_RDMA, RDMA_INLINE) => 0,
        (LEVEL_RDMA, RDMA_IOMAPSIZE) => MAX_MAPPINGS,
        _ => return None,
    };
    c_int::try_from(size).ok()
}

fn get(socket: &Socket, level: c_int, option: c_int) -> Result<Vec<u8>> {
    let mut inner = socket.now()?;
    if let Some(value) = given(socket, &mut inner, level, option) {
        return Ok(value.to_ne_bytes().to_vec());
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
        return status(|| Err(INVALID));
    }
    // SAFETY: the contract of sockets: a value as long as stated.
    let value = unsafe { std::slice::from_raw_parts(value.cast(), length) };
    status(|| find(socket).and_then(|socket| set(&socket, level, option, value)))
}

pub(crate) unsafe extern "C" fn rgetsockopt(
    socket: c_int,
    level: c_int,
    option: c_int,
    value: *mut c_void,
    length: *mut socklen_t,
) -> c_int {
    if value.is_null() || length.is_null() {
        return status(|| Err(INVALID));
    }
    status(|| {
        find(socket).and_then(|socket| get(&socket, level, option)).map(|got| {
            // SAFETY: the contract of sockets: as much room as the length says.
            unsafe {
                let room = got.len().min(*length as usize);
                std::ptr::copy_nonoverlapping(got.as_ptr(), value.cast(), room);
                *length = room as socklen_t;
            }
        })
    })
}

/// `F_GETFL` and `F_SETFL`, with `O_NONBLOCK` as the only flag. C passes the flags as a variable argument, in the
/// same register.
pub(crate) unsafe extern "C" fn rfcntl(socket: c_int, command: c_int, flags: c_int) -> c_int {
    number(|| {
        let socket = find(socket)?;
        let mut inner = socket.now()?;
        match command {
            libc::F_GETFL => Ok(if inner.nonblocking { libc::O_NONBLOCK } else { 0 }),
            libc::F_SETFL => {
                inner.nonblocking = flags & libc::O_NONBLOCK != 0;
                Ok(0)
            }
            _ => Err(Errno(libc::ENOTSUP)),
        }
    })
}
