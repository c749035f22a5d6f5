//! An instance's link: a veth pair from `eth0` in its namespace to a port of the host's bridge.
//!
//! "Cut" is the host's end off the bridge: nothing reaches the instance's kernel, so it acknowledges nothing for
//! sockets that are on their way and answers for no address that is elsewhere still, and nothing leaves it. Unlike a
//! link that is down, it leaves `eth0` with its carrier and its routes. A port that is only disabled would not do: the
//! bridge enables it at any event of its carrier, which the kernel may tell up to a second late.

use std::ffi::CString;
use std::fs;
use std::io;
use std::mem;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use fabric::netns;

use super::netlink;
use crate::instance::Network;

const INSIDE: &str = "eth0";
/// Of `lo`, in each namespace.
const LOOPBACK_INDEX: u32 = 1;

/// How long the kernel may take to see the carrier of a new link.
const CARRIER: Duration = Duration::from_secs(1);

/// The MAC of the host's end. A bridge without a MAC of its own takes its ports' lowest one: never this.
fn host_mac(network: &Network) -> [u8; 6] {
    let [_, rest @ ..] = network.mac;
    let mut mac = [0xfe; 6];
    mac[1..].copy_from_slice(&rest);
    mac
}

/// The name of the host's end.
fn host_end(network: &Network) -> String {
    let [_, _, a, b, c, d] = network.mac;
    format!("th{a:02x}{b:02x}{c:02x}{d:02x}")
}

/// A link that exists.
pub struct Link {
    network: Network,
    /// The host's bridge.
    bridge: String,
    /// A packet socket in the instance's namespace.
    announcer: OwnedFd,
    /// A netlink socket there.
    routing: OwnedFd,
    /// `eth0`'s index there.
    inside: u32,
}

impl Link {
    /// Makes the link, cut. Takes the place of a crash's leftover.
    pub fn create(namespace: BorrowedFd<'_>, network: &Network, bridge: &str) -> io::Result<Self> {
        let near = host_end(network);
        netlink::delete_link(&near)?;
        index_of(bridge)?;
        let Network { mac, mtu, .. } = *network;
        let near_mac = host_mac(network);
        netlink::add_veth(&netlink::Veth { near: &near, near_mac, far: INSIDE, namespace, mac, mtu })?;
        without_answers(&near);
        netlink::set_up(&near)?;
        netns::enter(namespace, || {
            without_ipv6();
            without_multipath();
            netlink::set_up("lo")?;
            netlink::set_up(INSIDE)?;
            let link = Self::here(network, bridge)?;
            link.wait_for_carrier()?;
            netlink::add_address(link.inside, network.address, network.prefix)?;
            Ok(link)
        })?
    }

    /// The link of an instance that is here already.
    pub fn find(namespace: BorrowedFd<'_>, network: &Network, bridge: &str) -> io::Result<Self> {
        netns::enter(namespace, || Self::here(network, bridge))?
    }

    fn here(network: &Network, bridge: &str) -> io::Result<Self> {
        let (announcer, routing, inside) = (packet_socket()?, netlink::socket()?, index_of(INSIDE)?);
        Ok(Self { network: *network, bridge: bridge.to_owned(), announcer, routing, inside })
    }

    /// Deletes the link; no error if it is not there.
    pub fn delete(&self) -> io::Result<()> {
        netlink::delete_link(&host_end(&self.network))
    }

    /// Cuts the link, and has the kernel hold back what connections inside send. Only for stopped processes: others would
    /// be told so.
    pub fn cut(&self) -> io::Result<()> {
        netlink::set_bridge(&host_end(&self.network), None)?;
        self.hold_back()
    }

    /// Has the kernel send nothing inside either while the ends of connections are dumped or
    /// restored one after the other: what reached an end that is dumped already must not be acknowledged to
    /// one that is not, which would forget it, and what one that is restored sends would be refused by one that is not.
    pub fn hold_back(&self) -> io::Result<()> {
        self.links().try_for_each(|index| netlink::refuse(self.routing.as_fd(), index))
    }

    /// Has the kernel send again inside.
    pub fn let_through(&self) -> io::Result<()> {
        self.links().try_for_each(|index| netlink::accept(self.routing.as_fd(), index))
    }

    fn links(&self) -> impl Iterator<Item = u32> {
        [LOOPBACK_INDEX, self.inside].into_iter()
    }

    /// Mends the link and tells the neighbours where the address is now.
    pub fn mend(&self) -> io::Result<()> {
        self.let_through()?;
        let near = host_end(&self.network);
        netlink::set_bridge(&near, Some(index_of(&self.bridge)?))?;
        forward(index_of(&near)?)?;
        self.forget_neighbours()?;
        self.announce()
    }

    /// Neighbours that were asked for while the link was cut would be asked for again after a second only.
    /// The kernel forgets them when the need for that changes.
    fn forget_neighbours(&self) -> io::Result<()> {
        let flags = flags_of(self.announcer.as_fd())?;
        set_flags(self.announcer.as_fd(), flags | libc::IFF_NOARP)?;
        set_flags(self.announcer.as_fd(), flags & !libc::IFF_NOARP)
    }

    /// Before the carrier is seen, the kernel drops what is sent.
    fn wait_for_carrier(&self) -> io::Result<()> {
        let end = Instant::now() + CARRIER;
        while flags_of(self.announcer.as_fd())? & libc::IFF_RUNNING == 0 {
            if Instant::now() > end {
                return Err(io::ErrorKind::TimedOut.into());
            }
            thread::sleep(Duration::from_micros(100));
        }
        Ok(())
    }

    /// A gratuitous ARP request: bridges learn the port, neighbours keep their entry.
    fn announce(&self) -> io::Result<()> {
        let frame = arp_announcement(self.network.mac, self.network.address);
        // SAFETY: all-zero is a valid sockaddr_ll.
        let mut to: libc::sockaddr_ll = unsafe { mem::zeroed() };
        to.sll_family = libc::AF_PACKET as u16;
        to.sll_ifindex = self.inside.cast_signed();
        to.sll_halen = 6;
        to.sll_addr[..6].fill(0xff);
        // SAFETY: `frame` and `to` are live and as long as said.
        let sent = unsafe {
            libc::sendto(
                self.announcer.as_raw_fd(),
                frame.as_ptr().cast(),
                frame.len(),
                0,
                (&raw const to).cast(),
                mem::size_of_val(&to) as libc::socklen_t,
            )
        };
        if sent == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// The host must not take part where the bridge does not: off it, the kernel would answer ARP requests of the instance's
/// for the host's own addresses. Where that cannot be set the host's answers go astray.
fn without_answers(near: &str) {
    let _read_only = fs::write(format!("/proc/sys/net/ipv4/conf/{near}/arp_ignore"), "8");
}

/// Waits until the bridge's port `index` forwards: the bridge enables it when it sees its carrier.
fn forward(index: u32) -> io::Result<()> {
    let end = Instant::now() + CARRIER;
    loop {
        match netlink::set_forwarding(index) {
            Err(error) if error.raw_os_error() == Some(libc::ENETDOWN) && Instant::now() < end => {
                thread::sleep(Duration::from_micros(100));
            }
            other => return other,
        }
    }
}

/// An unused link must not speak with the moving MAC, as duplicate address detection would.
/// Kernels without IPv6 have nothing to switch off.
fn without_ipv6() {
    let _absent = fs::write(format!("/proc/sys/net/ipv6/conf/{INSIDE}/disable_ipv6"), "1");
}

/// CRIU carries no multipath TCP, which programs in Go have where they can. They take plain TCP then.
fn without_multipath() {
    let _absent = fs::write("/proc/sys/net/mptcp/enabled", "0");
}

fn set_flags(socket: BorrowedFd<'_>, flags: libc::c_int) -> io::Result<()> {
    let mut change = request();
    change.ifr_ifru.ifru_flags = flags as libc::c_short;
    // SAFETY: `change` is live, and its name ends with NUL.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw mut change) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A request about the inner end.
fn request() -> libc::ifreq {
    // SAFETY: all-zero is a valid ifreq.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(INSIDE.bytes()) {
        *to = from.cast_signed();
    }
    request
}

fn flags_of(socket: BorrowedFd<'_>) -> io::Result<libc::c_int> {
    let mut query = request();
    // SAFETY: `query` is live, and its name ends with NUL.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFFLAGS, &raw mut query) };
    if result == -1 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has filled the flags.
    Ok(libc::c_int::from(unsafe { query.ifr_ifru.ifru_flags }))
}

fn arp_announcement(mac: [u8; 6], address: Ipv4Addr) -> Vec<u8> {
    const ARP: [u8; 2] = [0x08, 0x06];
    const ETHERNET_IPV4_REQUEST: [u8; 8] = [0, 1, 8, 0, 6, 4, 0, 1];
    let ip = address.octets();
    [&[0xff; 6][..], &mac, &ARP, &ETHERNET_IPV4_REQUEST, &mac, &ip, &[0; 6], &ip].concat()
}

/// It sends, and receives nothing.
fn packet_socket() -> io::Result<OwnedFd> {
    // SAFETY: no memory is passed.
    let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if fd == -1 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made it for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn index_of(name: &str) -> io::Result<u32> {
    let name = CString::new(name)?;
    // SAFETY: the name is a live C string.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => Err(io::Error::last_os_error()),
        index => Ok(index),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_end_fits_an_interface_name() {
        let mac = [2, 0, 0xaa, 0xbb, 0xcc, 0x0d];
        let network = Network { mac, address: Ipv4Addr::LOCALHOST, prefix: 16, mtu: 1500 };
        assert_eq!(host_end(&network), "thaabbcc0d");
        assert_eq!(host_mac(&network), [0xfe, 0, 0xaa, 0xbb, 0xcc, 0x0d]);
    }

    #[test]
    fn an_announcement_asks_for_its_own_address() {
        let frame = arp_announcement([2, 0, 0, 0, 0, 9], Ipv4Addr::new(10, 77, 0, 9));
        assert_eq!(frame.len(), 42);
        assert_eq!(frame[28..32], frame[38..42]);
    }
}
