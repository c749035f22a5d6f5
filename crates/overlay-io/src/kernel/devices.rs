//! The devices that the programs need beside those of stations.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::process::Command;

use rustix::net::{AddressFamily, SocketType, netdevice};

use crate::tap::{self, Tap};

/// The UDP port of all nodes for frames that the kernel carries: the device cannot send to others.
pub const PORT: u16 = 7789;

/// What they are called. Where somebody has the second one, it has the first one, too.
pub const VXLAN: &str = "transhume-vxlan";
pub const PLANE: &str = "transhume-plane";

/// How long frames may be in the VXLAN device: what is too long for the path is not given to it.
const MTU: &str = "65000";

/// Asks whose network namespace a socket, or a TAP, is in (`linux/sockios.h`, `linux/if_tun.h`).
const SIOCGSKNS: libc::Ioctl = 0x894c;
const TUNGETDEVNETNS: libc::Ioctl = 0x54e3;

/// See the module.
pub struct Devices {
    /// What the programs and the plane hand to each other.
    pub plane: Tap,
    /// In the network namespace of all of them.
    control: OwnedFd,
}

/// Their numbers.
pub struct Indexes {
    pub vxlan: u32,
    pub plane: u32,
}

impl Devices {
    /// Makes them, in the network namespace of the calling thread.
    pub fn new(offloads: tap::Offloads) -> io::Result<Self> {
        // One that is alive has this device, and keeps the other one.
        let mut plane = Tap::new(PLANE).map_err(|error| io::Error::other(format!("{error}")))?;
        plane.set_offloads(offloads)?;
        // What one has left that was killed.
        let _ = ip(&["link", "del", VXLAN]);
        let port = PORT.to_string();
        let kind = ["type", "vxlan", "external", "nolearning", "dstport", &port];
        ip(&[&["link", "add", VXLAN, "mtu", MTU], &kind[..]].concat())?;
        let control = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None)?;
        let devices = Self { plane, control };
        ip(&["link", "set", PLANE, "mtu", MTU, "up"])?;
        ip(&["link", "set", VXLAN, "up"])?;
        Ok(devices)
    }

    pub fn indexes(&self) -> io::Result<Indexes> {
        let index = |name| Ok::<_, io::Error>(netdevice::name_to_index(&self.control, name)?);
        Ok(Indexes { vxlan: index(VXLAN)?, plane: index(PLANE)? })
    }

    /// What `tap` is called, and its number; `None` if it is in another network namespace by now, or gone.
    pub fn find(&self, tap: &Tap) -> Option<(String, u32)> {
        let own = namespace(&self.control, SIOCGSKNS).ok()?;
        if namespace(tap, TUNGETDEVNETNS).ok()? != own {
            return None;
        }
        let name = tap.name().ok()?;
        let index = netdevice::name_to_index(&self.control, &name).ok()?;
        Some((name, index))
    }
}

impl Drop for Devices {
    fn drop(&mut self) {
        // The namespace may be gone with it.
        let _ = within(&self.control, || ip(&["link", "del", VXLAN]));
    }
}

/// The number of the network namespace in which `of` is.
fn namespace(of: impl std::os::fd::AsFd, question: libc::Ioctl) -> io::Result<u64> {
    Ok(open_namespace(of.as_fd(), question)?.metadata()?.ino())
}

fn open_namespace(of: BorrowedFd<'_>, question: libc::Ioctl) -> io::Result<File> {
    // SAFETY: the call takes no argument.
    let namespace = unsafe { libc::ioctl(of.as_raw_fd(), question, 0) };
    tap::check(namespace)?;
    // SAFETY: the descriptor is new, and nobody else's.
    Ok(unsafe { File::from_raw_fd(namespace) })
}

/// Calls `inside` in the network namespace of `socket`: whoever drops something may be in another one.
fn within<T: Send>(socket: &OwnedFd, inside: impl FnOnce() -> T + Send) -> io::Result<T> {
    use std::os::fd::AsFd;
    let namespace = open_namespace(socket.as_fd(), SIOCGSKNS)?;
    fabric::netns::enter(namespace.as_fd(), inside)
}

/// Runs `ip`.
fn ip(arguments: &[&str]) -> io::Result<()> {
    let said = |what: &str| io::Error::other(format!("ip {}: {}", arguments.join(" "), what.trim()));
    let called = Command::new("ip").args(arguments).output().map_err(|error| said(&error.to_string()))?;
    if called.status.success() { Ok(()) } else { Err(said(&String::from_utf8_lossy(&called.stderr))) }
}
