//! Options of Internet and Unix sockets that CRIU does not restore, or restores wrongly.
//!
//! They travel in a file beside CRIU's images, and are set once CRIU has made the sockets. An option that already has its value is
//! left alone: many cannot be set in every state of a socket.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::criu::fixups::fixup::{Fixup, StoppedTree};
use crate::linux::sockets::{option, set_option};
use crate::linux::task::{self, Task, TaskId};

/// The name of the fixup's image file, which CRIU ignores.
const FILE: &str = "socket-options.img";

/// Options that the libc crate lacks.
const SO_TIMESTAMP_NEW: libc::c_int = 63;
const SO_TIMESTAMPNS_NEW: libc::c_int = 64;
const SO_TXREHASH: libc::c_int = 74;
const SO_RCVMARK: libc::c_int = 75;
const SO_PASSPIDFD: libc::c_int = 76;
const SO_RCVPRIORITY: libc::c_int = 82;
const SO_PASSRIGHTS: libc::c_int = 83;
const IP_RECVERR_RFC4884: libc::c_int = 26;
const TCP_TX_DELAY: libc::c_int = 37;

/// Level and name of numeric options that can be set in every state of a socket, or that do not change.
const NUMBERS: [(libc::c_int, libc::c_int); 52] = [
    (libc::SOL_SOCKET, libc::SO_REUSEPORT),
    (libc::SOL_SOCKET, libc::SO_BUSY_POLL),
    (libc::SOL_SOCKET, libc::SO_PREFER_BUSY_POLL),
    (libc::SOL_SOCKET, libc::SO_RXQ_OVFL),
    (libc::SOL_SOCKET, libc::SO_ZEROCOPY),
    (libc::SOL_SOCKET, libc::SO_DEBUG),
    (libc::SOL_SOCKET, libc::SO_WIFI_STATUS),
    (libc::SOL_SOCKET, libc::SO_NOFCS),
    (libc::SOL_SOCKET, libc::SO_SELECT_ERR_QUEUE),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMP),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMPNS),
    (libc::SOL_SOCKET, SO_TIMESTAMP_NEW),
    (libc::SOL_SOCKET, SO_TIMESTAMPNS_NEW),
    (libc::SOL_SOCKET, SO_TXREHASH),
    (libc::SOL_SOCKET, SO_RCVMARK),
    (libc::SOL_SOCKET, SO_RCVPRIORITY),
    (libc::SOL_SOCKET, SO_PASSPIDFD),
    (libc::SOL_SOCKET, SO_PASSRIGHTS),
    (libc::IPPROTO_TCP, libc::TCP_THIN_LINEAR_TIMEOUTS),
    (libc::IPPROTO_TCP, libc::TCP_SAVE_SYN),
    (libc::IPPROTO_TCP, TCP_TX_DELAY),
    (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT),
    (libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT),
    (libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT),
    (libc::IPPROTO_TCP, libc::TCP_FASTOPEN),
    (libc::IPPROTO_TCP, libc::TCP_SYNCNT),
    (libc::IPPROTO_TCP, libc::TCP_LINGER2),
    (libc::IPPROTO_IP, libc::IP_TTL),
    (libc::IPPROTO_IP, libc::IP_TOS),
    (libc::IPPROTO_IP, libc::IP_MINTTL),
    (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER),
    (libc::IPPROTO_IP, libc::IP_RECVERR),
    (libc::IPPROTO_IP, libc::IP_RECVTTL),
    (libc::IPPROTO_IP, libc::IP_RECVTOS),
    (libc::IPPROTO_IP, libc::IP_RECVOPTS),
    (libc::IPPROTO_IP, libc::IP_RETOPTS),
    (libc::IPPROTO_IP, libc::IP_PASSSEC),
    (libc::IPPROTO_IP, libc::IP_CHECKSUM),
    (libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT),
    (libc::IPPROTO_IP, libc::IP_RECVFRAGSIZE),
    (libc::IPPROTO_IP, libc::IP_RECVORIGDSTADDR),
    (libc::IPPROTO_IP, libc::IP_MULTICAST_ALL),
    (libc::IPPROTO_IP, libc::IP_MULTICAST_LOOP),
    (libc::IPPROTO_IP, IP_RECVERR_RFC4884),
    (libc::IPPROTO_IPV6, libc::IPV6_TCLASS),
    (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS),
    (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVERR),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO),
    (libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_LOOP),
];

/// Numeric options of datagram sockets only.
const NUMBERS_OF_DATAGRAMS: [(libc::c_int, libc::c_int); 4] = [
    (libc::IPPROTO_UDP, libc::UDP_SEGMENT),
    (libc::IPPROTO_UDP, libc::UDP_GRO),
    (libc::IPPROTO_IP, libc::IP_MULTICAST_TTL),
    (libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_HOPS),
];

/// The address families with these options.
const FAMILIES: [libc::c_int; 3] = [libc::AF_INET, libc::AF_INET6, libc::AF_UNIX];

/// The length limit of a congestion control's name, with its final NUL (`TCP_CA_NAME_MAX`).
const NAME_MAX: usize = 16;

/// The options of one socket.
#[derive(Debug, Serialize, Deserialize)]
struct Kept {
    /// Its process, by the PID in the instance.
    process: i32,
    descriptor: RawFd,
    /// The values of [`numbers_of`] the socket; none for an option that it does not have.
    numbers: Vec<Option<libc::c_int>>,
    /// `TCP_CONGESTION`.
    congestion: Option<String>,
}

/// The fixup of socket options.
pub struct SocketOptions;

impl Fixup for SocketOptions {
    fn name(&self) -> &'static str {
        "socket options"
    }

    fn lacks(&self) -> &'static str {
        "CRIU carries only some of them"
    }

    fn save(&mut self, stopped: &StoppedTree<'_>) -> io::Result<()> {
        note(stopped.images, stopped.tree)
    }

    fn apply(&self, held: &StoppedTree<'_>) -> io::Result<()> {
        set(held.images, held.tree)
    }
}

/// Records the options of a stopped tree's sockets among its images.
fn note(images: &Path, tree: &[i32]) -> io::Result<()> {
    let mut kept = Vec::new();
    for_each_socket(tree, |process, descriptor, socket| {
        let number = |&(level, name): &_| option(socket, level, name).ok();
        let numbers = numbers_of(socket).map(number).collect();
        kept.push(Kept { process, descriptor, numbers, congestion: congestion(socket) });
        Ok(())
    })?;
    fs::write(images.join(FILE), serde_json::to_vec(&kept)?)
}

/// Sets the recorded options of a restored tree's sockets.
///
/// # Errors
/// If an option cannot be set, with its name.
fn set(images: &Path, tree: &[i32]) -> io::Result<()> {
    let all: Vec<Kept> = serde_json::from_slice(&fs::read(images.join(FILE))?)?;
    let all: HashMap<_, _> = all.into_iter().map(|kept| ((kept.process, kept.descriptor), kept)).collect();
    for_each_socket(tree, |process, descriptor, socket| {
        all.get(&(process, descriptor)).map_or(Ok(()), |kept| kept.give(socket))
    })
}

impl Kept {
    fn give(&self, socket: &OwnedFd) -> io::Result<()> {
        for (&(level, name), value) in numbers_of(socket).zip(&self.numbers) {
            let Some(value) = *value else { continue };
            if option(socket, level, name).is_ok_and(|present| present != value) {
                set_option(socket, level, name, value)
                    .map_err(|error| self.not_set(&format!("{name} of level {level}"), &error))?;
            }
        }
        match &self.congestion {
            Some(name) if congestion(socket).as_ref() != Some(name) => set_congestion(socket, name)
                .map_err(|error| self.not_set(&format!("TCP_CONGESTION (`{name}`)"), &error)),
            _ => Ok(()),
        }
    }

    fn not_set(&self, option: &str, error: &io::Error) -> io::Error {
        let Self { process, descriptor, .. } = self;
        let what = format!("cannot set option {option} of socket {descriptor} of process {process}: {error}");
        io::Error::new(error.kind(), what)
    }
}

fn numbers_of(socket: &OwnedFd) -> impl Iterator<Item = &'static (libc::c_int, libc::c_int)> {
    let kind = option(socket, libc::SOL_SOCKET, libc::SO_TYPE);
    let more = kind.is_ok_and(|kind| kind == libc::SOCK_DGRAM).then_some(NUMBERS_OF_DATAGRAMS.iter());
    NUMBERS.iter().chain(more.into_iter().flatten())
}

/// Visits each Internet or Unix socket of a tree, with its process's PID in the instance and its descriptor.
fn for_each_socket(
    tree: &[i32],
    mut show: impl FnMut(i32, RawFd, &OwnedFd) -> io::Result<()>,
) -> io::Result<()> {
    for &pid in tree {
        let Some(task) = TaskId::of(pid).ok().and_then(Task::open) else { continue };
        let process = task::number_inside(pid)?;
        for descriptor in task::numbers_in(&format!("/proc/{pid}/fd"))? {
            let Ok(file) = task.descriptor(descriptor) else { continue };
            let family = option(&file, libc::SOL_SOCKET, libc::SO_DOMAIN);
            if family.is_ok_and(|family| FAMILIES.contains(&family)) {
                show(process, descriptor, &file)?;
            }
        }
    }
    Ok(())
}

fn congestion(socket: &OwnedFd) -> Option<String> {
    let mut name = [0_u8; NAME_MAX];
    let mut length = mem::size_of_val(&name) as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes into `name`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_CONGESTION,
            name.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    let end = name.iter().position(|byte| *byte == 0)?;
    (result == 0).then(|| String::from_utf8_lossy(&name[..end]).into_owned())
}

fn set_congestion(socket: &OwnedFd, name: &str) -> io::Result<()> {
    // SAFETY: the name is live and as long as said.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_CONGESTION,
            name.as_ptr().cast(),
            name.len() as libc::socklen_t,
        )
    };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
