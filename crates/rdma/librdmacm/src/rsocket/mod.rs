//! Sockets over RDMA (`rdma/rsocket.h`): streams and datagrams between programs that all use them.
//!
//! A socket's number is the descriptor of its event channel, so that no other file has it. The states of a stream socket:
//!
//! ```text
//! fresh ─rlisten─▶ listening ─ ─ (new sockets, for raccept) accepting ─▶ connected
//!   └──rconnect──▶ resolving ─▶ routing ─▶ connecting ────────────────▲  │
//!                      └──────────┴───────────┴─────▶ over ◀─────────────┘
//! ```
//!
//! * [`socket`]: one socket, its phases and its waiting. [`stream`]: the queue pair of a connected one, and the bytes.
//!   [`packets`]: the datagrams of a datagram socket, which stays in state fresh until it is over.
//! * [`unfinished`]: operations that proceed between the program's calls.
//! * [`calls`], [`transfer`], [`poll`], [`option`], [`iomap`]: the functions.

mod calls;
mod iomap;
mod option;
mod packets;
mod poll;
mod socket;
mod stream;
mod transfer;
pub(crate) mod unfinished;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, mpsc};
use std::thread;
use std::time::Duration;

pub(crate) use calls::*;
pub(crate) use iomap::*;
use libc::c_int;
pub(crate) use option::*;
pub(crate) use poll::*;
pub(crate) use transfer::*;

use crate::errno::{Errno, Result};
use socket::Socket;
use waiting::{HeldInFork, SignalsBlocked, keep, lock};

type Sockets = BTreeMap<c_int, Arc<Socket>>;

/// A forked child keeps its parent's sockets in the table, so that its calls on them get errors. So the lock is held across `fork`: a
/// holder takes no other lock, and does not wait.
static SOCKETS: Mutex<Sockets> = Mutex::new(BTreeMap::new());

static HELD: HeldInFork<MutexGuard<'static, Sockets>> = HeldInFork::new();

/// Before a fork.
pub(crate) unsafe extern "C" fn hold() {
    // SAFETY: it is the lock itself.
    unsafe { HELD.put(lock(&SOCKETS)) };
}

/// After it, in both processes.
pub(crate) unsafe extern "C" fn let_go() {
    drop(HELD.take());
}

/// The socket with this number.
///
/// # Errors
/// `EBADF` if there is none.
fn find(number: c_int) -> Result<Arc<Socket>> {
    lock(&SOCKETS).get(&number).cloned().ok_or(Errno(libc::EBADF))
}

/// Does `work` with the socket, which the program may close meanwhile.
///
/// # Errors
/// `EBADF` if there is none.
fn with<R>(number: c_int, work: impl FnOnce(&Arc<Socket>) -> Result<R>) -> Result<R> {
    keep(find(number)?, |socket| work(socket))
}

fn enter(socket: Socket) -> c_int {
    let number = socket.number();
    // A socket whose number the program has closed as a file is dropped without the lock.
    let before = lock(&SOCKETS).insert(number, Arc::new(socket));
    drop(before);
    number
}

/// The process ends: data that was written to streams arrives, if that does not take long, and so does their end. As
/// for other sockets, a stream that was not closed is not reset.
///
/// It may end anywhere, also where a lock is held: so another thread does it, and is not waited for for long.
pub(crate) fn end_all() {
    const PATIENCE: Duration = Duration::from_secs(1);
    if SOCKETS.try_lock().is_ok_and(|sockets| sockets.is_empty()) {
        return;
    }
    let (done, waits) = mpsc::channel::<()>();
    let end = move || {
        end_each();
        drop(done);
    };
    let _unseen = SignalsBlocked::new();
    if thread::Builder::new().spawn(end).is_ok() {
        // No event follows: either all are closed, or time is up.
        let _ = waits.recv_timeout(PATIENCE);
    }
}

fn end_each() {
    const PAUSE: Duration = Duration::from_micros(200);
    let mut left: Vec<_> = lock(&SOCKETS).values().cloned().collect();
    while !left.is_empty() {
        left.retain(|socket| !socket.ends());
        thread::sleep(PAUSE);
    }
}

fn remove(number: c_int) -> Result<Arc<Socket>> {
    lock(&SOCKETS).remove(&number).ok_or(Errno(libc::EBADF))
}
