//! Blockers among the sockets of a process.
//!
//! Sockets that the node gave the instance are no blockers: the drop-in library closes them on `Suspend`. These are the attachment
//! to the node, and links in the host's network: TCP connections, and the Unix sockets beside shared memory.

use std::fs;
use std::io;
use std::mem;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::findings::{Findings, named};
use crate::linux::sockets::{self, has};
use crate::linux::task::Task;

/// The ioctl that opens the network namespace of a socket.
const SIOCGSKNS: libc::c_ulong = 0x894c;
/// The `tcpi_state` of a listener.
const TCP_LISTEN: u8 = 10;
/// The protocols whose sockets CRIU dumps.
const CARRIED: [libc::c_int; 3] = [libc::IPPROTO_TCP, libc::IPPROTO_UDP, libc::IPPROTO_UDPLITE];

impl Findings<'_> {
    pub(super) fn socket(&mut self, pid: i32, task: &Task, number: i32) {
        let Ok(socket) = task.descriptor(number) else { return };
        let family = option(&socket, libc::SO_DOMAIN).unwrap_or(libc::AF_UNSPEC);
        match family {
            libc::AF_UNIX => self.unix(pid, number, &socket),
            libc::AF_INET | libc::AF_INET6 => self.internet(pid, &socket),
            libc::AF_NETLINK => self.netlink(pid, &socket),
            libc::AF_PACKET => {}
            other => {
                let what = format!("{} has a socket of address family {other} open", named(pid));
                self.block(what, "have it use TCP, UDP or Unix sockets");
            }
        }
    }

    fn netlink(&mut self, pid: i32, socket: &OwnedFd) {
        if has(socket, libc::POLLIN) {
            let what = format!("{} has unread messages in a netlink socket", named(pid));
            self.block(what, "move it after it has read them");
        }
    }

    fn internet(&mut self, pid: i32, socket: &OwnedFd) {
        if of_our_network(socket) {
            return;
        }
        let protocol = option(socket, libc::SO_PROTOCOL).unwrap_or(0);
        let is_raw = option(socket, libc::SO_TYPE).is_ok_and(|kind| kind == libc::SOCK_RAW);
        if !is_raw && !CARRIED.contains(&protocol) {
            let what = format!("{} has a socket of IP protocol {protocol} open", named(pid));
            self.block(what, "have it use plain TCP or UDP");
        }
        match own_address(socket) {
            Some(address) if !self.moves_along(address) => {
                let what = format!("{} has a socket bound to {address} open", named(pid));
                self.block(what, format!("have it use {}, which moves with it", self.network.address));
            }
            _ => {}
        }
        if protocol == libc::IPPROTO_TCP && has_connections_to_accept(socket) {
            let what = format!("{} has not accepted an incoming connection", named(pid));
            self.block(what, "move it after it has accepted the connection");
        }
        // CRIU reads only up to urgent data.
        if protocol == libc::IPPROTO_TCP && has(socket, libc::POLLPRI) {
            let what = format!("{} has unread urgent data on a connection", named(pid));
            self.block(what, "move it after it has read the data");
        }
        // CRIU carries the connection, but not its error: the peer would seem to have closed it regularly.
        if protocol == libc::IPPROTO_TCP && has(socket, libc::POLLERR) {
            let what = format!("{} has an unread error on a TCP connection (SO_ERROR)", named(pid));
            self.block(what, "have it read from the connection, or close it");
        }
        if protocol == libc::IPPROTO_UDP && is_corked(socket) {
            let what = format!("{} has a corked UDP socket open", named(pid));
            self.block(what, "have it send the collected data and clear UDP_CORK");
        }
    }

    fn moves_along(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        address.is_unspecified()
            || address.is_loopback()
            || address.is_multicast()
            || address == IpAddr::V4(self.network.address)
    }
}

/// Whether the socket is in the host's network namespace, where the node made it.
pub(super) fn of_our_network(socket: &OwnedFd) -> bool {
    // SAFETY: no memory is passed.
    let fd = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCGSKNS) };
    if fd == -1 {
        return false;
    }
    // SAFETY: the kernel has just made it for us.
    let theirs = unsafe { OwnedFd::from_raw_fd(fd) };
    let theirs = fs::read_link(format!("/proc/self/fd/{}", theirs.as_raw_fd()));
    theirs.is_ok_and(|theirs| fs::read_link("/proc/thread-self/ns/net").is_ok_and(|ours| ours == theirs))
}

/// Whether this is a listener with connections that the program has not accepted. CRIU cannot dump those.
fn has_connections_to_accept(socket: &OwnedFd) -> bool {
    // SAFETY: all-zero is a valid tcp_info.
    let mut info: libc::tcp_info = unsafe { mem::zeroed() };
    let mut length = mem::size_of_val(&info) as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes into `info`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &raw mut length,
        )
    };
    // For a listener, this field is the number of waiting connections: tcp_get_info().
    result == 0 && info.tcpi_state == TCP_LISTEN && info.tcpi_unacked > 0
}

fn is_corked(socket: &OwnedFd) -> bool {
    let cork = sockets::option(socket, libc::IPPROTO_UDP, libc::UDP_CORK);
    cork.is_ok_and(|cork| cork != 0)
}

fn own_address(socket: &OwnedFd) -> Option<IpAddr> {
    let (address, _) = name_of(socket, libc::getsockname).ok()?;
    match libc::c_int::from(address.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says that the kernel wrote a sockaddr_in.
            let v4 = unsafe { *(&raw const address).cast::<libc::sockaddr_in>() };
            Some(Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: the family says that the kernel wrote a sockaddr_in6.
            let v6 = unsafe { *(&raw const address).cast::<libc::sockaddr_in6>() };
            Some(Ipv6Addr::from(v6.sin6_addr.s6_addr).into())
        }
        _ => None,
    }
}

pub(super) type NameCall =
    unsafe extern "C" fn(libc::c_int, *mut libc::sockaddr, *mut libc::socklen_t) -> libc::c_int;

pub(super) fn name_of(socket: &OwnedFd, call: NameCall) -> io::Result<(libc::sockaddr_storage, usize)> {
    // SAFETY: all-zero is a valid sockaddr_storage.
    let mut address: libc::sockaddr_storage = unsafe { mem::zeroed() };
    let room = mem::size_of_val(&address);
    let mut length = room as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes into `address`.
    let result = unsafe { call(socket.as_raw_fd(), (&raw mut address).cast(), &raw mut length) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok((address, room.min(length as usize))) }
}

pub(super) fn option(socket: &OwnedFd, name: libc::c_int) -> io::Result<libc::c_int> {
    sockets::option(socket, libc::SOL_SOCKET, name)
}
