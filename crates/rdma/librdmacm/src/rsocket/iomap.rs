//! Memory that the peer of a socket may write to.

use std::sync::Arc;

use libc::{c_int, c_void, off_t};

use crate::errno::{Errno, INVALID, Result, number, status};

use super::socket::{Phase, Socket, Wait};
use super::transfer::{readable, write_all};
use super::with;

fn map(
    socket: &Arc<Socket>,
    at: *mut c_void,
    length: usize,
    protection: c_int,
    wanted: off_t,
) -> Result<off_t> {
    if protection & !libc::PROT_WRITE != 0 || at.is_null() || length == 0 {
        return Err(INVALID);
    }
    let place = if wanted == -1 { at.addr().cast_signed() as off_t } else { wanted };
    socket.until(Wait::Always, None, |inner| {
        if !matches!(inner.phase, Phase::Connected) {
            return (inner.phase != Phase::Accepting).then_some(Err(Errno(libc::ENOTCONN)));
        }
        let stream = inner.stream.as_mut()?;
        match stream.map(at.cast(), length, place.cast_unsigned(), protection & libc::PROT_WRITE != 0) {
            Err(Errno(libc::EAGAIN)) => None,
            mapped => Some(mapped.map(|()| place)),
        }
    })
}

/// Returns the offset at which the peer finds the memory: `wanted`, or a free one for -1.
pub(crate) unsafe extern "C" fn riomap(
    socket: c_int,
    at: *mut c_void,
    length: usize,
    protection: c_int,
    _flags: c_int,
    wanted: off_t,
) -> off_t {
    number(|| with(socket, |socket| map(socket, at, length, protection, wanted)))
}

pub(crate) unsafe extern "C" fn riounmap(socket: c_int, at: *mut c_void, length: usize) -> c_int {
    status(|| {
        with(socket, |socket| {
            let mut inner = socket.now()?;
            inner.stream.as_mut().ok_or(Errno(libc::ENOTCONN))?.unmap(at.addr(), length)
        })
    })
}

/// Writes to the memory that the other side has mapped at `place`.
pub(crate) unsafe extern "C" fn riowrite(
    socket: c_int,
    at: *const c_void,
    length: usize,
    place: off_t,
    flags: c_int,
) -> usize {
    // SAFETY: the contract of `riowrite`: memory as long as stated.
    let from = unsafe { readable(at, length) };
    let written: isize = number(|| {
        let written = with(socket, |socket| {
            write_all(socket, length, flags, |stream, done| {
                let place = place.cast_unsigned().checked_add(done as u64);
                stream.can_write_to().then(|| stream.write_to(place.ok_or(INVALID)?, &from[done..]))
            })
        });
        written.map(usize::cast_signed)
    });
    written.cast_unsigned()
}
