//! TCP sockets of a dumped tree that resumes after a rollback.
//!
//! CRIU leaves the connections of a stopped tree in repair mode, in which the kernel sends nothing for them. That is right for a tree
//! that is killed next. Before a tree resumes, its connections leave that mode.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use super::task::{self, Task, TaskId};

/// `SO_REUSEADDR` of each TCP socket by inode: leaving repair mode resets it.
pub type Reuse = HashMap<u64, libc::c_int>;

/// What has to be known of a running tree's sockets to let them run again.
pub fn remember(tree: &[i32]) -> io::Result<Reuse> {
    let mut reuse = Reuse::new();
    for_each_tcp(tree, |inode, socket| {
        reuse.insert(inode, option(&socket, libc::SOL_SOCKET, libc::SO_REUSEADDR).unwrap_or(0));
        Ok(())
    })?;
    Ok(reuse)
}

/// Takes a stopped tree's connections out of repair mode, and has the kernel probe each peer, also of those that CRIU has
/// not come to: what the kernel could not send meanwhile it sends when it hears of the peer.
pub fn leave_repair(tree: &[i32], reuse: &Reuse) -> io::Result<()> {
    for_each_tcp(tree, |inode, socket| {
        if option(&socket, libc::IPPROTO_TCP, libc::TCP_REPAIR)? == 0 {
            return probe_peer(&socket);
        }
        let before = reuse.get(&inode).copied().unwrap_or(0);
        leave(&socket, before)
    })
}

/// Has the kernel probe each peer of a restored tree whose connections have left repair mode, so that none waits for its
/// timer. Peers that have closed may be gone, within the instance at least: their answer would be a reset.
pub fn probe(tree: &[i32]) -> io::Result<()> {
    for_each_tcp(tree, |_, socket| {
        let is_over = has(&socket, libc::POLLRDHUP) && unacknowledged(&socket) == Some(0);
        if is_over { Ok(()) } else { probe_peer(&socket) }
    })
}

/// How many bytes the peer has not acknowledged.
fn unacknowledged(socket: &OwnedFd) -> Option<libc::c_int> {
    let mut bytes = 0;
    // SAFETY: the kernel writes a number into `bytes`.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    (result == 0).then_some(bytes)
}

fn probe_peer(socket: &OwnedFd) -> io::Result<()> {
    let reuse = option(socket, libc::SOL_SOCKET, libc::SO_REUSEADDR)?;
    match leave(socket, reuse) {
        // Listeners cannot be in that mode, and have nothing to probe.
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => Ok(()),
        other => other,
    }
}

/// The kernel probes the peer of a connection that leaves repair mode, also if it was not in it, and resets
/// `SO_REUSEADDR`.
fn leave(socket: &OwnedFd, reuse: libc::c_int) -> io::Result<()> {
    set_option(socket, libc::IPPROTO_TCP, libc::TCP_REPAIR, 0)?;
    set_option(socket, libc::SOL_SOCKET, libc::SO_REUSEADDR, reuse)
}

/// Whether `poll` tells one of these of a socket.
pub fn has(socket: &OwnedFd, events: libc::c_short) -> bool {
    let mut poll = libc::pollfd { fd: socket.as_raw_fd(), events, revents: 0 };
    // SAFETY: one live pollfd is passed.
    unsafe { libc::poll(&raw mut poll, 1, 0) == 1 && poll.revents & events != 0 }
}

fn for_each_tcp(tree: &[i32], mut visit: impl FnMut(u64, OwnedFd) -> io::Result<()>) -> io::Result<()> {
    for &pid in tree {
        let Some(task) = TaskId::of(pid).ok().and_then(Task::open) else { continue };
        for number in task::numbers_in(&format!("/proc/{pid}/fd"))? {
            let Some(inode) = socket_inode(pid, number) else { continue };
            let Ok(socket) = task.descriptor(number) else { continue };
            if option(&socket, libc::SOL_SOCKET, libc::SO_PROTOCOL).is_ok_and(|p| p == libc::IPPROTO_TCP) {
                visit(inode, socket)?;
            }
        }
    }
    Ok(())
}

fn socket_inode(pid: i32, number: RawFd) -> Option<u64> {
    let target = fs::read_link(format!("/proc/{pid}/fd/{number}")).ok()?;
    target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

/// A socket option that is a number.
pub fn option(socket: &OwnedFd, level: libc::c_int, name: libc::c_int) -> io::Result<libc::c_int> {
    let mut value: libc::c_int = 0;
    let mut length = mem::size_of_val(&value) as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes into `value`.
    let result = unsafe {
        libc::getsockopt(socket.as_raw_fd(), level, name, (&raw mut value).cast(), &raw mut length)
    };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(value) }
}

/// Sets one.
pub fn set_option(
    socket: &OwnedFd,
    level: libc::c_int,
    name: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    let length = mem::size_of_val(&value) as libc::socklen_t;
    // SAFETY: `value` is live and as long as said.
    let result =
        unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const value).cast(), length) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
