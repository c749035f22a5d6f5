//! An instance's link: `eth0` in its namespace, and its wiring.
//!
//! A cut link (see [`Wiring`]) keeps the carrier and the routes of `eth0`; a link that is down would not.

use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::mem;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use fabric::netns;

use crate::instance::{InstanceSpec, Kind, Network};
use crate::lock::lock;
use crate::process::network::netlink;
use engine_api::wiring::{DEVICE, Wiring};

/// The index of `lo` in each namespace.
const LOOPBACK_INDEX: u32 = 1;

/// The kernel's default of `tcp_retries2`.
const RETRIES: &str = "15";
/// If the kernel refuses packets of TCP, TCP retries each half second, and gives the connection up after eight retries. That is too
/// early for a move that is rolled back later, or whose node was killed. The greatest value that the kernel accepts allows two
/// minutes.
const RETRIES_HELD_BACK: &str = "255";
/// After this time, connections may have used so many retries that the usual limit would end them at once. The higher limit then
/// stays until packets are held back the next time; until then, connections to peers that are gone end later.
const LONG: Duration = Duration::from_secs(5);

/// How long the kernel may take to see a carrier. It may delay that by a second, and longer while many links come and go.
pub(super) const CARRIER: Duration = Duration::from_secs(10);

/// An existing link.
pub struct Link {
    network: Network,
    /// The wiring of the host's end.
    wiring: Arc<dyn Wiring>,
    /// A packet socket in the instance's namespace.
    announcer: OwnedFd,
    /// A netlink socket in that namespace.
    routing: OwnedFd,
    /// The index of `eth0` in that namespace.
    pub inside: u32,
    /// The number of retries before TCP gives a connection up: `tcp_retries2`, if it may be changed.
    retries: Option<File>,
    /// The time since when the kernel holds packets back, if that is known.
    held_since: Mutex<Option<Instant>>,
}

impl Link {
    /// Makes the link, cut. It replaces a link that a crash has left. The address of a virtual machine belongs to its guest: the kernel of
    /// the host must not answer for it.
    pub fn create(
        namespace: BorrowedFd<'_>,
        spec: &InstanceSpec,
        wiring: Arc<dyn Wiring>,
    ) -> io::Result<Self> {
        wiring.create(spec, namespace)?;
        let network = spec.network;
        netns::enter(namespace, || {
            without_ipv6();
            without_multipath();
            netlink::set_up("lo")?;
            netlink::configure(DEVICE, network.mac, network.mtu)?;
            let link = Self::here(network, wiring)?;
            link.wait_for_carrier()?;
            if spec.workload.kind() != Kind::Vm {
                netlink::add_address(link.inside, network.address, network.prefix)?;
            }
            Ok(link)
        })?
    }

    /// Finds the link of an instance that is already here.
    pub fn find(namespace: BorrowedFd<'_>, spec: &InstanceSpec, wiring: Arc<dyn Wiring>) -> io::Result<Self> {
        wiring.find(spec, namespace)?;
        netns::enter(namespace, || Self::here(spec.network, wiring))?
    }

    fn here(network: Network, wiring: Arc<dyn Wiring>) -> io::Result<Self> {
        let (announcer, routing, inside) = (packet_socket()?, netlink::socket()?, index_of(DEVICE)?);
        let retries = File::options().write(true).open("/proc/sys/net/ipv4/tcp_retries2").ok();
        Ok(Self { network, wiring, announcer, routing, inside, retries, held_since: Mutex::default() })
    }

    /// Deletes the link; no error if it does not exist.
    pub fn delete(&self) -> io::Result<()> {
        self.wiring.delete(&self.network)
    }

    /// Keeps frames for the instance from now on, if the wiring can. The instance still sends.
    pub fn hold(&self) -> io::Result<()> {
        self.wiring.hold(&self.network)
    }

    /// Cuts the link, and lets the kernel hold back packets that connections inside send. Only for stopped processes: running ones
    /// would get errors.
    pub fn cut(&self) -> io::Result<()> {
        // Packets sent before this are not lost, and no peer waits for them in vain.
        self.hold_back()?;
        self.wiring.cut(&self.network)
    }

    /// Lets the kernel hold back packets inside the instance too while both ends of connections are dumped or restored one after
    /// the other. A dumped end must not acknowledge data for an end that is not dumped yet: that end would drop the data. An end
    /// that is not restored yet would refuse packets of a restored one.
    pub fn hold_back(&self) -> io::Result<()> {
        self.held_since().get_or_insert_with(Instant::now);
        self.ask_for_room(RETRIES_HELD_BACK)?;
        self.links().try_for_each(|index| netlink::refuse(self.routing.as_fd(), index))
    }

    /// Releases packets inside the instance.
    pub fn let_through(&self) -> io::Result<()> {
        self.links().try_for_each(|index| netlink::accept(self.routing.as_fd(), index))?;
        match self.held_since().take() {
            Some(since) if since.elapsed() < LONG => self.ask_for_room(RETRIES),
            _ => Ok(()),
        }
    }

    fn held_since(&self) -> MutexGuard<'_, Option<Instant>> {
        lock(&self.held_since)
    }

    fn ask_for_room(&self, times: &str) -> io::Result<()> {
        self.retries.as_ref().map_or(Ok(()), |retries| retries.write_all_at(times.as_bytes(), 0))
    }

    fn links(&self) -> impl Iterator<Item = u32> {
        [LOOPBACK_INDEX, self.inside].into_iter()
    }

    /// Mends the link and announces the address to the neighbours.
    pub fn mend(&self) -> io::Result<()> {
        self.let_through()?;
        if self.wiring.keeps_frames() {
            // The kept frames are delivered at once, and the instance answers them. The neighbours that it requests for these answers
            // must not be forgotten again, so this comes first.
            self.forget_neighbours()?;
            self.wiring.mend(&self.network)?;
        } else {
            self.wiring.mend(&self.network)?;
            self.forget_neighbours()?;
        }
        self.announce()
    }

    /// The kernel repeats a request for a neighbour, sent while the link was cut, only after a second. It forgets neighbours when
    /// the need for ARP changes.
    fn forget_neighbours(&self) -> io::Result<()> {
        let flags = flags_of(self.announcer.as_fd())?;
        set_flags(self.announcer.as_fd(), flags | libc::IFF_NOARP)?;
        set_flags(self.announcer.as_fd(), flags & !libc::IFF_NOARP)
    }

    /// Until the kernel sees the carrier, it drops packets that are sent.
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

    /// Sends a gratuitous ARP request: bridges learn the port, neighbours keep their entry.
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

/// Switches IPv6 off: an unused link must not send frames with the moving MAC, as duplicate address detection would. Kernels
/// without IPv6 have nothing to switch off.
fn without_ipv6() {
    let _absent = fs::write(format!("/proc/sys/net/ipv6/conf/{DEVICE}/disable_ipv6"), "1");
}

/// Switches multipath TCP off, which CRIU does not carry. Go programs use it where they can, and use plain TCP without it.
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

/// A request about the instance's end.
fn request() -> libc::ifreq {
    // SAFETY: all-zero is a valid ifreq.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(DEVICE.bytes()) {
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

/// Returns a packet socket that only sends.
fn packet_socket() -> io::Result<OwnedFd> {
    // SAFETY: no memory is passed.
    let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if fd == -1 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made it for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The index of the link `name` of the calling thread's namespace.
pub fn index_of(name: &str) -> io::Result<u32> {
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
    fn an_announcement_asks_for_its_own_address() {
        let frame = arp_announcement([2, 0, 0, 0, 0, 9], Ipv4Addr::new(10, 77, 0, 9));
        assert_eq!(frame.len(), 42);
        assert_eq!(frame[28..32], frame[38..42]);
    }
}
