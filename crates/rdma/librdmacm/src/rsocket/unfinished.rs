//! Operations that proceed between a program's calls: non-blocking connects, connections to a listening socket, and
//! datagrams whose destination is being resolved. The manager's thread drives them, as it gets the answers.
//!
//! Its lock is taken before a socket's. No thread holds a socket in this list for long: a wait for the directory
//! under a socket's lock, to bind it, comes before all that makes it unfinished.

use std::collections::BTreeSet;
use std::sync::Mutex;

use libc::c_int;
use waiting::{PerProcess, lock};

use super::find;
use super::socket::Socket;

/// The numbers of unfinished sockets.
static UNFINISHED: PerProcess<Mutex<BTreeSet<c_int>>> = PerProcess::new();

/// Lets the unfinished operations of `socket` proceed from now on.
pub(super) fn enter(socket: &Socket) {
    lock(UNFINISHED.get()).insert(socket.number());
    // The thread knows nothing of earlier events.
    drop(socket.now());
}

/// The socket that had this number is closed. When this returns the thread does not use it any more.
pub(super) fn leave(number: c_int) {
    lock(UNFINISHED.get()).remove(&number);
}

/// Goes on with all, as something may have happened to them.
pub(crate) fn go_on() {
    let goes_on = |number: &c_int| {
        find(*number).is_ok_and(|socket| socket.now().is_ok_and(|inner| inner.is_unfinished()))
    };
    lock(UNFINISHED.get()).retain(goes_on);
}
