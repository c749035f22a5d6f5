//! Address resolution of stations, ARP for IPv4 and neighbour discovery for IPv6, and its answers.
//!
//! Only ordinary questions are answered here: broadcasts for the address of another station. Probes for
//! duplicate addresses, and for the reachability of a known neighbour, are left to the station itself. So are questions for an
//! address that another station has claimed last: an administrator may have moved it there.
//!
//! Answers for a router carry the router flag: without it a receiver drops its routes through the router (RFC 4861, 7.2.5).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use etherparse::icmpv6::{
    NdpOptionSlice, NeighborAdvertisementHeader, NeighborAdvertisementPayload,
    NeighborSolicitationPayloadSlice, RouterAdvertisementPayloadSlice,
};
use etherparse::{
    ArpEthIpv4Packet, ArpOperation, ArpPacketSlice, Icmpv6Header, Icmpv6Slice, Icmpv6Type, IpNumber,
    Ipv6Header, Ipv6Slice,
};

use crate::ethernet::{Front, HEADER, ethertype};
use crate::mac::Mac;

/// The hop limit that shows that no router has passed a message on.
const NOT_ROUTED: u8 = 255;

/// An NDP option with the target's MAC, and its length in units of 8 bytes.
const TARGET_MAC_OPTION: [u8; 2] = [2, 1];

/// The subject of the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Station {
    pub mac: Mac,
    /// Of IPv6.
    pub is_router: bool,
}

/// A question for the MAC of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Question {
    /// ARP
    V4 { asker: Ipv4Addr, target: Ipv4Addr },
    /// Neighbour discovery
    V6 { asker: Ipv6Addr, target: Ipv6Addr },
}

impl Question {
    /// The question in a frame, if it may be answered on the target's behalf.
    pub fn of(front: &Front, frame: &[u8]) -> Option<Self> {
        if front.payload != HEADER || !front.destination.is_group() {
            return None;
        }
        let payload = frame.get(HEADER..)?;
        match front.ethertype {
            ethertype::ARP => Self::of_arp(front, payload),
            ethertype::IPV6 => Self::of_solicitation(front, payload),
            _ => None,
        }
    }

    fn of_arp(front: &Front, payload: &[u8]) -> Option<Self> {
        let packet = arp_packet(payload)?;
        let (asker, target) = (packet.sender_ipv4_addr(), packet.target_ipv4_addr());
        let is_ordinary = packet.operation == ArpOperation::REQUEST
            && Mac(packet.sender_mac) == front.source
            && asker != target
            && is_station(asker);
        is_ordinary.then_some(Self::V4 { asker, target })
    }

    fn of_solicitation(front: &Front, payload: &[u8]) -> Option<Self> {
        let Neighbourly { from, to, message } = Neighbourly::of(payload)?;
        if message.icmp_type() != Icmpv6Type::NeighborSolicitation {
            return None;
        }
        let solicitation = NeighborSolicitationPayloadSlice::from_slice(message.payload()).ok()?;
        let (asker, target) = (from, solicitation.target_address());
        let is_ordinary = !asker.is_unspecified()
            && !asker.is_multicast()
            && asker != target
            && to == solicited_node(target)
            && source_mac(&solicitation) == Some(front.source);
        is_ordinary.then_some(Self::V6 { asker, target })
    }

    /// The asker.
    pub fn asker(&self) -> IpAddr {
        match self {
            Self::V4 { asker, .. } => IpAddr::V4(*asker),
            Self::V6 { asker, .. } => IpAddr::V6(*asker),
        }
    }

    /// The target of the question.
    pub fn target(&self) -> IpAddr {
        match self {
            Self::V4 { target, .. } => IpAddr::V4(*target),
            Self::V6 { target, .. } => IpAddr::V6(*target),
        }
    }

    /// The answer for the station `to`: the target is `owner`.
    pub fn answer(&self, to: Mac, owner: Station) -> Vec<u8> {
        let Station { mac, is_router: router } = owner;
        match *self {
            Self::V4 { asker, target } => {
                arp(to, mac, ArpOperation::REPLY, (mac, target), (to, asker), ethertype::ARP)
            }
            Self::V6 { asker, target } => {
                let flags = NeighborAdvertisementHeader { router, solicited: true, r#override: false };
                advertisement(to, asker, flags, mac, target)
            }
        }
    }
}

/// The claim of a broadcast's sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Claim {
    /// It owns this address: by a question or an answer, or by duplicate address detection (IPv6; with IPv4 that is no claim
    /// yet, RFC 5227).
    Address(IpAddr),
    /// It is a router that has this address.
    Router(Ipv6Addr),
}

/// The claim of the sender of `frame`, if it is a broadcast.
pub(super) fn claim(front: &Front, frame: &[u8]) -> Option<Claim> {
    if front.payload != HEADER || !front.destination.is_group() {
        return None;
    }
    let payload = frame.get(HEADER..)?;
    match front.ethertype {
        ethertype::ARP => {
            let packet = arp_packet(payload).filter(|packet| Mac(packet.sender_mac) == front.source)?;
            let sender = Some(packet.sender_ipv4_addr()).filter(|sender| is_station(*sender));
            sender.map(|sender| Claim::Address(IpAddr::V4(sender)))
        }
        ethertype::IPV6 => claim_of_neighbour(&Neighbourly::of(payload)?),
        _ => None,
    }
}

fn claim_of_neighbour(said: &Neighbourly<'_>) -> Option<Claim> {
    let (from, payload) = (said.from, said.message.payload());
    match said.message.icmp_type() {
        Icmpv6Type::NeighborSolicitation if !from.is_unspecified() => Some(Claim::Address(from.into())),
        Icmpv6Type::NeighborSolicitation | Icmpv6Type::NeighborAdvertisement(_) => {
            let target = Ipv6Addr::from(*payload.first_chunk::<16>()?);
            Some(Claim::Address(target.into()))
        }
        // Also with a lifetime of 0: that ends the default routes by `from`, and the router may go on with another address (RFC 4861,
        // 6.2.8) or for some networks only. If it is no longer a router, no station has such a route, and the flag gives it none.
        Icmpv6Type::RouterAdvertisement(_) => {
            RouterAdvertisementPayloadSlice::from_slice(payload).ok()?;
            from.is_unicast_link_local().then_some(Claim::Router(from))
        }
        _ => None,
    }
}

fn arp_packet(payload: &[u8]) -> Option<ArpEthIpv4Packet> {
    ArpPacketSlice::from_slice(payload).ok()?.to_packet().try_eth_ipv4().ok()
}

/// A whole message of ICMPv6 that no router has passed on.
struct Neighbourly<'a> {
    from: Ipv6Addr,
    to: Ipv6Addr,
    message: Icmpv6Slice<'a>,
}

impl<'a> Neighbourly<'a> {
    fn of(payload: &'a [u8]) -> Option<Self> {
        let packet = Ipv6Slice::from_slice(payload).ok()?;
        let (header, from, to) = (packet.header(), packet.header().source(), packet.header().destination());
        if header.next_header() != IpNumber::IPV6_ICMP
            || header.hop_limit() != NOT_ROUTED
            || header.payload_length() == 0
        {
            return None;
        }
        let message = Icmpv6Slice::from_slice(packet.payload().payload).ok()?;
        let is_valid = message.is_checksum_valid(from, to);
        is_valid.then(|| Self { from: from.into(), to: to.into(), message })
    }
}

fn is_station(address: Ipv4Addr) -> bool {
    !address.is_unspecified() && !address.is_multicast() && !address.is_broadcast()
}

/// The solicited-node group of `target` (RFC 4291, 2.7.1).
fn solicited_node(target: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = target.octets();
    Ipv6Addr::from([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, a, b, c])
}

/// The asker's MAC, as it claims; `None` also if any option is malformed.
fn source_mac(solicitation: &NeighborSolicitationPayloadSlice<'_>) -> Option<Mac> {
    let options = solicitation.options_iterator().collect::<Result<Vec<_>, _>>().ok()?;
    let mac = options.iter().find_map(|option| match option {
        NdpOptionSlice::SourceLinkLayerAddress(address) => Some(address.link_layer_address()),
        _ => None,
    });
    mac?.try_into().map(Mac).ok()
}

/// The frames that tell a LAN that the station, which has these addresses, is where they come from.
pub(super) fn announcements(station: Station, addresses: &[IpAddr]) -> Vec<Vec<u8>> {
    let Station { mac, is_router: router } = station;
    let nobody = (mac, Ipv4Addr::UNSPECIFIED);
    let reverse = ArpOperation(3);
    let first = arp(Mac::BROADCAST, mac, reverse, nobody, nobody, ethertype::RARP);
    let others = addresses.iter().map(|address| match *address {
        IpAddr::V4(own) => {
            let target = (Mac([0; 6]), own);
            arp(Mac::BROADCAST, mac, ArpOperation::REQUEST, (mac, own), target, ethertype::ARP)
        }
        IpAddr::V6(own) => {
            let all_nodes = Ipv6Addr::from_bits(0xff02 << 112 | 1);
            let flags = NeighborAdvertisementHeader { router, solicited: false, r#override: true };
            advertisement(Mac([0x33, 0x33, 0, 0, 0, 1]), all_nodes, flags, mac, own)
        }
    });
    std::iter::once(first).chain(others).collect()
}

fn arp(
    to: Mac,
    from: Mac,
    operation: ArpOperation,
    sender: (Mac, Ipv4Addr),
    target: (Mac, Ipv4Addr),
    ethertype: u16,
) -> Vec<u8> {
    let packet = ArpEthIpv4Packet {
        operation,
        sender_mac: sender.0.0,
        sender_ipv4: sender.1.octets(),
        target_mac: target.0.0,
        target_ipv4: target.1.octets(),
    };
    frame(to, from, ethertype, &[&packet.to_bytes()])
}

fn advertisement(
    to: Mac,
    to_address: Ipv6Addr,
    flags: NeighborAdvertisementHeader,
    owner: Mac,
    target: Ipv6Addr,
) -> Vec<u8> {
    let mut payload = NeighborAdvertisementPayload { target_address: target }.to_bytes().to_vec();
    payload.extend(TARGET_MAC_OPTION);
    payload.extend(owner.0);
    let kind = Icmpv6Type::NeighborAdvertisement(flags);
    let checksum = kind.calc_checksum(target.octets(), to_address.octets(), &payload).unwrap_or_default();
    let message = Icmpv6Header { icmp_type: kind, checksum }.to_bytes();
    let header = Ipv6Header {
        payload_length: u16::try_from(message.len() + payload.len()).unwrap_or_default(),
        next_header: IpNumber::IPV6_ICMP,
        hop_limit: NOT_ROUTED,
        source: target.octets(),
        destination: to_address.octets(),
        ..Ipv6Header::default()
    };
    frame(to, owner, ethertype::IPV6, &[&header.to_bytes(), &message, &payload])
}

/// An Ethernet frame of `parts`.
pub(super) fn frame(to: Mac, from: Mac, ethertype: u16, parts: &[&[u8]]) -> Vec<u8> {
    [&to.0[..], &from.0[..], &ethertype.to_be_bytes()[..]]
        .iter()
        .chain(parts)
        .flat_map(|part| part.iter())
        .copied()
        .collect()
}

#[cfg(test)]
mod tests {
    use etherparse::icmpv6::RouterAdvertisementHeader;

    use super::*;

    const ASKER: Mac = Mac([2, 0, 0, 0, 0, 1]);
    const OWNER: Mac = Mac([2, 0, 0, 0, 0, 2]);
    const HOST: Station = Station { mac: OWNER, is_router: false };
    const ROUTER: Station = Station { mac: OWNER, is_router: true };
    const HERE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
    const THERE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

    fn question(frame: &[u8]) -> Option<Question> {
        Question::of(&Front::of(frame)?, frame)
    }

    fn request(to: Mac, sender: (Mac, Ipv4Addr), target: Ipv4Addr) -> Vec<u8> {
        arp(to, ASKER, ArpOperation::REQUEST, sender, (Mac([0; 6]), target), ethertype::ARP)
    }

    fn solicitation(from: Ipv6Addr, target: Ipv6Addr) -> Vec<u8> {
        let mut payload = target.octets().to_vec();
        payload.extend([1, 1]);
        payload.extend(ASKER.0);
        let group = Mac([0x33, 0x33, 0xff, 0, 0, 2]);
        said(group, from, solicited_node(target), Icmpv6Type::NeighborSolicitation, &payload)
    }

    fn router_advertisement(from: Ipv6Addr, lifetime: u16) -> Vec<u8> {
        let [high, low] = lifetime.to_be_bytes();
        let header = RouterAdvertisementHeader::from_bytes([64, 0, high, low]);
        let (group, kind) = (Mac([0x33, 0x33, 0, 0, 0, 1]), Icmpv6Type::RouterAdvertisement(header));
        said(group, from, "ff02::1".parse().unwrap(), kind, &[0; 8])
    }

    fn said(group: Mac, from: Ipv6Addr, to: Ipv6Addr, kind: Icmpv6Type, payload: &[u8]) -> Vec<u8> {
        let message = Icmpv6Header::with_checksum(kind, from.octets(), to.octets(), payload).unwrap();
        let header = Ipv6Header {
            payload_length: 8 + u16::try_from(payload.len()).unwrap(),
            next_header: IpNumber::IPV6_ICMP,
            hop_limit: 255,
            source: from.octets(),
            destination: to.octets(),
            ..Ipv6Header::default()
        };
        frame(group, ASKER, ethertype::IPV6, &[&header.to_bytes(), &message.to_bytes(), payload])
    }

    fn addresses() -> (Ipv6Addr, Ipv6Addr) {
        ("fd00::1".parse().unwrap(), "fd00::2".parse().unwrap())
    }

    #[test]
    fn ordinary_arp_requests_are_questions() {
        let ordinary = request(Mac::BROADCAST, (ASKER, HERE), THERE);
        let question_in = Question::V4 { asker: HERE, target: THERE };
        assert_eq!(question(&ordinary), Some(question_in));
        let mut padded = ordinary.clone();
        padded.resize(60, 0);
        assert_eq!(question(&padded), Some(question_in));
        let answer = question_in.answer(ASKER, HOST);
        assert_eq!(answer[..14], [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 6]);
        assert_eq!(answer[14..22], [0, 1, 8, 0, 6, 4, 0, 2]);
        assert_eq!(answer[22..], [2, 0, 0, 0, 0, 2, 10, 0, 0, 2, 2, 0, 0, 0, 0, 1, 10, 0, 0, 1]);
        assert_eq!(question(&answer), None);
    }

    #[test]
    fn other_arp_is_not() {
        let ordinary = request(Mac::BROADCAST, (ASKER, HERE), THERE);
        assert_eq!(question(&request(Mac::BROADCAST, (ASKER, THERE), THERE)), None, "gratuitous");
        assert_eq!(
            question(&request(Mac::BROADCAST, (ASKER, Ipv4Addr::UNSPECIFIED), THERE)),
            None,
            "a probe"
        );
        assert_eq!(question(&request(Mac::BROADCAST, (OWNER, HERE), THERE)), None, "for another station");
        assert_eq!(question(&request(OWNER, (ASKER, HERE), THERE)), None, "to one station");
        assert!((0..ordinary.len()).all(|length| question(&ordinary[..length]).is_none()));
        let mut tagged = ordinary.clone();
        tagged.splice(12..12, [0x81, 0, 0, 0]);
        assert_eq!(question(&tagged), None);
        for at in 14..22 {
            let mut broken = ordinary.clone();
            broken[at] ^= 4;
            assert_eq!(question(&broken), None, "byte {at}");
        }
    }

    #[test]
    fn ordinary_solicitations_are_questions() {
        let (here, there) = addresses();
        let ordinary = solicitation(here, there);
        let question_in = Question::V6 { asker: here, target: there };
        assert_eq!(question(&ordinary), Some(question_in));
        assert_eq!(question_in.target(), IpAddr::V6(there));
        let answer = question_in.answer(ASKER, HOST);
        let packet = Ipv6Slice::from_slice(&answer[14..]).unwrap();
        let message = Icmpv6Slice::from_slice(packet.payload().payload).unwrap();
        assert!(message.is_checksum_valid(there.octets(), here.octets()));
        assert_eq!((message.type_u8(), message.bytes5to8()), (136, [0x40, 0, 0, 0]));
        assert_eq!(message.payload()[..16], there.octets());
        assert_eq!(message.payload()[16..], [2, 1, 2, 0, 0, 0, 0, 2]);
    }

    #[test]
    fn other_solicitations_are_not() {
        let (here, there) = addresses();
        let ordinary = solicitation(here, there);
        assert_eq!(question(&solicitation(Ipv6Addr::UNSPECIFIED, there)), None, "is the address free?");
        assert_eq!(question(&solicitation(there, there)), None);
        assert!((0..ordinary.len()).all(|length| question(&ordinary[..length]).is_none()));
        // Behind the version, the priority and the flow label, which say nothing.
        for at in 18..ordinary.len() {
            let mut broken = ordinary.clone();
            broken[at] ^= 4;
            assert_eq!(question(&broken), None, "byte {at}");
        }
    }

    #[test]
    fn senders_claim_addresses() {
        let claimed = |frame: &[u8]| match claim(&Front::of(frame)?, frame)? {
            Claim::Address(address) => Some(address),
            Claim::Router(_) => None,
        };
        let all = Mac::BROADCAST;
        assert_eq!(claimed(&request(all, (ASKER, HERE), THERE)), Some(IpAddr::V4(HERE)));
        assert_eq!(claimed(&request(all, (ASKER, THERE), THERE)), Some(IpAddr::V4(THERE)), "gratuitous");
        assert_eq!(claimed(&request(all, (ASKER, Ipv4Addr::UNSPECIFIED), THERE)), None, "a probe");
        assert_eq!(claimed(&request(all, (OWNER, HERE), THERE)), None, "for another station");
        let reply = arp(all, ASKER, ArpOperation::REPLY, (ASKER, HERE), (OWNER, THERE), ethertype::ARP);
        assert_eq!(claimed(&reply), Some(IpAddr::V4(HERE)));
        let (here, there) = addresses();
        assert_eq!(claimed(&solicitation(here, there)), Some(IpAddr::V6(here)));
        assert_eq!(claimed(&solicitation(Ipv6Addr::UNSPECIFIED, there)), Some(IpAddr::V6(there)));
        let announced = announcements(HOST, &[IpAddr::V4(THERE), IpAddr::V6(there)]);
        let claims = announced.iter().filter_map(|frame| claimed(frame)).collect::<Vec<_>>();
        assert_eq!(claims, [IpAddr::V4(THERE), IpAddr::V6(there)]);
        let whole = solicitation(here, there);
        assert!((14..whole.len()).all(|length| claimed(&whole[..length]).is_none()));
    }

    #[test]
    fn router_advertisements_claim_that_the_sender_is_a_router() {
        let claimed = |frame: &[u8]| claim(&Front::of(frame).unwrap(), frame);
        let router = "fe80::1".parse().unwrap();
        let ordinary = router_advertisement(router, 1800);
        assert_eq!(claimed(&ordinary), Some(Claim::Router(router)));
        assert_eq!(claimed(&router_advertisement(router, 0)), Some(Claim::Router(router)));
        assert_eq!(claimed(&router_advertisement("fd00::1".parse().unwrap(), 1800)), None, "not link-local");
        assert!((14..ordinary.len()).all(|length| claimed(&ordinary[..length]).is_none()));
        let mut routed = ordinary.clone();
        routed[HEADER + 7] = 254;
        assert_eq!(claimed(&routed), None);
        let mut to_one = ordinary.clone();
        to_one[..6].copy_from_slice(&OWNER.0);
        assert_eq!(claimed(&to_one), None);
    }

    #[test]
    fn answers_for_a_router_carry_the_router_flag() {
        let (here, there) = addresses();
        let answer = |owner| Question::V6 { asker: here, target: there }.answer(ASKER, owner);
        let announced = |owner| announcements(owner, &[IpAddr::V6(there)])[1].clone();
        let flags = |frame: Vec<u8>| {
            let packet = Ipv6Slice::from_slice(&frame[14..]).unwrap();
            let message = Icmpv6Slice::from_slice(packet.payload().payload).unwrap();
            assert!(message.is_checksum_valid(packet.header().source(), packet.header().destination()));
            message.bytes5to8()[0]
        };
        assert_eq!([HOST, ROUTER].map(answer).map(flags), [0x40, 0xc0]);
        assert_eq!([HOST, ROUTER].map(announced).map(flags), [0x20, 0xa0]);
    }

    #[test]
    fn a_moved_mac_is_announced_for_each_address() {
        let (_, there) = addresses();
        let frames = announcements(HOST, &[IpAddr::V4(THERE), IpAddr::V6(there)]);
        assert_eq!(frames.len(), 3);
        for frame in &frames {
            let front = Front::of(frame).unwrap();
            assert!(front.destination.is_group() && front.source == OWNER);
            assert_eq!(question(frame), None);
        }
        assert_eq!(frames[0][12..22], [0x80, 0x35, 0, 1, 8, 0, 6, 4, 0, 3]);
        assert_eq!(frames[1][28..32], frames[1][38..42], "gratuitous");
        let packet = Ipv6Slice::from_slice(&frames[2][14..]).unwrap();
        let message = Icmpv6Slice::from_slice(packet.payload().payload).unwrap();
        assert!(message.is_checksum_valid(packet.header().source(), packet.header().destination()));
        assert_eq!(message.bytes5to8(), [0x20, 0, 0, 0]);
    }
}
