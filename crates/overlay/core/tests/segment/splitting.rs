//! Each piece is equal to one that was made on its own.

use fastrand::Rng;
use overlay::segment::vnet::{flag, gso};
use overlay::segment::{LayoutError, Plan, SplitError, VnetError, VnetHeader, complete_checksum};

use crate::frames::{Ip, Packet, Transport};
use crate::{merge, split};

const CASES: u64 = 2000;

#[test]
fn pieces_match_the_reference() {
    for seed in 0..CASES {
        let packet = Packet::any(&mut Rng::with_seed(seed));
        let pieces = split(&packet.vnet(), &packet.partial());
        let reference = packet.split();
        assert_eq!(pieces.len(), reference.len(), "seed {seed}");
        for ((vnet, mut piece), reference) in pieces.into_iter().zip(reference) {
            assert_eq!(vnet, packet.piece_vnet(), "seed {seed}");
            assert!(piece == reference.partial(), "seed {seed}");
            complete_checksum(&vnet, &mut piece).unwrap();
            assert!(piece == reference.complete(), "seed {seed}");
        }
    }
}

#[test]
fn merging_pieces_gives_the_segment() {
    for seed in 0..CASES {
        let packet = Packet::any(&mut Rng::with_seed(seed));
        let (vnet, frame) = (packet.vnet(), packet.partial());
        let pieces = split(&vnet, &frame);
        let merged = merge(&pieces);
        match pieces.len() {
            1 => assert!(merged == [((packet.piece_vnet(), frame), 1)], "seed {seed}"),
            count @ 2..=64 => assert!(merged == [((vnet, frame), count)], "seed {seed}"),
            count => {
                assert_eq!(merged.len(), count.div_ceil(64), "seed {seed}");
                crate::assert_given_back(&pieces, &merged);
            }
        }
    }
}

#[test]
fn a_segment_of_one_byte_pieces() {
    for packet in [Packet::tcp(64, 1), Packet::tcp(64, 1).over_ipv6().with_udp()] {
        let (vnet, frame) = (packet.vnet(), packet.partial());
        let pieces = split(&vnet, &frame);
        assert_eq!(pieces.len(), 64);
        assert!(merge(&pieces) == [((vnet, frame), 64)]);
    }
}

#[test]
fn the_longest_segments() {
    let header = Packet::tcp(1, 1).header_length() - Packet::tcp(1, 1).link.len() - 2;
    let longest = Packet::tcp(65535 - header, 1448);
    let (vnet, frame) = (longest.vnet(), longest.partial());
    assert!(merge(&split(&vnet, &frame)) == [((vnet, frame.clone()), 46)]);
    let longer = [frame, vec![0]].concat();
    assert_eq!(Plan::of(&vnet, &longer).err(), Some(SplitError::Layout(LayoutError::Long)));
    // An IPv6 header's payload length does not include the header.
    let longest = Packet::tcp(65535 - 20, 1448).over_ipv6();
    let (vnet, frame) = (longest.vnet(), longest.partial());
    assert_eq!(split(&vnet, &frame).len(), 46);
    let longer = [frame, vec![0]].concat();
    assert_eq!(Plan::of(&vnet, &longer).err(), Some(SplitError::Layout(LayoutError::Long)));
}

#[test]
fn a_single_frame_is_left_unchanged() {
    let packet = Packet::tcp(1000, 1000);
    let garbage = VnetHeader { hdr_len: 7, gso_size: 1, ..packet.piece_vnet() };
    let valid = VnetHeader { flags: flag::DATA_VALID, ..VnetHeader::default() };
    for vnet in [packet.piece_vnet(), garbage, valid, VnetHeader::default()] {
        assert!(split(&vnet, &packet.partial()) == [(vnet, packet.partial())]);
    }
    assert_eq!(split(&VnetHeader::default(), &[]), [(VnetHeader::default(), vec![])]);
}

#[test]
fn a_segment_without_payload_is_a_piece() {
    for packet in [Packet::tcp(0, 9), Packet::tcp(0, 9).with_udp()] {
        let pieces = split(&packet.vnet(), &packet.partial());
        assert!(pieces == [(packet.piece_vnet(), packet.partial())]);
    }
}

#[test]
fn lengths_in_headers_are_not_trusted() {
    let packet = Packet::tcp(5000, 1448).with_udp();
    let mut frame = packet.partial();
    let (ip, udp) = (packet.link.len() + 2, packet.transport_at());
    frame[ip + 2..ip + 4].fill(0);
    frame[udp + 4..udp + 6].fill(0xff);
    let vnet = VnetHeader { hdr_len: u16::MAX, ..packet.vnet() };
    assert!(split(&vnet, &frame) == split(&packet.vnet(), &packet.partial()));
}

#[test]
fn a_zero_checksum_means_none_for_udp_only() {
    let zero = |mut packet: Packet| {
        // The last word gives the sum its required value.
        packet.payload.extend([0, 0]);
        let complete = packet.complete();
        let at = packet.transport_at() + usize::from(packet.piece_vnet().csum_offset);
        let length = packet.payload.len();
        packet.payload[length - 2..].copy_from_slice(&complete[at..at + 2]);
        let mut frame = packet.partial();
        complete_checksum(&packet.piece_vnet(), &mut frame).unwrap();
        assert_eq!(frame, packet.complete());
        [frame[at], frame[at + 1]]
    };
    assert_eq!(zero(Packet::tcp(100, 100)), [0, 0]);
    assert_eq!(zero(Packet::tcp(100, 100).with_udp()), [0xff, 0xff]);
    assert_eq!(zero(Packet::tcp(100, 100).over_ipv6().with_udp()), [0xff, 0xff]);
}

fn refusal(packet: &Packet, vnet: VnetHeader, change: impl FnOnce(&mut Vec<u8>)) -> Option<SplitError> {
    let mut frame = packet.partial();
    change(&mut frame);
    Plan::of(&vnet, &frame).err()
}

#[test]
fn contradictory_segments_are_refused() {
    let packet = Packet::tcp(3000, 1000);
    let vnet = packet.vnet();
    let refused = |vnet| refusal(&packet, vnet, |_| ());
    assert_eq!(refused(vnet), None);
    for (gso_type, error) in [
        (gso::TCPV6, SplitError::Type(gso::TCPV6)),
        (gso::UDP_L4, SplitError::Type(gso::UDP_L4)),
        (gso::UDP, VnetError::FragmentationOffload.into()),
        (2, VnetError::Type(2).into()),
        (gso::UDP_L4 | gso::ECN, VnetError::Type(gso::UDP_L4 | gso::ECN).into()),
    ] {
        assert_eq!(refused(VnetHeader { gso_type, ..vnet }), Some(error));
    }
    for (start, offset) in [(vnet.csum_start, 6), (vnet.csum_start - 4, 16), (vnet.csum_start + 4, 12)] {
        let other = VnetHeader { csum_start: start, csum_offset: offset, ..vnet };
        assert_eq!(refused(other), Some(SplitError::Checksum { start, offset }));
    }
    let checked = VnetHeader { flags: flag::DATA_VALID, ..vnet };
    assert_eq!(refused(checked), Some(VnetError::ChecksumNotPartial.into()));
    assert_eq!(refused(VnetHeader { gso_size: 0, ..vnet }), Some(VnetError::NoSize.into()));
    assert_eq!(refused(VnetHeader { flags: 5, ..vnet }), Some(VnetError::Flags(5).into()));
    for packet in [packet.clone().over_ipv6(), packet.clone().with_udp()] {
        let wrong = VnetHeader { gso_type: gso::TCPV4, ..packet.vnet() };
        assert_eq!(refusal(&packet, wrong, |_| ()), Some(SplitError::Type(gso::TCPV4)));
    }
}

#[test]
fn malformed_headers_are_refused() {
    let packet = Packet::tcp(3000, 1000);
    let (ip, tcp) = (packet.link.len() + 2, packet.transport_at());
    let refused = |change: &dyn Fn(&mut Vec<u8>)| match refusal(&packet, packet.vnet(), change) {
        Some(SplitError::Layout(error)) => error,
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(&|frame| frame[ip - 2] = 0x09), LayoutError::NotIp(0x0900));
    assert_eq!(refused(&|frame| frame[ip] = 0x65), LayoutError::Version);
    assert_eq!(refused(&|frame| frame[ip + 6] = 0x20), LayoutError::Fragment);
    assert_eq!(refused(&|frame| frame[ip + 7] = 1), LayoutError::Fragment);
    assert_eq!(refused(&|frame| frame[ip + 9] = 1), LayoutError::Protocol(1));
    assert_eq!(refused(&|frame| frame[tcp + 12] = 0x40), LayoutError::HeaderLength);
    let datagram = packet.clone().with_udp();
    let short = refusal(&datagram, datagram.vnet(), |frame| frame[ip] = 0x44);
    assert_eq!(short, Some(LayoutError::HeaderLength.into()));
    for length in tcp + 18..tcp + 20 {
        assert_eq!(refused(&|frame| frame.truncate(length)), LayoutError::Short);
    }
    assert_eq!(
        refused(&|frame| {
            frame.truncate(tcp + 20);
            frame[tcp + 12] = 0x60;
        }),
        LayoutError::Short
    );
}

#[test]
fn extension_headers_are_skipped_up_to_a_limit() {
    let with = |count: usize, kind: u8| {
        let mut packet = Packet::tcp(3000, 1000).over_ipv6();
        let Ip::V6 { header, extensions, .. } = &mut packet.ip else { panic!("IPv4") };
        header.next_header = kind.into();
        *extensions = [kind, 0, 0, 0, 0, 0, 0, 0].repeat(count);
        refusal(&packet, packet.vnet(), |_| ())
    };
    assert_eq!(with(8, 60), None);
    assert_eq!(with(9, 60), Some(LayoutError::Extensions.into()));
    assert_eq!(with(1, 44), Some(LayoutError::Fragment.into()));
    assert_eq!(with(1, 51), Some(LayoutError::Protocol(51).into()));
    let packet = Packet::tcp(3000, 1000).over_ipv6();
    let ip = packet.link.len() + 2;
    let refused = refusal(&packet, packet.vnet(), |frame| {
        frame[ip + 6] = 60;
        frame[ip + 40..ip + 42].copy_from_slice(&[6, 0xff]);
        frame.truncate(ip + 500);
    });
    assert_eq!(refused, Some(LayoutError::Short.into()));
    let refused = refusal(&packet, packet.vnet(), |frame| frame[ip] = 0x45);
    assert_eq!(refused, Some(LayoutError::Version.into()));
}

#[test]
fn pieces_are_limited() {
    let packet = |length| Packet::tcp(length, 2);
    let (header, most) = (packet(1).header_length(), 256 * 1024 / packet(1).header_length());
    assert_eq!(split(&packet(2 * most).vnet(), &packet(2 * most).partial()).len(), most);
    let refused = refusal(&packet(2 * most + 1), packet(2 * most + 1).vnet(), |_| ());
    assert_eq!(refused, Some(SplitError::Pieces { pieces: most + 1, header }));
}

#[test]
fn sequence_and_identification_wrap_around() {
    let mut packet = Packet::tcp(5000, 1000);
    packet.tcp_mut().sequence_number = u32::MAX - 1500;
    packet.ipv4_mut().identification = 0xfffe;
    let pieces = split(&packet.vnet(), &packet.partial());
    let Transport::Tcp(last) = &packet.split()[4].transport else { panic!("UDP") };
    assert_eq!(last.sequence_number, 2499);
    assert!(pieces[4].1 == packet.split()[4].partial());
    assert!(merge(&pieces) == [((packet.vnet(), packet.partial()), 5)]);
}
