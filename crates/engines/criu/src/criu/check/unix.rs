//! Blockers among the Unix sockets of a process.

use std::ffi::OsStr;
use std::fs;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::linux::fs::MetadataExt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use fabric::attach::SOCKET_NAME;

use super::descriptors::info_of;
use super::findings::{Findings, is_same, named};
use super::sockets::{NameCall, name_of, of_our_network, option};
use crate::linux::sockets::has;
use crate::linux::task::Stat;

/// The ioctl that opens the file to which a socket is bound.
const SIOCUNIXFILE: libc::c_ulong = 0x89e0;

impl Findings<'_> {
    pub(super) fn unix(&mut self, pid: i32, number: i32, socket: &OwnedFd) {
        if of_our_network(socket) {
            return;
        }
        if peer_name(socket).is_some_and(|name| name.strip_prefix(b"\0") == Some(SOCKET_NAME)) {
            return self.user_of_the_node(pid);
        }
        self.unread(pid, number, socket);
        if option(socket, libc::SO_ACCEPTCONN).is_ok_and(|listens| listens != 0) && has(socket, libc::POLLIN)
        {
            // CRIU carries such a connection if it is open and nothing was sent over it yet.
            let what = format!("{} has not accepted a connection over a Unix socket", named(pid));
            self.block(what, "move it after it has accepted the connection");
        }
        if !self.is_stopped && has_another_name(pid, socket) {
            let what = format!("{} has a Unix socket whose file was renamed after it was bound", named(pid));
            self.block(what, "have it bind the socket by the name that its clients use");
        }
        let Some(peer) = peer_pid(socket).filter(|peer| *peer > 0) else { return };
        // The creator of a pair may have ended; CRIU then reports the other process.
        let outside = !self.members.contains(&peer) && fs::metadata(format!("/proc/{peer}")).is_ok();
        if outside {
            let what = format!(
                "{} is connected to {} outside the instance through a Unix socket",
                named(pid),
                named(peer)
            );
            self.block(what, "run both in one instance, or have it close the connection");
        }
    }

    /// CRIU dumps the unread bytes of a socket, and loses or refuses ancillary data: descriptors and credentials.
    fn unread(&mut self, pid: i32, number: i32, socket: &OwnedFd) {
        let (what, remedy) = if has_descriptors(&info_of(pid, number)) {
            (
                "has not received descriptors that were sent to it over a Unix socket",
                "move it after it has received them",
            )
        } else if option(socket, libc::SO_PASSCRED).is_ok_and(|asks| asks != 0) && has_bytes(socket) {
            (
                "has unread data with credentials in a Unix socket (SO_PASSCRED)",
                "move it after it has read the data",
            )
        } else {
            return;
        };
        self.block(format!("{} {what}", named(pid)), remedy);
    }

    /// A process with an attachment to the node must be able to handle `Suspend`, so it must not be stopped.
    fn user_of_the_node(&mut self, pid: i32) {
        if Stat::read(pid).is_ok_and(|stat| stat.state == 'T') {
            let what = format!("{} is stopped, so that it cannot suspend its RDMA connections", named(pid));
            self.block(what, "continue it with `kill -CONT`, or end it");
        }
    }
}

/// Whether descriptors wait in a socket, by its `fdinfo`: `scm_fds: 3`.
fn has_descriptors(info: &str) -> bool {
    let count = info.lines().find_map(|line| line.strip_prefix("scm_fds:"));
    count.is_some_and(|count| count.trim() != "0")
}

fn has_bytes(socket: &OwnedFd) -> bool {
    let mut count: libc::c_int = 0;
    // SAFETY: the kernel writes a number into `count`.
    unsafe { libc::ioctl(socket.as_raw_fd(), libc::FIONREAD, &raw mut count) == 0 && count > 0 }
}

/// Whether the file to which the socket is bound still exists, but under another name.
fn has_another_name(pid: i32, socket: &OwnedFd) -> bool {
    let bound = name(socket, libc::getsockname).unwrap_or_default();
    let bound = Path::new(OsStr::from_bytes(&bound));
    // SAFETY: no memory is passed.
    let file = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCUNIXFILE) };
    if file == -1 || !bound.is_absolute() {
        return false;
    }
    // SAFETY: the kernel has just made it for us.
    let file = unsafe { OwnedFd::from_raw_fd(file) };
    let Ok(file) = fs::metadata(format!("/proc/self/fd/{}", file.as_raw_fd())) else { return false };
    let by_name = fs::symlink_metadata(format!("/proc/{pid}/root{}", bound.display()));
    file.st_nlink() > 0 && !by_name.is_ok_and(|found| is_same(&found, &file))
}

/// The bytes of the peer's name after the family, without a closing NUL.
fn peer_name(socket: &OwnedFd) -> Option<Vec<u8>> {
    name(socket, libc::getpeername)
}

fn name(socket: &OwnedFd, call: NameCall) -> Option<Vec<u8>> {
    let (address, length) = name_of(socket, call).ok()?;
    let from = mem::offset_of!(libc::sockaddr_un, sun_path);
    // SAFETY: the kernel wrote `length` bytes, and sockaddr_storage holds any bytes.
    let bytes = unsafe { std::slice::from_raw_parts((&raw const address).cast::<u8>(), length) };
    let bytes = bytes.get(from..)?;
    // A path ends with NUL; an abstract name begins with NUL.
    let path = bytes.strip_suffix(b"\0").filter(|_| !bytes.starts_with(b"\0"));
    Some(path.unwrap_or(bytes).to_vec())
}

fn peer_pid(socket: &OwnedFd) -> Option<i32> {
    fabric::seqpacket::peer_credentials(socket.as_fd()).ok().map(|peer| peer.pid)
}
