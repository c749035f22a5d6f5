//! A DHCP server for one guest: its node gives it the instance's address.
//!
//! It listens with a packet socket on the guest's TAP, and answers only the guest's own MAC. The lease has no end, so a guest does not
//! ask again after a move. The guest's requests do not leave for the network: a server there, such as a home LAN's, would answer too.

use std::io;
use std::mem::size_of;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use edge_dhcp::server::{Action, ServerOptions};
use edge_dhcp::{DhcpOption, MessageType, Options, Packet};
use etherparse::{PacketBuilder, SlicedPacket, TransportSlice};
use fabric::netns;
use instance::Network;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, SendFlags, netdevice, recv, send};

use crate::network::{DHCP_PORT as SERVER_PORT, HOST, HOST_MAC};

const CLIENT_PORT: u16 = 68;

/// A lease of so many seconds has no end (RFC 2131, section 3.3).
const FOR_EVER: u32 = u32::MAX;

/// The option "interface MTU" (RFC 2132, section 5.1).
const INTERFACE_MTU: u8 = 26;

/// How often the server checks whether it must end.
const GLANCE: Duration = Duration::from_millis(200);

/// The longest DHCP message.
const LONGEST: usize = 1500;

/// What the guest is told: its address, the prefix of its network, and its MTU.
struct Lease(Network);

/// A running server. It ends soon after this is dropped.
pub struct DhcpServer {
    ends: Arc<AtomicBool>,
}

impl DhcpServer {
    /// Tells the guest at `device` in `namespace` its part of `network`.
    ///
    /// # Errors
    /// If the socket cannot be opened.
    pub fn start(namespace: BorrowedFd<'_>, device: &str, network: Network) -> io::Result<Self> {
        let (socket, lease) = (netns::enter(namespace, || socket_on(device))??, Lease(network));
        let ends = Arc::new(AtomicBool::new(false));
        let end = ends.clone();
        thread::Builder::new().name("dhcp".into()).spawn(move || serve(socket.as_fd(), &lease, &end))?;
        Ok(Self { ends })
    }
}

impl Drop for DhcpServer {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
    }
}

fn serve(socket: BorrowedFd<'_>, lease: &Lease, end: &AtomicBool) {
    let mut frame = [0; LONGEST];
    while !end.load(Ordering::Relaxed) {
        let Some(length) = receive(socket, &mut frame) else { continue };
        if let Some(answer) = lease.answer(&frame[..length]) {
            // A lost answer is asked for again.
            let _ = send(socket, &answer, SendFlags::empty());
        }
    }
}

/// The length of the next frame; `None` if none comes for a while.
fn receive(socket: BorrowedFd<'_>, frame: &mut [u8]) -> Option<usize> {
    let patience = Timespec::try_from(GLANCE).expect("a short time");
    let mut readable = [PollFd::new(&socket, PollFlags::IN)];
    match poll(&mut readable, Some(&patience)) {
        Ok(1) => recv(socket, frame, RecvFlags::DONTWAIT).ok().map(|(_, length)| length),
        Ok(_) => None,
        Err(_) => {
            thread::sleep(GLANCE);
            None
        }
    }
}

impl Lease {
    /// The answer to a frame of the guest; `None` if it gets none.
    fn answer(&self, frame: &[u8]) -> Option<Vec<u8>> {
        let parsed = SlicedPacket::from_ethernet(frame).ok()?;
        let Some(TransportSlice::Udp(udp)) = parsed.transport else { return None };
        if udp.destination_port() != SERVER_PORT || udp.source_port() != CLIENT_PORT {
            return None;
        }
        let request = Packet::decode(udp.payload()).ok()?;
        if request.chaddr[..6] != self.0.mac {
            return None;
        }
        let mut options = ServerOptions::new(HOST, None);
        options.lease_duration_secs = FOR_EVER;
        let (kind, address) = match options.process(&request)? {
            Action::Discover(..) => (MessageType::Offer, Some(self.0.address)),
            Action::Request(wanted, _) if wanted == self.0.address => (MessageType::Ack, Some(wanted)),
            Action::Request(..) => (MessageType::Nak, None),
            Action::Release(..) | Action::Decline(..) => return None,
        };
        self.reply(&request, kind, address)
    }

    fn reply(&self, request: &Packet<'_>, kind: MessageType, address: Option<Ipv4Addr>) -> Option<Vec<u8>> {
        let mtu = u16::try_from(self.0.mtu).unwrap_or(u16::MAX).to_be_bytes();
        let all = [
            DhcpOption::MessageType(kind),
            DhcpOption::ServerIdentifier(HOST),
            DhcpOption::IpAddressLeaseTime(FOR_EVER),
            DhcpOption::SubnetMask(mask(self.0.prefix)),
            DhcpOption::Unrecognized(INTERFACE_MTU, &mtu),
        ];
        // A refusal says no more than that.
        let told = if address.is_some() { &all[..] } else { &all[..2] };
        let mut bytes = [0; LONGEST];
        let message = request.new_reply(address, Options::new(told)).encode(&mut bytes).ok()?;
        // Only the guest is at the other end of its TAP, whatever address it has by now.
        let builder = PacketBuilder::ethernet2(HOST_MAC, self.0.mac)
            .ipv4(HOST.octets(), Ipv4Addr::BROADCAST.octets(), 64)
            .udp(SERVER_PORT, CLIENT_PORT);
        let mut frame = Vec::with_capacity(builder.size(message.len()));
        builder.write(&mut frame, message).ok()?;
        Some(frame)
    }
}

fn mask(prefix: u8) -> Ipv4Addr {
    Ipv4Addr::from_bits(u32::MAX.checked_shl(32 - u32::from(prefix.min(32))).unwrap_or(0))
}

/// A packet socket on `device` that receives only IPv4 datagrams to the port of DHCP servers.
fn socket_on(device: &str) -> io::Result<OwnedFd> {
    // SAFETY: no memory is passed.
    let socket = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if socket == -1 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new, and owned by nobody else.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    let index = netdevice::name_to_index(&socket, device)?;
    filter(socket.as_fd())?;
    // Bound only now, so that nothing passes the filter by.
    // SAFETY: an all-zero address is valid.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    // Sockets for one protocol get a frame only after filters have redirected it.
    address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    address.sll_ifindex = index.cast_signed();
    let length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: the address is live, and of the length that is given.
    let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) };
    if bound == -1 { Err(io::Error::last_os_error()) } else { Ok(socket) }
}

/// Lets only unfragmented UDP datagrams to [`SERVER_PORT`] in: `udp dst port 67` in the words of tcpdump.
fn filter(socket: BorrowedFd<'_>) -> io::Result<()> {
    const fn step(code: u32, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
        libc::sock_filter { code: code as u16, jt, jf, k }
    }
    const LOAD_BYTE: u32 = libc::BPF_LD | libc::BPF_B | libc::BPF_ABS;
    const LOAD_HALF: u32 = libc::BPF_LD | libc::BPF_H | libc::BPF_ABS;
    const EQUALS: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let mut steps = [
        step(LOAD_HALF, 0, 0, 12),
        step(EQUALS, 0, 8, libc::ETH_P_IP as u32),
        step(LOAD_BYTE, 0, 0, 23),
        step(EQUALS, 0, 6, libc::IPPROTO_UDP as u32),
        step(LOAD_HALF, 0, 0, 20),
        step(libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K, 4, 0, 0x1fff),
        // The length of the IP header.
        step(libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH, 0, 0, 14),
        step(libc::BPF_LD | libc::BPF_H | libc::BPF_IND, 0, 0, 16),
        step(EQUALS, 0, 1, SERVER_PORT as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, u32::MAX),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, 0),
    ];
    let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    let length = size_of::<libc::sock_fprog>() as libc::socklen_t;
    let value = (&raw const program).cast();
    // SAFETY: the program and its steps are live, and of the lengths that are given.
    let set = unsafe {
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, value, length)
    };
    if set == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NETWORK: Network =
        Network { mac: [2, 0, 0, 0, 0, 9], address: Ipv4Addr::new(10, 77, 0, 9), prefix: 16, mtu: 1400 };
    const GUEST: Lease = Lease(NETWORK);

    /// A request of a guest with this MAC, as it leaves its device.
    fn frame(mac: [u8; 6], options: &[DhcpOption<'_>]) -> Vec<u8> {
        let mut bytes = [0; LONGEST];
        let request = Packet::new_request(mac, 7, 0, None, true, Options::new(options));
        let message = request.encode(&mut bytes).unwrap();
        let builder = PacketBuilder::ethernet2(mac, [0xff; 6])
            .ipv4([0; 4], [0xff; 4], 64)
            .udp(CLIENT_PORT, SERVER_PORT);
        let mut frame = Vec::new();
        builder.write(&mut frame, message).unwrap();
        frame
    }

    /// What an answer says: its kind, the address, the mask and the MTU.
    fn told(frame: &[u8]) -> (MessageType, Ipv4Addr, Option<Ipv4Addr>, Option<[u8; 2]>) {
        let parsed = SlicedPacket::from_ethernet(frame).unwrap();
        let Some(TransportSlice::Udp(udp)) = parsed.transport else { panic!("not UDP") };
        let packet = Packet::decode(udp.payload()).unwrap();
        let (mut kind, mut mask, mut mtu) = (None, None, None);
        for option in packet.options.iter() {
            match option {
                DhcpOption::MessageType(found) => kind = Some(found),
                DhcpOption::SubnetMask(found) => mask = Some(found),
                DhcpOption::Unrecognized(INTERFACE_MTU, found) => mtu = found.try_into().ok(),
                _ => {}
            }
        }
        (kind.unwrap(), packet.yiaddr, mask, mtu)
    }

    #[test]
    fn the_guest_gets_the_address_of_its_instance() {
        let all = (NETWORK.address, Some(Ipv4Addr::new(255, 255, 0, 0)), Some(1400_u16.to_be_bytes()));
        let discover = [DhcpOption::MessageType(MessageType::Discover)];
        let offer = told(&GUEST.answer(&frame(NETWORK.mac, &discover)).unwrap());
        assert_eq!(offer, (MessageType::Offer, all.0, all.1, all.2));
        let request =
            [DhcpOption::MessageType(MessageType::Request), DhcpOption::RequestedIpAddress(NETWORK.address)];
        let ack = told(&GUEST.answer(&frame(NETWORK.mac, &request)).unwrap());
        assert_eq!(ack, (MessageType::Ack, all.0, all.1, all.2));
    }

    #[test]
    fn another_address_is_refused() {
        let wanted = Ipv4Addr::new(10, 77, 0, 10);
        let request = [DhcpOption::MessageType(MessageType::Request), DhcpOption::RequestedIpAddress(wanted)];
        let answer = told(&GUEST.answer(&frame(NETWORK.mac, &request)).unwrap());
        assert_eq!(answer, (MessageType::Nak, Ipv4Addr::UNSPECIFIED, None, None));
    }

    #[test]
    fn other_guests_and_damaged_requests_get_no_answer() {
        let discover = [DhcpOption::MessageType(MessageType::Discover)];
        assert_eq!(GUEST.answer(&frame([2, 0, 0, 0, 0, 8], &discover)), None);
        let whole = frame(NETWORK.mac, &discover);
        // Behind byte 290 only padding is missing.
        for length in 0..280 {
            assert_eq!(GUEST.answer(&whole[..length]), None, "{length}");
        }
    }

    #[test]
    fn masks_have_as_many_bits_as_the_prefix() {
        for (prefix, expected) in
            [(0, [0, 0, 0, 0]), (16, [255, 255, 0, 0]), (25, [255, 255, 255, 128]), (32, [255; 4])]
        {
            assert_eq!(mask(prefix).octets(), expected);
        }
    }
}
