//! TCP sockets of a dumped tree that resumes after a rollback.
//!
//! CRIU leaves the connections of a stopped tree in repair mode, in which the kernel sends nothing for them. This is right for a
//! tree that is killed next. Before a tree resumes, its connections must leave that mode.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use crate::linux::sockets::{has, option, set_option};
use crate::linux::task::{self, Task, TaskId};

/// `SO_REUSEADDR` of each TCP socket by inode: leaving repair mode resets it.
pub type Reuse = HashMap<u64, libc::c_int>;

/// Reads the socket options of a running tree that a rollback must set again.
pub fn remember(tree: &[i32]) -> io::Result<Reuse> {
    let mut reuse = Reuse::new();
    for_each_tcp(tree, |inode, socket| {
        reuse.insert(inode, option(&socket, libc::SOL_SOCKET, libc::SO_REUSEADDR).unwrap_or(0));
        Ok(())
    })?;
    Ok(reuse)
}

/// Takes a stopped tree's connections out of repair mode, and lets the kernel probe each peer. It does so for connections that CRIU
/// has not reached, too: an answer of the peer makes the kernel send its held data.
pub fn leave_repair(tree: &[i32], reuse: &Reuse) -> io::Result<()> {
    for_each_tcp(tree, |inode, socket| {
        if option(&socket, libc::IPPROTO_TCP, libc::TCP_REPAIR)? == 0 {
            return probe_peer(&socket);
        }
        let before = reuse.get(&inode).copied().unwrap_or(0);
        leave(&socket, before)
    })
}

/// Lets the kernel probe each peer of a restored tree whose connections have left repair mode, so that no connection waits for its
/// timer. A peer that has closed may be gone, at least within the instance, and would answer with a reset: it is not probed.
pub fn probe(tree: &[i32]) -> io::Result<()> {
    for_each_tcp(tree, |_, socket| {
        let is_over = has(&socket, libc::POLLRDHUP) && unacknowledged(&socket) == Some(0);
        if is_over { Ok(()) } else { probe_peer(&socket) }
    })
}

/// The number of bytes that the peer has not acknowledged.
fn unacknowledged(socket: &OwnedFd) -> Option<libc::c_int> {
    let mut bytes = 0;
    // SAFETY: the kernel writes a number into `bytes`.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    (result == 0).then_some(bytes)
}

fn probe_peer(socket: &OwnedFd) -> io::Result<()> {
    let reuse = option(socket, libc::SOL_SOCKET, libc::SO_REUSEADDR)?;
    match leave(socket, reuse) {
        // Listeners cannot be in repair mode, and have no peer.
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => Ok(()),
        other => other,
    }
}

/// Takes a connection out of repair mode. The kernel then probes its peer, even if it was not in that mode, and resets
/// `SO_REUSEADDR`.
fn leave(socket: &OwnedFd, reuse: libc::c_int) -> io::Result<()> {
    set_option(socket, libc::IPPROTO_TCP, libc::TCP_REPAIR, 0)?;
    set_option(socket, libc::SOL_SOCKET, libc::SO_REUSEADDR, reuse)
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
