//! Segments of instances, and pieces of them from other nodes.

use etherparse::PacketBuilder;
use overlay::ethernet::Front;
use overlay::segment::merge::{MOST_HEADER, MOST_PIECES};
use overlay::segment::vnet::{LENGTH, flag, gso};
use overlay::segment::{Merger, Plan, VnetHeader, complete_checksum};

use crate::input::Input;

type Frame = (VnetHeader, Vec<u8>);

/// Frames of a script, about: one more segment may be cut.
const ENOUGH: usize = 256;

const CWR: u8 = 0x80;
const SYN_RST_URG: u8 = 0x26;

/// Splits segments that a TAP may hand over, and merges them again.
///
/// # Panics
/// If the result differs from the original.
pub fn split(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let vnet = vnet(&mut input);
    let longer = input.word() & 0xffff;
    let mut frame = input.rest().to_vec();
    frame.extend((0..longer).map(|at| at as u8));
    let _ = complete_checksum(&vnet, &mut frame.clone());
    let Ok(plan) = Plan::of(&vnet, &frame) else { return };
    let pieces = pieces(&plan, &frame);
    for (vnet, piece) in &pieces {
        assert_eq!(complete_checksum(vnet, &mut piece.clone()), Ok(()));
    }
    let merged = merge(&pieces);
    given_back(&pieces, &merged);
    if vnet.is_segment() && pieces.len() <= MOST_PIECES && can_be_merged(&vnet, &frame) {
        let whole = if pieces.len() > 1 { normal_vnet(&vnet, &frame) } else { plan.piece_vnet() };
        assert_eq!(merged, [((whole, normal(&vnet, frame)), pieces.len())]);
    }
}

/// Merges frames that another node may send, and splits them again.
///
/// # Panics
/// If the result differs from the original.
pub fn merging(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut frames: Vec<Frame> = Vec::new();
    while !input.is_empty() && frames.len() < ENOUGH {
        act(&mut input, &mut frames);
    }
    given_back(&frames, &merge(&frames));
}

fn act(input: &mut Input<'_>, frames: &mut Vec<Frame>) {
    let action = input.below(6);
    if frames.is_empty() || action == 0 {
        let (vnet, frame) = segment(input);
        if let Ok(plan) = Plan::of(&vnet, &frame) {
            frames.extend(pieces(&plan, &frame));
        }
        return;
    }
    let at = input.below(frames.len());
    match action {
        1 => frames.push((vnet(input), input.bytes().to_vec())),
        2 => frames.swap(at, 0),
        3 => frames.push(frames[at].clone()),
        _ => change(input, &mut frames[at]),
    }
}

/// Changes a byte, or the length.
fn change(input: &mut Input<'_>, (vnet, frame): &mut Frame) {
    let mut header = vnet.encode();
    let (at, byte) = (usize::from(input.byte()), input.byte());
    match at.checked_sub(LENGTH) {
        None => header[at] = byte,
        Some(at) if at < frame.len() => frame[at] = byte,
        Some(_) => frame.resize(usize::from(byte), 0),
    }
    *vnet = VnetHeader::decode(&header);
}

fn vnet(input: &mut Input<'_>) -> VnetHeader {
    VnetHeader::decode(&std::array::from_fn(|_| input.byte()))
}

/// A segment of a kind and with numbers that the script chooses.
fn segment(input: &mut Input<'_>) -> Frame {
    let (kind, flags, number) = (input.byte(), input.byte(), u32::from(input.byte()));
    let (size, length) = (u16::from(input.byte()) + 1, usize::from(input.byte()) * 8 + 1);
    let (vnet, mut frame) = made(kind, number, &vec![kind; length]);
    if kind & 1 == 0 {
        frame[usize::from(vnet.csum_start) + 13] = flags;
    }
    (VnetHeader { gso_size: size, ..vnet }, frame)
}

/// TCP or UDP (bit 0) over IPv4 or IPv6 (bit 1), with a tag (bit 2), with TCP's options (bit 3), with one of IPv6's
/// extensions (bit 4). A sum is a sum: that it is the pseudo-header's is not looked at.
fn made(kind: u8, number: u32, payload: &[u8]) -> Frame {
    let is = |bit: u8| kind & bit != 0;
    let mut frame = packet(kind, number, payload);
    let mut csum_start = 14 + if is(2) { 40 } else { 20 };
    if is(16) && is(2) {
        extend(&mut frame);
        csum_start += 8;
    }
    if is(4) {
        frame.splice(12..12, [0x81, 0, 0, 9]);
        csum_start += 4;
    }
    let gso_type = if is(1) { gso::UDP_L4 } else { [gso::TCPV4, gso::TCPV6][usize::from(is(2))] };
    let csum_offset = if is(1) { 6 } else { 16 };
    (VnetHeader { gso_type, ..VnetHeader::partial(csum_start, csum_offset) }, frame)
}

fn packet(kind: u8, number: u32, payload: &[u8]) -> Vec<u8> {
    let link = PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
    let is = |bit: u8| kind & bit != 0;
    let ip =
        if is(2) { link.ipv6([1; 16], [2; 16], 64) } else { link.ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64) };
    let options: &[u8] = if is(8) { &[1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2] } else { &[] };
    let mut frame = Vec::new();
    let written = if is(1) {
        ip.udp(53, 54).write(&mut frame, payload)
    } else {
        let tcp = ip.tcp(80, 4000, number, 512).ack(7).options_raw(options).expect("they are short");
        tcp.write(&mut frame, payload)
    };
    written.expect("a vector takes all");
    frame
}

/// Puts destination options behind the IPv6 header.
fn extend(frame: &mut Vec<u8>) {
    let protocol = std::mem::replace(&mut frame[14 + 6], 60);
    let length = frame.len() - 14 - 40 + 8;
    put(frame, 14 + 4, length);
    frame.splice(14 + 40..14 + 40, [protocol, 0, 1, 4, 0, 0, 0, 0]);
}

fn pieces(plan: &Plan, frame: &[u8]) -> Vec<Frame> {
    let mut pieces = Vec::new();
    for index in 0..plan.pieces() {
        let mut piece = vec![0; plan.piece_length(index)];
        assert_eq!(plan.write_piece(index, frame, &mut piece), piece.len());
        assert!(index == 0 || piece.len() <= pieces.first().map_or(0, |(_, first): &Frame| first.len()));
        pieces.push((plan.piece_vnet(), piece));
    }
    pieces
}

/// The output, and the number of frames in each merged segment.
fn merge(frames: &[Frame]) -> Vec<(Frame, usize)> {
    let (mut merger, mut merged) = (Merger::default(), Vec::new());
    for (vnet, frame) in frames {
        if !merger.push(*vnet, frame) {
            merged.extend(written(&mut merger));
            assert!(merger.push(*vnet, frame), "after a segment was taken all is taken");
        }
    }
    merged.extend(written(&mut merger));
    merged
}

fn written(merger: &mut Merger<'_>) -> Option<(Frame, usize)> {
    let segment = merger.take()?;
    let frame = [&[segment.header], segment.payloads].concat().concat();
    Some(((segment.vnet, frame), segment.payloads.len().max(1)))
}

/// A merged segment splits into its frames; other frames are unchanged.
fn given_back(frames: &[Frame], merged: &[(Frame, usize)]) {
    let mut rest = frames;
    for ((vnet, frame), count) in merged {
        let (from, behind) = rest.split_at(*count);
        if let [(alone, bytes)] = from {
            assert_eq!((vnet, frame), (alone, bytes));
        } else {
            let plan = Plan::of(vnet, frame).expect("a merged frame can be split");
            assert!(pieces(&plan, frame) == from);
        }
        rest = behind;
    }
    assert!(rest.is_empty());
}

/// Bytes of all headers of a segment that can be split.
fn header_length(vnet: &VnetHeader, frame: &[u8]) -> usize {
    let transport = usize::from(vnet.csum_start);
    let own = if vnet.gso_type == gso::UDP_L4 { 8 } else { usize::from(frame[transport + 12] >> 4) * 4 };
    transport + own
}

fn can_be_merged(vnet: &VnetHeader, frame: &[u8]) -> bool {
    let flags = if vnet.gso_type == gso::UDP_L4 { 0 } else { frame[usize::from(vnet.csum_start) + 13] };
    let datagram = frame.len() - Front::of(frame).map_or(0, |front| front.payload);
    flags & SYN_RST_URG == 0 && datagram <= 65535 && header_length(vnet, frame) <= MOST_HEADER
}

/// `vnet` with the fields that may be false.
fn normal_vnet(vnet: &VnetHeader, frame: &[u8]) -> VnetHeader {
    let hdr_len = header_length(vnet, frame) as u16;
    let is_ecn = vnet.gso_type & gso::ECN != 0 && frame[usize::from(vnet.csum_start) + 13] & CWR != 0;
    let ecn = if is_ecn { gso::ECN } else { 0 };
    VnetHeader { flags: flag::NEEDS_CSUM, gso_type: vnet.gso_type & !gso::ECN | ecn, hdr_len, ..*vnet }
}

/// `frame` with lengths and the IPv4 checksum as they should be, and a sum of 0 as ones' complement also has it.
fn normal(vnet: &VnetHeader, mut frame: Vec<u8>) -> Vec<u8> {
    let (ip, transport) = (Front::of(&frame).map_or(0, |front| front.payload), usize::from(vnet.csum_start));
    let (datagram, segment) = (frame.len() - ip, frame.len() - transport);
    if frame[ip] >> 4 == 4 {
        put(&mut frame, ip + 2, datagram);
        put(&mut frame, ip + 10, 0);
        let words = frame[ip..transport].chunks(2);
        let sum: usize = words.map(|word| usize::from(word[0]) << 8 | usize::from(word[1])).sum();
        // The first word is not 0, and so the folded sum is not 0 either.
        put(&mut frame, ip + 10, !((sum - 1) % 0xffff + 1));
    } else {
        put(&mut frame, ip + 4, datagram - 40);
    }
    if vnet.gso_type == gso::UDP_L4 {
        put(&mut frame, transport + 4, segment);
    }
    let sum = transport + usize::from(vnet.csum_offset);
    if frame[sum..sum + 2] == [0, 0] {
        put(&mut frame, sum, 0xffff);
    }
    frame
}

fn put(frame: &mut [u8], at: usize, word: usize) {
    frame[at..at + 2].copy_from_slice(&(word as u16).to_be_bytes());
}

/// A segment of each kind.
#[must_use]
pub fn split_seeds() -> Vec<Vec<u8>> {
    let seed = |kind: u8| {
        let (vnet, frame) = made(kind, u32::MAX - 9, &[kind; 40]);
        let gso_size = 7 + 30 * u16::from(kind & 1);
        let vnet = VnetHeader { gso_size, ..vnet };
        [&vnet.encode()[..], &u32::from(kind & 4).to_le_bytes(), &frame].concat()
    };
    (0..32).map(seed).collect()
}

/// Segments of each kind, cut and changed.
#[must_use]
pub fn merge_seeds() -> Vec<Vec<u8>> {
    let cut = |kind: u8| [0, kind, 0x10, 1, 9, 4];
    let changed = [5, 1, 60, 1];
    let other = [1, 0, 1, 0, 0, 0, 0, 0, 4, 0, 2, 0, 6, 1, 2, 3, 4, 5, 6];
    let with_changes = |kind: u8| [&cut(kind)[..], &changed, &cut(kind), &[3, 2], &other, &[2, 1]].concat();
    // CWR in the first and third, and in the second piece.
    let cwr = |piece: u8| [4, piece, LENGTH as u8 + 34 + 13, 0x90];
    let twice = [&cut(0)[..], &cwr(0), &cwr(2)].concat();
    let late = [&cut(0)[..], &cwr(1)].concat();
    let all = (0..32).map(with_changes).chain((0..32).map(|kind| cut(kind).to_vec()));
    all.chain([twice, late]).collect()
}
