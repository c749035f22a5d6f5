//! The TAP of a machine, joined with the instance's wired device.
//!
//! ```text
//! guest ── virtio-net ── QEMU ── vm0 ⇄ eth0 ── wiring
//! ```
//!
//! Each frame that comes in at one device leaves through the other: the kernel redirects it before any protocol sees it. So both devices
//! keep their offloads, no bridge learns or delays anything, and the kernel of the host never answers for the guest. Packets of the guest
//! to [`HOST`] stay: over them, its agent reaches the node. So do DHCP requests, and frames that do not come from the guest's own MAC.

use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::{AsRawFd, BorrowedFd};

use engine_api::wiring::DEVICE;
use engine_criu::shared::{index_of, netlink};
use fabric::netns;
use instance::Network;

/// The TAP's name in the instance's network namespace.
pub const TAP: &str = "vm0";

/// The host's MAC at the TAP: the same on all hosts, since guests remember it over moves.
pub const HOST_MAC: [u8; 6] = [0x02, 0x74, 0x72, 0xd4, 0xc5, 0x01];

/// The frames that the TAP queues for the guest: those that the overlay has kept during a move, 4096 at most, come at once.
const QUEUE: u32 = 5000;

/// The port of DHCP servers.
pub const DHCP_PORT: u16 = 67;

/// The user `nobody`, as whom QEMU runs.
const OWNER: libc::c_ulong = 65534;

/// The host's address at the TAP, for the agent in the machine. It is outside the networks of machines, and the same on all hosts.
pub const HOST: Ipv4Addr = Ipv4Addr::new(169, 254, 77, 1);

/// Makes the TAP in `namespace`, and joins it with [`DEVICE`] there. It exists as long as the namespace. The machine sends only from its
/// own MAC, and its DHCP requests are for the server at the TAP, so no server of the network answers them too.
pub fn join(namespace: BorrowedFd<'_>, network: &Network) -> io::Result<()> {
    let Network { mac, address, mtu, .. } = *network;
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
        netlink::keep_port(tap, DHCP_PORT)?;
        netlink::redirect(tap, wired, Some(mac))?;
        netlink::redirect(wired, tap, None)
    })?
}

/// A listener for the machine's agent in `namespace`.
pub fn listen(namespace: BorrowedFd<'_>) -> io::Result<TcpListener> {
    netns::enter(namespace, || TcpListener::bind((HOST, 0)))?
}

/// Makes a persistent TAP that [`OWNER`] may open. Frames have a header for offloads.
fn make_tap() -> io::Result<()> {
    let tap = open_tap(TAP)?;
    // SAFETY: no memory is passed.
    check(unsafe { libc::ioctl(tap.as_raw_fd(), libc::TUNSETOWNER, OWNER) })?;
    // SAFETY: no memory is passed.
    check(unsafe { libc::ioctl(tap.as_raw_fd(), libc::TUNSETPERSIST, 1) })
}

/// A request that concerns the device of this name.
fn request_for(name: &str) -> libc::ifreq {
    // SAFETY: all-zero is a valid ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from.cast_signed();
    }
    request
}

fn open_tap(name: &str) -> io::Result<File> {
    let clone = File::options().read(true).write(true).open("/dev/net/tun")?;
    let mut request = request_for(name);
    let flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
    request.ifr_ifru.ifru_flags = flags as libc::c_short;
    // SAFETY: `request` is live, and its name ends with NUL.
    check(unsafe { libc::ioctl(clone.as_raw_fd(), libc::TUNSETIFF, &raw mut request) })?;
    Ok(clone)
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::AsFd;
    use std::time::Duration;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    const NETWORK: Network =
        Network { mac: [2, 0, 0, 0, 0, 9], address: Ipv4Addr::new(10, 77, 0, 9), prefix: 16, mtu: 1400 };
    const PEER: [u8; 6] = [2, 0, 0, 0, 0, 8];
    const ALL: [u8; 6] = [0xff; 6];
    /// A `virtio_net_hdr` that asks for nothing.
    const NO_OFFLOAD: [u8; 10] = [0; 10];

    fn frame(to: [u8; 6], from: [u8; 6], rest: &[u8], length: usize) -> Vec<u8> {
        let mut frame = [&to[..], &from, rest].concat();
        frame.resize(length, 7);
        frame
    }

    fn send(tap: &mut File, frame: &[u8]) {
        assert_eq!(tap.write(&[&NO_OFFLOAD, frame].concat()).unwrap(), NO_OFFLOAD.len() + frame.len());
    }

    /// The next frame; `None` if none comes for a while.
    fn next(tap: &mut File) -> Option<Vec<u8>> {
        let patience = Timespec::try_from(Duration::from_millis(200)).unwrap();
        let mut readable = [PollFd::new(&*tap, PollFlags::IN)];
        (poll(&mut readable, Some(&patience)).unwrap() == 1).then(|| {
            let mut bytes = vec![0; 70_000];
            let length = tap.read(&mut bytes).unwrap();
            bytes[NO_OFFLOAD.len()..length].to_vec()
        })
    }

    /// The kernel sees a moment after a program has opened a TAP that it has a carrier, and drops frames until then.
    fn await_carrier(device: &str) -> io::Result<()> {
        let socket = std::net::UdpSocket::bind("0.0.0.0:0")?;
        for _ in 0..10_000 {
            let mut request = request_for(device);
            // SAFETY: `request` is live, and its name ends with NUL.
            check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFFLAGS, &raw mut request) })?;
            // SAFETY: the kernel has filled the flags.
            if libc::c_int::from(unsafe { request.ifr_ifru.ifru_flags }) & libc::IFF_RUNNING != 0 {
                // The kernel queues frames from the end of that step on, in which it holds the lock that this request takes.
                return netlink::set_queue(device, 1000);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Err(io::ErrorKind::TimedOut.into())
    }

    /// The guest's end of the TAP, and the other end of `eth0`.
    fn joined() -> (File, File, std::os::fd::OwnedFd) {
        let namespace = netns::create().expect("a network namespace: these tests run as root");
        let wired = netns::enter(namespace.as_fd(), || {
            let wired = open_tap(DEVICE)?;
            let _without_ipv6 = fs::write(format!("/proc/sys/net/ipv6/conf/{DEVICE}/disable_ipv6"), "1");
            netlink::configure(DEVICE, NETWORK.mac, NETWORK.mtu)?;
            io::Result::Ok(wired)
        });
        join(namespace.as_fd(), &NETWORK).unwrap();
        let guest = netns::enter(namespace.as_fd(), || {
            let guest = open_tap(TAP)?;
            [TAP, DEVICE].into_iter().try_for_each(await_carrier)?;
            io::Result::Ok(guest)
        });
        let guest = guest.unwrap().unwrap();
        (guest, wired.unwrap().unwrap(), namespace)
    }

    #[test]
    fn frames_of_all_kinds_cross_unchanged_in_both_directions() {
        const IPV6: [u8; 2] = [0x86, 0xdd];
        const TAGGED_IPV6: [u8; 6] = [0x81, 0, 0, 5, 0x86, 0xdd];
        const NEIGHBOURS: [u8; 6] = [0x33, 0x33, 0xff, 0, 0, 1];
        const GROUP: [u8; 6] = [1, 0, 0x5e, 0, 0, 0xfb];
        let (mut guest, mut wired, _namespace) = joined();
        for (to, kind, length) in [
            (PEER, &IPV6[..], 60),
            (NEIGHBOURS, &IPV6, 86),
            (GROUP, &[8, 0], 100),
            (PEER, &TAGGED_IPV6, 118),
            (ALL, &[8, 6], 60),
            (PEER, &IPV6, 1414),
            (PEER, &IPV6, 9014),
        ] {
            let sent = frame(to, NETWORK.mac, kind, length);
            send(&mut guest, &sent);
            assert_eq!(next(&mut wired).as_ref(), Some(&sent), "{kind:x?} of {length} bytes from the guest");
            let sent = frame(to, PEER, kind, length);
            send(&mut wired, &sent);
            assert_eq!(next(&mut guest).as_ref(), Some(&sent), "{kind:x?} of {length} bytes to the guest");
        }
    }

    #[test]
    fn neither_other_macs_nor_dhcp_requests_leave_the_machine() {
        let (mut guest, mut wired, _namespace) = joined();
        let [.., last] = NETWORK.mac;
        for source in [PEER, [2, 0, 0, 0, 1, last], [6, 0, 0, 0, 0, last]] {
            send(&mut guest, &frame(PEER, source, &[0x86, 0xdd], 60));
        }
        let request = etherparse::PacketBuilder::ethernet2(NETWORK.mac, ALL)
            .ipv4([0; 4], [0xff; 4], 64)
            .udp(68, DHCP_PORT);
        let mut bytes = Vec::new();
        request.write(&mut bytes, &[0; 300]).unwrap();
        send(&mut guest, &bytes);
        assert_eq!(next(&mut wired), None);
        let own = frame(PEER, NETWORK.mac, &[0x86, 0xdd], 60);
        send(&mut guest, &own);
        assert_eq!(next(&mut wired), Some(own));
    }
}
