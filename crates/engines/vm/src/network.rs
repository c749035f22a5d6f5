//! The TAP of a machine, joined with the instance's wired device.
//!
//! ```text
//! guest ── virtio-net ── QEMU ── vm0 ⇄ eth0 ── wiring
//! ```
//!
//! Each frame that comes in at one device leaves through the other: the kernel redirects it before any protocol sees it. So both devices
//! keep their offloads, no bridge learns or delays anything, and the kernel of the host never answers for the guest. Only packets of the
//! guest to [`HOST`] stay: over them, its agent reaches the node.

use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::{AsRawFd, BorrowedFd};

use engine_api::wiring::DEVICE;
use engine_criu::shared::{index_of, netlink};
use fabric::netns;

/// The TAP's name in the instance's network namespace.
pub const TAP: &str = "vm0";

/// The host's MAC at the TAP: the same on all hosts, since guests remember it over moves.
pub const HOST_MAC: [u8; 6] = [0x02, 0x74, 0x72, 0xd4, 0xc5, 0x01];

/// The frames that the TAP queues for the guest: those that the overlay has kept during a move, 4096 at most, come at once.
const QUEUE: u32 = 5000;

/// The user `nobody`, as whom QEMU runs.
const OWNER: libc::c_ulong = 65534;

/// The host's address at the TAP, for the agent in the machine. It is outside the networks of machines, and the same on all hosts.
pub const HOST: Ipv4Addr = Ipv4Addr::new(169, 254, 77, 1);

/// Makes the TAP in `namespace`, and joins it with [`DEVICE`] there. It exists as long as the namespace. The machine has `address`.
pub fn join(namespace: BorrowedFd<'_>, address: Ipv4Addr, mtu: u32) -> io::Result<()> {
    netns::enter(namespace, || {
        make_tap()?;
        let _without_ipv6 = fs::write(format!("/proc/sys/net/ipv6/conf/{TAP}/disable_ipv6"), "1");
        netlink::configure(TAP, HOST_MAC, mtu)?;
        netlink::set_queue(TAP, QUEUE)?;
        let (tap, wired) = (index_of(TAP)?, index_of(DEVICE)?);
        for device in [tap, wired] {
            netlink::filter_incoming(device)?;
        }
        netlink::add_peer(tap, HOST, address)?;
        netlink::keep(tap, HOST)?;
        netlink::redirect(tap, wired)?;
        netlink::redirect(wired, tap)
    })?
}

/// A listener for the machine's agent in `namespace`.
pub fn listen(namespace: BorrowedFd<'_>) -> io::Result<TcpListener> {
    netns::enter(namespace, || TcpListener::bind((HOST, 0)))?
}

/// Makes a persistent TAP that [`OWNER`] may open. Frames have a header for offloads.
fn make_tap() -> io::Result<()> {
    let clone = File::options().read(true).write(true).open("/dev/net/tun")?;
    // SAFETY: all-zero is a valid ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(TAP.bytes()) {
        *to = from.cast_signed();
    }
    let flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
    request.ifr_ifru.ifru_flags = flags as libc::c_short;
    // SAFETY: `request` is live, and its name ends with NUL.
    check(unsafe { libc::ioctl(clone.as_raw_fd(), libc::TUNSETIFF, &raw mut request) })?;
    // SAFETY: no memory is passed.
    check(unsafe { libc::ioctl(clone.as_raw_fd(), libc::TUNSETOWNER, OWNER) })?;
    // SAFETY: no memory is passed.
    check(unsafe { libc::ioctl(clone.as_raw_fd(), libc::TUNSETPERSIST, 1) })
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
