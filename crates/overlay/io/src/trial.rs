//! The trial of offloads before they are used.
//!
//! ```text
//!   datagrams ─▶ socket ─ lo ─ socket ─▶ the same?
//!   segment ─▶ TAP ─ bridge ─ TAP ─▶ the pieces that we would have cut it into?
//!                                └─▶ VXLAN ─ lo ─ VXLAN ─▶ plane's TAP: the same?
//! ```
//!
//! All this happens in the calling thread's network namespace, which is otherwise empty.

use std::io::{self, IoSlice};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fabric::Epoch;
use overlay::Mac;
use overlay::segment::complete_checksum;
use overlay::segment::split::Plan;
use overlay::segment::vnet::{self, VnetHeader, gso};
use overlay::switch::{Entry, Limits, PortId, PortKind, Switch};
use overlay::topology::{NodeId, Topology, Version};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketType, netdevice};

use crate::kernel::{self, HandedOver, What};
use crate::offloads::Offloads;
use crate::peer::{Path, Peer, PlainAgreement};
use crate::peers::Peers;
use crate::socket::{self, Arrival, Socket};
use crate::tap::{self, Tap};

/// The time limit for the arrival of sent data.
const PATIENCE: Duration = Duration::from_secs(2);

/// Bytes of a piece's payload, and of all of them: the last one is shorter.
const SIZE: usize = 1000;
const PAYLOAD: usize = 3 * SIZE + SIZE / 2;

/// The source and destination of the trial: nothing else in the namespace has this address.
const SOURCE: [u8; 6] = [2, 0x74, 0x72, 0, 0, 1];
const DESTINATION: [u8; 6] = [2, 0x74, 0x72, 0, 0, 2];

/// The kernel's calls, so that tests can replace them.
pub(crate) trait Kernel {
    fn send(&self, socket: &Socket, to: SocketAddr, datagrams: &[u8], length: usize) -> io::Result<()> {
        socket.send(to, datagrams, length)
    }

    fn receive(&self, socket: &Socket, into: &mut [u8]) -> io::Result<Arrival> {
        socket.receive(into)
    }

    fn write(&self, tap: &Tap, parts: &[IoSlice<'_>]) -> io::Result<()> {
        tap.write(parts)
    }

    fn read(&self, tap: &Tap, into: &mut [u8]) -> io::Result<usize> {
        tap.read(into)
    }
}

/// The kernel itself.
pub(crate) struct Real;

impl Kernel for Real {}

impl Offloads {
    /// Tries each of these, and returns the ones that the kernel has and does right. That takes milliseconds; for each
    /// that fails, some seconds.
    ///
    /// # Errors
    /// If there can be no network namespace with a bridge and TAPs to try them in.
    pub fn probe(self) -> io::Result<Self> {
        self.probe_with(&Real)
    }

    fn probe_with(self, kernel: &(impl Kernel + Sync)) -> io::Result<Self> {
        if self == Self::NONE {
            return Ok(self);
        }
        let apart = |run: &(dyn Fn() -> io::Result<Self> + Sync)| {
            let namespace = fabric::netns::create()?;
            fabric::netns::enter(namespace.as_fd(), run)?
        };
        let found = apart(&|| run(self, kernel))?;
        // Without it all else works as before.
        let carries = self.kernel && apart(&|| run_kernel(found, kernel)).is_ok_and(|found| found.kernel);
        Ok(Self { kernel: carries, ..found })
    }
}

/// The ones of `wanted` that `kernel` has and does right.
fn run(wanted: Offloads, kernel: &impl Kernel) -> io::Result<Offloads> {
    let control = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    set_up(&control, "lo")?;
    let mut found = Offloads::NONE;
    found.udp_segment = wanted.udp_segment && sends(kernel)?;
    found.udp_gro = wanted.udp_gro && receives(kernel, found.udp_segment)?;
    if wanted.tcp_segments || wanted.udp_segments {
        let mut way = Way::new(&control)?;
        found.tcp_segments = wanted.tcp_segments && way.carries(kernel, &Segment::tcp())?;
        found.udp_segments = wanted.udp_segments && way.carries(kernel, &Segment::udp())?;
    }
    Ok(found)
}

/// `found`, and whether `kernel` carries frames to another node. That this node is the other one, too, it cannot know.
fn run_kernel(found: Offloads, kernel: &impl Kernel) -> io::Result<Offloads> {
    let control = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    set_up(&control, "lo")?;
    let Way { from, to } = Way::new(&control)?;
    // A missing feature counts as broken.
    let Ok(carrier) = kernel::Kernel::new(found.of_taps()) else {
        return Ok(Offloads { kernel: false, ..found });
    };
    link_to_this_host(&carrier, &Arc::new(to))?;
    let segment = Segment::tcp();
    let vnet = segment.vnet.encode();
    // A refusal of the kernel counts as a fault.
    if kernel.write(&from, &[IoSlice::new(&vnet), IoSlice::new(&segment.frame)]).is_err() {
        return Ok(Offloads { kernel: false, ..found });
    }
    let mut buffer = vec![0; tap::MOST];
    let is_right = collects(&carrier, &segment.pieces(), || {
        let length = kernel.read(carrier.plane(), &mut buffer)?;
        let Some(HandedOver { what: What::Frame(vnet, frame), .. }) = HandedOver::decode(&buffer[..length])
        else {
            return Ok(Vec::new());
        };
        Ok(Segment { vnet, frame: frame.to_vec() }.pieces())
    })?;
    Ok(Offloads { kernel: is_right, ..found })
}

/// Makes `carrier` take this host for another one, where [`SOURCE`] is behind `tap`. Frames from there have no local
/// sender, so they are handed over.
fn link_to_this_host(carrier: &kernel::Kernel, tap: &Arc<Tap>) -> io::Result<()> {
    const PORT: PortId = PortId(1);
    let (here, there, version) = (NodeId(1), NodeId(2), Version(1));
    let mut switch = Switch::new(here, 0, Limits::default());
    let routes = Topology::mesh(version, &[here, there]).and_then(|topology| topology.routes(here));
    switch.install(routes.map_err(io::Error::other)?).map_err(io::Error::other)?;
    switch.use_version(version).map_err(io::Error::other)?;
    switch.attach(PORT, PortKind::Instance);
    for (mac, node) in [(SOURCE, here), (DESTINATION, there)] {
        let addresses = Vec::new();
        let entry = Entry { mac: Mac(mac), node, port: Some(PORT), epoch: Epoch(1), addresses };
        switch.commit(&entry, Duration::ZERO, &mut Vec::new()).map_err(io::Error::other)?;
    }
    carrier.attach(PORT, tap, &Mutex::new(switch));
    let (now, peers) = (Duration::ZERO, Peers::default());
    let path = Path { address: (Ipv4Addr::LOCALHOST, 1).into(), longest: socket::LONGEST, fallback: None };
    let peer = Peer::new(there, path, PlainAgreement { own: 1, theirs: 1, kernel: true }, now);
    if let Some(short_cut) = peer.short_cut() {
        peer.search(|mtu| mtu.arrived(socket::LONGEST, now));
        short_cut.answered(peer.longest_by_kernel(), now);
    }
    peers.insert(peer, now);
    carrier.follow(&peers);
    Ok(())
}

/// True if datagrams that leave together come one by one.
fn sends(kernel: &impl Kernel) -> io::Result<bool> {
    let (from, mut to) = (bind()?, bind()?);
    to.set_offloads(Offloads::NONE)?;
    Ok(from.at_once(SIZE) > 1 && crosses(kernel, &from, &to, true)?)
}

/// True if merged datagrams are separated again. `together`: they are also sent in one call.
fn receives(kernel: &impl Kernel, together: bool) -> io::Result<bool> {
    let (from, to) = (bind()?, bind()?);
    Ok(to.glues() && crosses(kernel, &from, &to, together)?)
}

fn bind() -> io::Result<Socket> {
    Socket::bind((Ipv4Addr::LOCALHOST, 0).into())
}

/// True if datagrams come from `from` to `to` as they were.
fn crosses(kernel: &impl Kernel, from: &Socket, to: &Socket, together: bool) -> io::Result<bool> {
    let (sent, address) = (pattern(), to.address()?);
    let calls = sent.chunks(if together { sent.len() } else { SIZE });
    // A refusal of the kernel counts as a fault.
    if calls.into_iter().any(|datagrams| kernel.send(from, address, datagrams, SIZE).is_err()) {
        return Ok(false);
    }
    let expected: Vec<Vec<u8>> = sent.chunks(SIZE).map(<[u8]>::to_vec).collect();
    let mut buffer = vec![0; socket::MOST];
    collects(to, &expected, || {
        let Arrival { bytes, length, .. } = kernel.receive(to, &mut buffer)?;
        Ok(buffer[..bytes].chunks(length.max(1)).map(<[u8]>::to_vec).collect())
    })
}

/// True if `take` takes exactly the `expected` datagrams from `source`.
fn collects(
    source: impl AsFd,
    expected: &[Vec<u8>],
    mut take: impl FnMut() -> io::Result<Vec<Vec<u8>>>,
) -> io::Result<bool> {
    let (begun, mut taken) = (Instant::now(), Vec::new());
    while taken.len() < expected.len() {
        match take() {
            Ok(more) => taken.extend(more),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let left = PATIENCE.saturating_sub(begun.elapsed());
                if left.is_zero() {
                    return Ok(false);
                }
                let left = Timespec::try_from(left).map_err(io::Error::other)?;
                // An interruption is no reason to give up.
                let _ = poll(&mut [PollFd::new(&source, PollFlags::IN)], Some(&left));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(taken == expected)
}

/// Bytes that repeat nowhere soon.
fn pattern() -> Vec<u8> {
    (0..PAYLOAD).map(|at| (at.wrapping_mul(0x9e37_79b9) >> 13) as u8).collect()
}

/// Two TAPs on a bridge.
struct Way {
    from: Tap,
    to: Tap,
}

impl Way {
    fn new(control: &impl AsFd) -> io::Result<Self> {
        let tap = |name| Tap::new(name).map_err(io::Error::other);
        let (from, to) = (tap("from")?, tap("to")?);
        add_bridge(control, "bridge", &["from", "to"])?;
        ["bridge", "from", "to"].iter().try_for_each(|name| set_up(control, name))?;
        Ok(Self { from, to })
    }

    /// True if the kernel cuts `segment`, which it takes from the one, for the other, and hands it over uncut to one that
    /// wants that.
    fn carries(&mut self, kernel: &impl Kernel, segment: &Segment) -> io::Result<bool> {
        let offloads = segment.offloads();
        for there in [tap::Offloads::NONE, offloads] {
            // A kernel that does not know it refuses that.
            let is_known = self.from.set_offloads(offloads).and_then(|()| self.to.set_offloads(there));
            if is_known.is_err() || !self.carries_once(kernel, segment)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn carries_once(&self, kernel: &impl Kernel, segment: &Segment) -> io::Result<bool> {
        let vnet = segment.vnet.encode();
        let parts = [IoSlice::new(&vnet), IoSlice::new(&segment.frame)];
        // A refusal of the kernel counts as a fault.
        if kernel.write(&self.from, &parts).is_err() {
            return Ok(false);
        }
        let mut buffer = vec![0; tap::MOST];
        collects(&self.to, &segment.pieces(), || {
            let length = kernel.read(&self.to, &mut buffer)?;
            let read = Segment::read(&buffer[..length]).filter(|read| read.frame[6..].starts_with(&SOURCE));
            Ok(read.map(|read| read.pieces()).unwrap_or_default())
        })
    }
}

/// A frame, or several in one.
struct Segment {
    vnet: VnetHeader,
    frame: Vec<u8>,
}

impl Segment {
    /// The frames that a TAP has delivered.
    fn read(bytes: &[u8]) -> Option<Self> {
        let (header, frame) = bytes.split_first_chunk::<{ vnet::LENGTH }>()?;
        Some(Self { vnet: VnetHeader::decode(header), frame: frame.to_vec() })
    }

    fn tcp() -> Self {
        const PROTOCOL: u8 = 6;
        // Ports, sequence, acknowledgement, length with ACK and PSH, window, checksum, no urgent bytes.
        let header = [0x1f, 0x90, 0, 80, 1, 2, 3, 4, 5, 6, 7, 8, 0x50, 0x18, 2, 0, 0, 0, 0, 0];
        Self::over_ipv4(PROTOCOL, gso::TCPV4, &header, 16)
    }

    fn udp() -> Self {
        const PROTOCOL: u8 = 17;
        let [high, low] = (8 + PAYLOAD as u16).to_be_bytes();
        Self::over_ipv4(PROTOCOL, gso::UDP_L4, &[0x1f, 0x90, 0, 80, high, low, 0, 0], 6)
    }

    /// `transport` is its header, with the checksum at `at`.
    fn over_ipv4(protocol: u8, gso_type: u8, transport: &[u8], at: u16) -> Self {
        const ADDRESSES: [u8; 8] = [10, 0, 0, 1, 10, 0, 0, 2];
        let length = (transport.len() + PAYLOAD) as u16;
        let ([high, low], [all_high, all_low]) = (length.to_be_bytes(), (20 + length).to_be_bytes());
        let mut ip = vec![0x45, 0, all_high, all_low, 0x12, 0x34, 0, 0, 64, protocol, 0, 0];
        ip.extend(ADDRESSES);
        let sum = checksum(&ip);
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
        let mut transport = transport.to_vec();
        // A partial checksum is the sum of the pseudo-header.
        let pseudo = [&ADDRESSES[..], &[0, protocol, high, low]].concat();
        transport[usize::from(at)..][..2].copy_from_slice(&(!checksum(&pseudo)).to_be_bytes());
        let ethernet = [&DESTINATION, &SOURCE[..], &[0x08, 0x00]].concat();
        let hdr_len = (ethernet.len() + ip.len() + transport.len()) as u16;
        let start = (ethernet.len() + ip.len()) as u16;
        let vnet = VnetHeader { gso_type, hdr_len, gso_size: SIZE as u16, ..VnetHeader::partial(start, at) };
        Self { vnet, frame: [ethernet, ip, transport, pattern()].concat() }
    }

    /// The header that a TAP needs for it.
    fn offloads(&self) -> tap::Offloads {
        let is_udp = self.vnet.is_udp();
        tap::Offloads { checksum: true, tcp: !is_udp, udp: is_udp }
    }

    /// Its frames, as they are on a wire. An unsplittable frame stays as it is.
    fn pieces(&self) -> Vec<Vec<u8>> {
        let Ok(plan) = Plan::of(&self.vnet, &self.frame) else { return vec![self.frame.clone()] };
        let piece = |index| {
            let mut piece = vec![0; plan.piece_length(index)];
            plan.write_piece(index, &self.frame, &mut piece);
            // A mismatched header is wrong, and detected as such.
            let _ = complete_checksum(&plan.piece_vnet(), &mut piece);
            piece
        };
        (0..plan.pieces()).map(piece).collect()
    }
}

/// The internet checksum of `bytes` (RFC 1071).
fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1]));
    let sum: u32 = words.sum();
    !(((sum >> 16) + (sum & 0xffff)) as u16)
}

/// Makes a bridge with these ports.
fn add_bridge(control: &impl AsFd, name: &str, ports: &[&str]) -> io::Result<()> {
    // `linux/sockios.h`
    const SIOCBRADDBR: libc::Ioctl = 0x89a0;
    const SIOCBRADDIF: libc::Ioctl = 0x89a2;
    let mut bridge = tap::named(name).ok_or(io::ErrorKind::InvalidInput)?;
    let socket = control.as_fd().as_raw_fd();
    // SAFETY: the name is live, and ends with a zero.
    tap::check(unsafe { libc::ioctl(socket, SIOCBRADDBR, bridge.ifr_name.as_ptr()) })?;
    for port in ports {
        let index = netdevice::name_to_index(control, port)?;
        bridge.ifr_ifru.ifru_ifindex = index.cast_signed();
        // SAFETY: the request is live, and as long as the call reads.
        tap::check(unsafe { libc::ioctl(socket, SIOCBRADDIF, &raw const bridge) })?;
    }
    Ok(())
}

/// Sets the device `name` up.
fn set_up(control: &impl AsFd, name: &str) -> io::Result<()> {
    let mut request = tap::named(name).ok_or(io::ErrorKind::InvalidInput)?;
    request.ifr_ifru.ifru_flags = libc::IFF_UP as libc::c_short;
    // SAFETY: the request is live, and as long as the call reads.
    tap::check(unsafe { libc::ioctl(control.as_fd().as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) })
}

#[cfg(test)]
mod tests;
