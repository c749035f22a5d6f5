//! What goes on between a program's calls: a connect of a socket that does not wait, connections to one that listens, and
//! datagrams whose destination is looked up. The manager's thread sees to it, as it is the one that gets the answers.
//!
//! Its lock is taken before a socket's. A socket in this list is held by nobody for long: what waits for the directory
//! under a socket's lock, to bind it, comes before all that makes it unfinished.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard};

use libc::c_int;
use waiting::lock;

use super::find;
use super::socket::Socket;

/// The numbers of unfinished sockets.
static UNFINISHED: Mutex<BTreeSet<c_int>> = Mutex::new(BTreeSet::new());

/// What is unfinished of `socket` goes on by itself from now on.
pub(super) fn enter(socket: &Socket) {
    lock(&UNFINISHED).insert(socket.number());
    // Of what came before that the thread knows nothing.
    drop(socket.now());
}

/// The socket that had this number is closed. When this returns the thread does not use it any more.
pub(super) fn leave(number: c_int) {
    lock(&UNFINISHED).remove(&number);
}

/// Goes on with all, as something may have happened to them.
pub(crate) fn go_on() {
    let goes_on = |number: &c_int| find(*number).is_ok_and(|socket| socket.now().is_unfinished());
    lock(&UNFINISHED).retain(goes_on);
}

/// Keeps the manager's thread away from all sockets, so that a forked child inherits none that is in use.
pub(crate) fn hold() -> Held {
    lock(&UNFINISHED)
}

pub(crate) type Held = MutexGuard<'static, BTreeSet<c_int>>;

/// What is unfinished is the parent's.
pub(crate) fn forked(mut inherited: Held) {
    inherited.clear();
}
