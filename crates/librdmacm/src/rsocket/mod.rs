//! Sockets over RDMA (`rdma/rsocket.h`): streams and datagrams between programs that all use them.
//!
//! A socket's number is the descriptor of its event channel, so that it is no other file's. The life of one for a stream:
//!
//! ```text
//! fresh ─rlisten─▶ listening ─raccept─▶ (a new socket) accepting ─▶ connected
//!   └──rconnect──▶ resolving ─▶ routing ─▶ connecting ────────────────▲  │
//!                      └──────────┴───────────┴─────▶ over ◀─────────────┘
//! ```
//!
//! * [`socket`]: one socket, its phases and its waiting. [`stream`]: the queue pair of a connected one, and the bytes.
//!   [`packets`]: those of one for datagrams, which is always fresh.
//! * [`calls`], [`transfer`], [`poll`], [`option`], [`iomap`]: the functions.

mod calls;
mod iomap;
mod option;
mod packets;
mod poll;
mod socket;
mod stream;
mod transfer;

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex};

pub(crate) use calls::*;
pub(crate) use iomap::*;
use libc::c_int;
pub(crate) use option::*;
pub(crate) use poll::*;
pub(crate) use transfer::*;

use crate::errno::{Errno, Result};
use socket::Socket;
use waiting::lock;

static SOCKETS: LazyLock<Mutex<HashMap<c_int, Arc<Socket>>>> = LazyLock::new(Mutex::default);

/// The socket with this number.
///
/// # Errors
/// `EBADF` if there is none.
fn find(number: c_int) -> Result<Arc<Socket>> {
    lock(&SOCKETS).get(&number).cloned().ok_or(Errno(libc::EBADF))
}

fn enter(socket: Socket) -> c_int {
    let number = socket.number();
    lock(&SOCKETS).insert(number, Arc::new(socket));
    number
}

fn remove(number: c_int) -> Result<Arc<Socket>> {
    lock(&SOCKETS).remove(&number).ok_or(Errno(libc::EBADF))
}
