//! Frames that are merged, and frames that are not.

use etherparse::TcpHeader;
use overlay::segment::VnetHeader;
use overlay::segment::vnet::{flag, gso};

use crate::frames::{Ip, Packet, Transport};
use crate::{Frame, assert_given_back, merge};

type ChangePacket = fn(&mut Packet);
type ChangeTcp = fn(&mut TcpHeader);
type ChangeFrame = Box<dyn Fn(&mut Frame)>;

/// A frame on its way, its checksum partial.
fn frame(packet: &Packet) -> Frame {
    (packet.piece_vnet(), packet.partial())
}

/// Of how many frames each segment was made.
fn counts(pieces: &[Packet]) -> Vec<usize> {
    let frames: Vec<Frame> = pieces.iter().map(frame).collect();
    let merged = merge(&frames);
    assert_given_back(&frames, &merged);
    merged.into_iter().map(|(_, count)| count).collect()
}

/// The pieces of a segment of three, with the second or third one changed.
fn changed(segment: &Packet, index: usize, change: impl Fn(&mut Packet)) -> Vec<usize> {
    let mut pieces = segment.split();
    change(&mut pieces[index]);
    counts(&pieces)
}

fn three() -> Packet {
    Packet::tcp(3000, 1000)
}

/// The payload behind `packet`.
fn next(packet: &Packet, length: usize) -> Packet {
    let mut next = Packet { payload: vec![7; length], ..packet.clone() };
    let (tcp, behind) = (next.tcp_mut(), packet.payload.len() as u32);
    tcp.sequence_number = tcp.sequence_number.wrapping_add(behind);
    next.ipv4_mut().identification = next.ipv4_mut().identification.wrapping_add(1);
    next
}

fn flags(flags: ChangeTcp) -> impl Fn(&mut Packet) {
    move |packet| flags(packet.tcp_mut())
}

#[test]
fn all_header_fields_of_pieces_must_match() {
    let changes: [(&str, ChangePacket); 16] = [
        ("destination", |packet| packet.link[0] ^= 4),
        ("source", |packet| packet.link[6] ^= 4),
        ("VLAN", |packet| packet.link[15] ^= 1),
        ("priority", |packet| packet.link[14] ^= 0x20),
        ("no tag", |packet| packet.link.truncate(12)),
        ("IP source", |packet| packet.ipv4_mut().source[3] ^= 1),
        ("IP destination", |packet| packet.ipv4_mut().destination[3] ^= 1),
        ("TTL", |packet| packet.ipv4_mut().time_to_live ^= 1),
        ("TOS", |packet| packet.ipv4_mut().ecn = etherparse::IpEcn::CongestionExperienced),
        ("DF", |packet| packet.ipv4_mut().dont_fragment ^= true),
        ("source port", |packet| packet.tcp_mut().source_port ^= 1),
        ("port", |packet| packet.tcp_mut().destination_port ^= 1),
        ("acknowledgement", |packet| packet.tcp_mut().acknowledgment_number += 1),
        ("window", |packet| packet.tcp_mut().window_size += 1),
        ("urgent pointer", |packet| packet.tcp_mut().urgent_pointer = 1),
        ("options", |packet| packet.tcp_mut().set_options_raw(&[1; 4]).unwrap()),
    ];
    assert_eq!(counts(&three().split()), [3]);
    for (name, change) in changes {
        assert_eq!(changed(&three(), 1, change), [1, 1, 1], "{name}");
        assert_eq!(changed(&three(), 2, change), [2, 1], "{name}");
    }
}

#[test]
fn timestamps_must_match() {
    let mut segment = three();
    segment.tcp_mut().set_options_raw(&[1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2]).unwrap();
    assert_eq!(counts(&segment.split()), [3]);
    let later = |packet: &mut Packet| {
        packet.tcp_mut().set_options_raw(&[1, 1, 8, 10, 0, 0, 0, 2, 0, 0, 0, 2]).unwrap();
    };
    assert_eq!(changed(&segment, 1, later), [1, 1, 1]);
}

#[test]
fn ipv6_headers_must_match() {
    let segment = three().over_ipv6();
    let changes: [fn(&mut etherparse::Ipv6Header, &mut Vec<u8>); 5] = [
        |header, _| header.flow_label = etherparse::Ipv6FlowLabel::ZERO,
        |header, _| header.hop_limit ^= 1,
        |header, _| header.traffic_class ^= 1,
        |header, _| header.source[15] ^= 1,
        |header, extensions| {
            header.next_header = 60.into();
            extensions.extend([0; 8]);
        },
    ];
    assert_eq!(counts(&segment.split()), [3]);
    for change in changes {
        let change = |packet: &mut Packet| match &mut packet.ip {
            Ip::V6 { header, extensions, .. } => change(header, extensions),
            Ip::V4(_) => panic!("IPv4"),
        };
        assert_eq!(changed(&segment, 1, change), [1, 1, 1]);
    }
}

#[test]
fn pieces_come_in_order() {
    let earlier = |packet: &mut Packet| packet.tcp_mut().sequence_number -= 1;
    let later = |packet: &mut Packet| packet.tcp_mut().sequence_number += 1;
    let same_id = |packet: &mut Packet| packet.ipv4_mut().identification -= 1;
    assert_eq!(changed(&three(), 2, earlier), [2, 1]);
    assert_eq!(changed(&three(), 2, later), [2, 1]);
    assert_eq!(changed(&three(), 2, same_id), [2, 1]);
    let [a, b, c] = three().split().try_into().unwrap();
    assert_eq!(counts(&[a.clone(), c.clone(), b.clone()]), [1, 1, 1]);
    assert_eq!(counts(&[a.clone(), a, b, c]), [1, 3]);
}

#[test]
fn a_shorter_piece_ends_a_segment_and_a_longer_one_begins_another() {
    let five = Packet::tcp(4500, 1000).split();
    assert_eq!(counts(&five), [5]);
    for (length, expected) in [(500, [5, 1]), (400, [5, 1]), (1, [5, 1])] {
        assert_eq!(counts(&[five.clone(), vec![next(&five[4], length)]].concat()), expected);
    }
    assert_eq!(counts(&[five[0].clone(), next(&five[0], 1001)]), [1, 1]);
    assert_eq!(counts(&[five[0].clone(), next(&five[0], 1000)]), [2]);
    assert_eq!(counts(&[five[0].clone(), next(&five[0], 0)]), [1, 1]);
}

#[test]
fn pushed_data_ends_a_segment() {
    for end in [flags(|tcp| tcp.psh = true), flags(|tcp| tcp.fin = true)] {
        for (index, expected) in [(0, &[1, 2][..]), (1, &[2, 1]), (2, &[3])] {
            assert_eq!(changed(&three(), index, &end), expected);
        }
    }
    let both = flags(|tcp| (tcp.psh, tcp.fin) = (true, true));
    assert_eq!(changed(&three(), 2, both), [3]);
}

#[test]
fn other_flags_are_not_merged() {
    let changes: [(ChangeTcp, bool); 6] = [
        (|tcp| tcp.syn = true, false),
        (|tcp| tcp.rst = true, false),
        (|tcp| tcp.urg = true, false),
        (|tcp| tcp.ece = true, true),
        (|tcp| tcp.ns = true, true),
        (|tcp| tcp.ack = false, true),
    ];
    for (change, can_be_in_all) in changes {
        assert_eq!(changed(&three(), 1, flags(change)), [1, 1, 1]);
        let mut all = three();
        change(all.tcp_mut());
        assert_eq!(counts(&all.split()), if can_be_in_all { vec![3] } else { vec![1; 3] });
    }
}

#[test]
fn a_reduced_tcp_window_is_flagged_once_or_always() {
    let cwr = |packet: &mut Packet| packet.tcp_mut().cwr = true;
    assert_eq!(changed(&three(), 0, cwr), [3]);
    assert_eq!(changed(&three(), 1, cwr), [1, 2]);
    assert_eq!(changed(&three(), 2, cwr), [2, 1]);
    let mut all = three();
    cwr(&mut all);
    assert_eq!(counts(&all.split()), [3]);
    assert_eq!(merge(&all.split().iter().map(frame).collect::<Vec<_>>())[0].0.0.gso_type, gso::TCPV4);
    all.ecn = true;
    assert_eq!(counts(&all.split()), [3]);
    let ecn = merge(&all.split().iter().map(frame).collect::<Vec<_>>())[0].0.0.gso_type;
    assert_eq!(ecn, gso::TCPV4 | gso::ECN);
    // Once in the first two, it is not for the first only.
    all.ecn = false;
    assert_eq!(changed(&all, 2, |packet| packet.tcp_mut().cwr = false), [2, 1]);
}

#[test]
fn a_segment_has_at_most_64_pieces_and_65535_bytes() {
    assert_eq!(counts(&Packet::tcp(1300, 10).split()), [64, 64, 2]);
    assert_eq!(counts(&Packet::tcp(650, 10).with_udp().split()), [64, 1]);
    let long = Packet::tcp(60_000, 6000).split();
    let left = 65535 - 40 - 60_000;
    assert_eq!(counts(&[long.clone(), vec![next(&long[9], left)]].concat()), [11]);
    assert_eq!(counts(&[long.clone(), vec![next(&long[9], left + 1)]].concat()), [10, 1]);
}

#[test]
fn datagrams_of_one_size_are_merged() {
    assert_eq!(counts(&Packet::tcp(3001, 1000).with_udp().split()), [4]);
    assert_eq!(counts(&Packet::tcp(3001, 1000).over_ipv6().with_udp().split()), [4]);
    let other_port = |packet: &mut Packet| packet.transport = Transport::Udp { ports: [53, 55] };
    assert_eq!(changed(&three().with_udp(), 1, other_port), [1, 1, 1]);
    // Of another flow than TCP with the same bytes.
    let first = |segment: Packet| segment.split().swap_remove(0);
    assert_eq!(counts(&[first(three()), first(three().with_udp())]), [1, 1]);
}

/// The merged result of three pieces after the first, the second, and then all were changed as bytes.
fn raw(segment: &Packet, change: impl Fn(&mut Frame)) -> [Vec<usize>; 3] {
    [0..1, 1..2, 0..3].map(|changed| {
        let mut frames: Vec<Frame> = segment.split().iter().map(frame).collect();
        frames[changed].iter_mut().for_each(&change);
        let merged = merge(&frames);
        assert_given_back(&frames, &merged);
        merged.into_iter().map(|(_, count)| count).collect()
    })
}

#[test]
fn unmergeable_frames_pass_alone() {
    let alone = [vec![1, 2], vec![1, 1, 1], vec![1, 1, 1]];
    let (ip, tcp) = (18, 38);
    let changes: [(&str, ChangeFrame); 13] = [
        ("complete checksum", Box::new(|(vnet, _)| *vnet = VnetHeader::default())),
        ("checked", Box::new(|(vnet, _)| vnet.flags |= flag::DATA_VALID)),
        ("segment", Box::new(|(vnet, _)| (vnet.gso_type, vnet.gso_size) = (gso::TCPV4, 500))),
        ("hdr_len", Box::new(|(vnet, _)| vnet.hdr_len = 9)),
        ("other checksum", Box::new(|(vnet, _)| vnet.csum_offset = 18)),
        ("trailing byte", Box::new(|(_, frame)| frame.push(0))),
        ("missing byte", Box::new(|(_, frame)| frame.truncate(frame.len() - 1))),
        ("total length", Box::new(move |(_, frame)| frame[ip + 3] ^= 1)),
        ("IP checksum", Box::new(move |(_, frame)| frame[ip + 10] ^= 1)),
        ("fragment", Box::new(move |(_, frame)| frame[ip + 6] |= 0x20)),
        ("short TCP header", Box::new(move |(_, frame)| frame[tcp + 12] = 0x40)),
        ("empty", Box::new(|(_, frame)| frame.clear())),
        ("header only", Box::new(|(_, frame)| frame.truncate(58))),
    ];
    for (name, change) in changes {
        assert_eq!(raw(&three(), change), alone, "{name}");
    }
    // A sum of 0 means none, also where a computed sum is 0.
    assert_eq!(raw(&three(), move |(_, frame)| frame[tcp + 16..tcp + 18].fill(0)), alone);
    // Another sum than that of the pseudo-header is the first one's business, but all have to agree.
    assert_eq!(raw(&three(), move |(_, frame)| frame[tcp + 17] ^= 1), [vec![1, 2], vec![1, 1, 1], vec![3]]);
    assert_eq!(raw(&three().with_udp(), move |(_, frame)| frame[tcp + 5] ^= 1), alone);
    assert_eq!(raw(&three().over_ipv6(), move |(_, frame)| frame[ip + 5] ^= 1), alone);
}

#[test]
fn acknowledgements_pass_alone() {
    let ack = Packet::tcp(0, 1);
    assert_eq!(counts(&[ack.clone(), ack.clone(), ack]), [1, 1, 1]);
}

#[test]
fn long_headers_pass_alone() {
    let with = |units: u8| {
        let mut segment = three().over_ipv6();
        let Ip::V6 { header, extensions, .. } = &mut segment.ip else { panic!("IPv4") };
        header.next_header = 60.into();
        *extensions = vec![0; (usize::from(units) + 1) * 8];
        extensions[1] = units;
        (segment.header_length(), counts(&segment.split()))
    };
    assert_eq!(with(52), (502, vec![3]));
    assert_eq!(with(53), (510, vec![3]));
    assert_eq!(with(54), (518, vec![1; 3]));
}
