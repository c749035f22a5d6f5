//! The devices that the programs need beside the stations' devices.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::process::Command;

use rustix::net::{AddressFamily, SocketType, netdevice};

use crate::tap::{self, Tap};

/// The UDP port of all nodes for frames that the kernel carries: the device cannot send to others.
pub const PORT: u16 = 7789;

/// Their names. A process that has the second one has the first one, too.
pub const VXLAN: &str = "transhume-vxlan";
pub const PLANE: &str = "transhume-plane";

/// The longest frames in the VXLAN device: frames that are too long for the path do not reach it.
const MTU: &str = "65000";

/// Bytes of a frame beyond a device's MTU.
const ETHERNET_HEADER: u32 = 14;

/// Requests for the network namespace of a socket, or a TAP (`linux/sockios.h`, `linux/if_tun.h`).
const SIOCGSKNS: libc::Ioctl = 0x894c;
const TUNGETDEVNETNS: libc::Ioctl = 0x54e3;

/// See the module.
pub struct Devices {
    /// The devices between the programs and the plane.
    pub plane: Tap,
    /// In the network namespace of all of them.
    control: OwnedFd,
}

/// Their numbers.
pub struct Indexes {
    pub vxlan: u32,
    pub plane: u32,
}

/// A TAP as the programs see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TapPlace {
    pub index: u32,
    /// Bytes of a frame that may be sent to it.
    pub longest: u32,
}

impl Devices {
    /// Makes them, in the network namespace of the calling thread. Nothing comes by the VXLAN device before [`Self::open`].
    pub fn new(offloads: tap::Offloads) -> io::Result<Self> {
        // One that is alive has this device, and keeps the other one.
        let mut plane = Tap::new(PLANE).map_err(|error| io::Error::other(format!("{error}")))?;
        plane.set_offloads(offloads)?;
        // The devices of a killed process.
        let _ = ip(&["link", "del", VXLAN]);
        let port = PORT.to_string();
        let kind = ["type", "vxlan", "external", "nolearning", "dstport", &port];
        ip(&[&["link", "add", VXLAN, "mtu", MTU], &kind[..]].concat())?;
        let control = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None)?;
        let devices = Self { plane, control };
        // The host itself uses no addresses there. A host without IPv6 has no such file.
        let _ = fs::write(format!("/proc/sys/net/ipv6/conf/{VXLAN}/disable_ipv6"), "1");
        ip(&["link", "set", PLANE, "mtu", MTU, "up"])?;
        Ok(devices)
    }

    /// Takes in frames from now on, in the network namespace of the calling thread.
    pub fn open(&self) -> io::Result<()> {
        ip(&["link", "set", VXLAN, "up"])
    }

    pub fn indexes(&self) -> io::Result<Indexes> {
        let index = |name| Ok::<_, io::Error>(netdevice::name_to_index(&self.control, name)?);
        Ok(Indexes { vxlan: index(VXLAN)?, plane: index(PLANE)? })
    }

    pub fn has_vxlan(&self) -> bool {
        netdevice::name_to_index(&self.control, VXLAN).is_ok()
    }

    /// The name and namespace of `tap`; `None` if it is in another network namespace, or gone. Waits for threads that
    /// change the host's network.
    pub fn find(&self, tap: &Tap) -> Option<(String, TapPlace)> {
        let own = namespace(&self.control, SIOCGSKNS).ok()?;
        if namespace(tap, TUNGETDEVNETNS).ok()? != own {
            return None;
        }
        let name = tap.name().ok()?;
        let index = netdevice::name_to_index(&self.control, &name).ok()?;
        let longest = self.mtu(&name).ok()?.saturating_add(ETHERNET_HEADER);
        Some((name, TapPlace { index, longest }))
    }

    fn mtu(&self, name: &str) -> io::Result<u32> {
        let mut request = tap::named(name).ok_or(io::ErrorKind::InvalidInput)?;
        // SAFETY: the request is live, and as long as the call writes.
        tap::check(unsafe { libc::ioctl(self.control.as_raw_fd(), libc::SIOCGIFMTU, &raw mut request) })?;
        // SAFETY: the call has written this one.
        Ok(unsafe { request.ifr_ifru.ifru_mtu }.cast_unsigned())
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
    // SAFETY: the call has just returned the descriptor, so this is its only owner.
    Ok(unsafe { File::from_raw_fd(namespace) })
}

/// Calls `inside` in the network namespace of `socket`, since the dropping thread may be in another one.
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
