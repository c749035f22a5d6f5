//! A minimal rtnetlink client: a veth pair, a link's state and address, and whether it sends.
//!
//! The engine cuts and mends the link in the blackout of a move. Starting `ip` for that would take longer than the work itself.

use std::io;
use std::mem;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_MASTER: u16 = 10;
const IFLA_PROTINFO: u16 = 12;
const IFLA_TXQLEN: u16 = 13;
const IFLA_LINKINFO: u16 = 18;
const IFLA_NET_NS_FD: u16 = 28;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const VETH_INFO_PEER: u16 = 1;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFLA_BRPORT_STATE: u16 = 1;
const BR_STATE_FORWARDING: u8 = 3;
const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
const TC_H_ROOT: u32 = 0xffff_ffff;
const TC_H_INGRESS: u32 = 0xffff_fff1;
/// The handle of the ingress queue.
const TC_H_INGRESS_QUEUE: u32 = 0xffff_0000;
const TC_ACT_STOLEN: u32 = 4;
const TC_U32_TERMINAL: u8 = 1;
const TCA_ACT_KIND: u16 = 1;
const TCA_ACT_OPTIONS: u16 = 2;
const TCA_MIRRED_PARMS: u16 = 2;
const TCA_EGRESS_REDIR: u32 = 1;
const TCA_U32_CLASSID: u16 = 1;
const TCA_U32_SEL: u16 = 5;
const TCA_U32_ACT: u16 = 7;
/// The precedences of filters: each kind of packet has one of its own, and the lowest number is asked first.
const ARP_FILTER: u32 = 1;
const IP_FILTER: u32 = 2;
const PORT_FILTER: u32 = 3;
const REDIRECTION: u32 = 4;
/// `struct tc_fifo_qopt`: the queue's limit of packets.
const NO_ROOM: [u8; 4] = [0; 4];

/// The properties of a new veth pair.
pub struct Veth<'a> {
    /// The end in the calling thread's namespace.
    pub near: &'a str,
    /// Its MAC.
    pub near_mac: [u8; 6],
    /// The other end.
    pub far: &'a str,
    /// The namespace of the other end.
    pub namespace: BorrowedFd<'a>,
    /// The MTU of both ends, in bytes.
    pub mtu: u32,
}

/// Makes the pair, both ends down.
pub fn add_veth(veth: &Veth<'_>) -> io::Result<()> {
    let mut peer = Attributes(link_header(0, 0, 0).to_vec());
    peer.text(IFLA_IFNAME, veth.far);
    peer.number(IFLA_MTU, veth.mtu);
    peer.number(IFLA_NET_NS_FD, veth.namespace.as_raw_fd().unsigned_abs());
    let mut data = Attributes::default();
    data.bytes(VETH_INFO_PEER, &peer.0);
    let mut info = Attributes::default();
    info.text(IFLA_INFO_KIND, "veth");
    info.bytes(IFLA_INFO_DATA, &data.0);
    let mut link = Attributes(link_header(0, 0, 0).to_vec());
    link.text(IFLA_IFNAME, veth.near);
    link.bytes(IFLA_ADDRESS, &veth.near_mac);
    link.number(IFLA_MTU, veth.mtu);
    link.bytes(IFLA_LINKINFO, &info.0);
    request(libc::RTM_NEWLINK, (libc::NLM_F_CREATE | libc::NLM_F_EXCL) as u16, &link.0)
}

/// Brings the link `name` of the calling thread's namespace up.
pub fn set_up(name: &str) -> io::Result<()> {
    let up = libc::IFF_UP as u32;
    let mut link = Attributes(link_header(0, up, up).to_vec());
    link.text(IFLA_IFNAME, name);
    request(libc::RTM_NEWLINK, 0, &link.0)
}

/// Sets the MAC and the MTU (in bytes) of the link `name` of the calling thread's namespace, and brings it up.
pub fn configure(name: &str, mac: [u8; 6], mtu: u32) -> io::Result<()> {
    let up = libc::IFF_UP as u32;
    let mut link = Attributes(link_header(0, up, up).to_vec());
    link.text(IFLA_IFNAME, name);
    link.bytes(IFLA_ADDRESS, &mac);
    link.number(IFLA_MTU, mtu);
    request(libc::RTM_NEWLINK, 0, &link.0)
}

/// Sets how many frames the link `name` of the calling thread's namespace queues.
pub fn set_queue(name: &str, frames: u32) -> io::Result<()> {
    let mut link = Attributes(link_header(0, 0, 0).to_vec());
    link.text(IFLA_IFNAME, name);
    link.number(IFLA_TXQLEN, frames);
    request(libc::RTM_NEWLINK, 0, &link.0)
}

/// Makes the link `name` a port of the bridge with this index, or of no bridge.
pub fn set_bridge(name: &str, bridge: Option<u32>) -> io::Result<()> {
    let mut link = Attributes(link_header(0, 0, 0).to_vec());
    link.text(IFLA_IFNAME, name);
    link.number(IFLA_MASTER, bridge.unwrap_or(0));
    request(libc::RTM_NEWLINK, 0, &link.0)
}

/// Lets the bridge port with this index forward frames.
pub fn set_forwarding(index: u32) -> io::Result<()> {
    let mut port = Attributes::default();
    port.bytes(IFLA_BRPORT_STATE, &[BR_STATE_FORWARDING]);
    let mut link = Attributes(link_header(index, 0, 0).to_vec());
    link.0[0] = libc::AF_BRIDGE as u8;
    link.bytes(IFLA_PROTINFO | libc::NLA_F_NESTED as u16, &port.0);
    request(libc::RTM_SETLINK, 0, &link.0)
}

/// Deletes the link `name`, and with it the pair; no error if it does not exist.
pub fn delete_link(name: &str) -> io::Result<()> {
    let mut link = Attributes(link_header(0, 0, 0).to_vec());
    link.text(IFLA_IFNAME, name);
    match request(libc::RTM_DELLINK, 0, &link.0) {
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(()),
        other => other,
    }
}

/// Gives the link of this index its address.
pub fn add_address(index: u32, address: Ipv4Addr, prefix: u8) -> io::Result<()> {
    let mut message = Attributes(vec![libc::AF_INET as u8, prefix, 0, libc::RT_SCOPE_UNIVERSE]);
    message.0.extend(index.to_ne_bytes());
    message.bytes(IFA_LOCAL, &address.octets());
    message.bytes(IFA_ADDRESS, &address.octets());
    request(libc::RTM_NEWADDR, (libc::NLM_F_CREATE | libc::NLM_F_EXCL) as u16, &message.0)
}

/// Gives the link of this index an address, and `peer` at its other end.
pub fn add_peer(index: u32, address: Ipv4Addr, peer: Ipv4Addr) -> io::Result<()> {
    const WHOLE: u8 = 32;
    let mut message = Attributes(vec![libc::AF_INET as u8, WHOLE, 0, libc::RT_SCOPE_UNIVERSE]);
    message.0.extend(index.to_ne_bytes());
    message.bytes(IFA_LOCAL, &address.octets());
    message.bytes(IFA_ADDRESS, &peer.octets());
    request(libc::RTM_NEWADDR, (libc::NLM_F_CREATE | libc::NLM_F_EXCL) as u16, &message.0)
}

/// `struct ifinfomsg`; index 0 for a link that is given by name.
fn link_header(index: u32, flags: u32, change: u32) -> [u8; 16] {
    let mut header = [0; 16];
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    header[8..12].copy_from_slice(&flags.to_ne_bytes());
    header[12..].copy_from_slice(&change.to_ne_bytes());
    header
}

/// A message's payload, with attributes appended at multiples of four bytes.
#[derive(Default)]
struct Attributes(Vec<u8>);

impl Attributes {
    fn bytes(&mut self, kind: u16, value: &[u8]) {
        let length = 4 + value.len() as u16;
        self.0.extend(length.to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }

    fn number(&mut self, kind: u16, value: u32) {
        self.bytes(kind, &value.to_ne_bytes());
    }

    fn text(&mut self, kind: u16, value: &str) {
        self.bytes(kind, &[value.as_bytes(), b"\0"].concat());
    }
}

/// Lets the kernel refuse all packets through the link with this index in the socket's namespace. TCP notices the refusal, and
/// keeps its unsent data.
pub fn refuse(socket: BorrowedFd<'_>, index: u32) -> io::Result<()> {
    let mut queue = Attributes(root_queue(index).to_vec());
    queue.text(TCA_KIND, "pfifo");
    queue.bytes(TCA_OPTIONS, &NO_ROOM);
    request_on(socket, libc::RTM_NEWQDISC, (libc::NLM_F_CREATE | libc::NLM_F_REPLACE) as u16, &queue.0)
}

/// Lets the kernel send through that link again.
pub fn accept(socket: BorrowedFd<'_>, index: u32) -> io::Result<()> {
    match request_on(socket, libc::RTM_DELQDISC, 0, &root_queue(index)) {
        // The link was not refusing.
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
        other => other,
    }
}

/// Makes the queue of frames that come in at the link with this index of the calling thread's namespace, for filters.
pub fn filter_incoming(index: u32) -> io::Result<()> {
    let mut queue = Attributes(traffic_header(index, TC_H_INGRESS_QUEUE, TC_H_INGRESS, 0).to_vec());
    queue.text(TCA_KIND, "ingress");
    request(libc::RTM_NEWQDISC, (libc::NLM_F_CREATE | libc::NLM_F_EXCL) as u16, &queue.0)
}

/// Lets the kernel of the host take ARP and IPv4 packets for `address` that come in at the filtered link `index`.
pub fn keep(index: u32, address: Ipv4Addr) -> io::Result<()> {
    /// Where the destination is: in an ARP packet, and in an IPv4 header.
    const PLACES: [(libc::c_int, u32, i32); 2] =
        [(libc::ETH_P_ARP, ARP_FILTER, 24), (libc::ETH_P_IP, IP_FILTER, 16)];
    let wanted = u32::from(address);
    for (protocol, precedence, at) in PLACES {
        add_filter(index, precedence, protocol, &passing(&[Match { at, mask: u32::MAX, value: wanted }]))?;
    }
    Ok(())
}

/// Lets the kernel of the host take UDP datagrams to `port`, in IPv4 headers without options.
pub fn keep_port(index: u32, port: u16) -> io::Result<()> {
    const LENGTH_AND_VERSION: Match = Match { at: 0, mask: 0x0f00_0000, value: 0x0500_0000 };
    const UDP: Match = Match { at: 8, mask: 0x00ff_0000, value: (libc::IPPROTO_UDP as u32) << 16 };
    let to_port = Match { at: 20, mask: 0xffff, value: port.into() };
    add_filter(index, PORT_FILTER, libc::ETH_P_IP, &passing(&[LENGTH_AND_VERSION, UDP, to_port]))
}

/// A filter without an action lets packets pass.
fn passing(matches: &[Match]) -> Attributes {
    let mut options = Attributes::default();
    options.bytes(TCA_U32_SEL, &selector(matches));
    options.number(TCA_U32_CLASSID, 1);
    options
}

/// Redirects every other frame that comes in at the filtered link `from`: it leaves through the link `to`. With a `source`, only frames
/// from this MAC.
pub fn redirect(from: u32, to: u32, source: Option<[u8; 6]>) -> io::Result<()> {
    // `struct tc_mirred`: index, capabilities, action, two counters, what it does, and the other link.
    let mut mirred = Attributes::default();
    mirred.bytes(TCA_MIRRED_PARMS, &words([0, 0, TC_ACT_STOLEN, 0, 0, TCA_EGRESS_REDIR, to]));
    let mut action = Attributes::default();
    action.text(TCA_ACT_KIND, "mirred");
    action.bytes(TCA_ACT_OPTIONS, &mirred.0);
    let mut actions = Attributes::default();
    actions.bytes(1, &action.0);
    let mut options = Attributes::default();
    let all = vec![Match { at: 0, mask: 0, value: 0 }];
    options.bytes(TCA_U32_SEL, &selector(&source.map_or(all, from_mac)));
    options.bytes(TCA_U32_ACT, &actions.0);
    add_filter(from, REDIRECTION, libc::ETH_P_ALL, &options)
}

/// Four bytes of a packet, from its network header on: equal to `value` under `mask`.
struct Match {
    at: i32,
    mask: u32,
    value: u32,
}

/// Matches the source in the Ethernet header, which is before the network header.
fn from_mac([a, b, c, d, e, f]: [u8; 6]) -> Vec<Match> {
    let first = Match { at: -8, mask: u32::MAX, value: u32::from_be_bytes([a, b, c, d]) };
    vec![first, Match { at: -4, mask: 0xffff_0000, value: u32::from_be_bytes([e, f, 0, 0]) }]
}

/// `struct tc_u32_sel` with a `struct tc_u32_key` for each match.
fn selector(matches: &[Match]) -> Vec<u8> {
    let mut selector = vec![0; 16];
    (selector[0], selector[2]) = (TC_U32_TERMINAL, matches.len() as u8);
    for Match { at, mask, value } in matches {
        selector.extend(mask.to_be_bytes());
        selector.extend(value.to_be_bytes());
        selector.extend(at.to_ne_bytes());
        selector.extend([0; 4]);
    }
    selector
}

fn add_filter(index: u32, precedence: u32, protocol: libc::c_int, options: &Attributes) -> io::Result<()> {
    let info = precedence << 16 | u32::from((protocol as u16).to_be());
    let mut filter = Attributes(traffic_header(index, 0, TC_H_INGRESS_QUEUE, info).to_vec());
    filter.text(TCA_KIND, "u32");
    filter.bytes(TCA_OPTIONS, &options.0);
    request(libc::RTM_NEWTFILTER, (libc::NLM_F_CREATE | libc::NLM_F_EXCL) as u16, &filter.0)
}

fn words<const N: usize>(words: [u32; N]) -> Vec<u8> {
    words.into_iter().flat_map(u32::to_ne_bytes).collect()
}

/// `struct tcmsg` of a link's root queue.
fn root_queue(index: u32) -> [u8; 20] {
    traffic_header(index, 0, TC_H_ROOT, 0)
}

/// `struct tcmsg`.
fn traffic_header(index: u32, handle: u32, parent: u32, info: u32) -> [u8; 20] {
    let mut header = [0; 20];
    header[4..].copy_from_slice(&words([index, handle, parent, info]));
    header
}

/// Sends one request and waits for the kernel's acknowledgement.
fn request(kind: u16, flags: u16, payload: &[u8]) -> io::Result<()> {
    request_on(socket()?.as_fd(), kind, flags, payload)
}

fn request_on(socket: BorrowedFd<'_>, kind: u16, flags: u16, payload: &[u8]) -> io::Result<()> {
    const HEADER: usize = mem::size_of::<libc::nlmsghdr>();
    let flags = flags | (libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16;
    let mut packet = Vec::with_capacity(HEADER + payload.len());
    packet.extend(((HEADER + payload.len()) as u32).to_ne_bytes());
    packet.extend(kind.to_ne_bytes());
    packet.extend(flags.to_ne_bytes());
    packet.extend([0; 8]);
    packet.extend(payload);
    // SAFETY: `packet` is live and as long as said.
    check(unsafe { libc::send(socket.as_raw_fd(), packet.as_ptr().cast(), packet.len(), 0) })?;

    let mut answer = [0; 4096];
    // SAFETY: `answer` is live, writable and as long as said.
    let length =
        check(unsafe { libc::recv(socket.as_raw_fd(), answer.as_mut_ptr().cast(), answer.len(), 0) })?;
    let code = answer[..length].get(HEADER..HEADER + 4).and_then(|code| code.try_into().ok());
    match code.map(i32::from_ne_bytes) {
        Some(0) => Ok(()),
        Some(code) => Err(io::Error::from_raw_os_error(-code)),
        None => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// A socket for requests in the calling thread's namespace.
pub fn socket() -> io::Result<OwnedFd> {
    // SAFETY: no memory is passed.
    let fd =
        unsafe { libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::NETLINK_ROUTE) };
    check(fd as isize)?;
    // SAFETY: the kernel has just made it for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn check(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}
