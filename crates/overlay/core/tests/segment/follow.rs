//! Which frames are merged, against rules that are applied to headers as etherparse reads them.

use etherparse::{Ipv4Header, NetHeaders, PacketHeaders, TcpHeader, TransportHeader};
use fastrand::Rng;

use crate::frames::{Ip, Packet, Transport};
use crate::{Frame, assert_given_back, merge};

/// A frame as etherparse reads it.
struct Read<'a> {
    headers: PacketHeaders<'a>,
    payload: &'a [u8],
}

impl<'a> Read<'a> {
    fn of(frame: &'a [u8]) -> Option<Self> {
        let headers = PacketHeaders::from_ethernet_slice(frame).ok()?;
        let payload = headers.payload.slice();
        Some(Self { headers, payload })
    }

    fn ipv4(&self) -> Option<&Ipv4Header> {
        match self.headers.net.as_ref()? {
            NetHeaders::Ipv4(header, _) => Some(header),
            _ => None,
        }
    }

    fn tcp(&self) -> Option<TcpHeader> {
        self.headers.transport.clone()?.tcp()
    }

    /// The headers without the fields that may differ.
    fn same(&self) -> impl PartialEq {
        let (mut net, mut transport) = (self.headers.net.clone(), self.headers.transport.clone());
        match &mut net {
            Some(NetHeaders::Ipv4(header, _)) => {
                (header.total_len, header.identification, header.header_checksum) = (0, 0, 0);
            }
            Some(NetHeaders::Ipv6(header, _)) => header.payload_length = 0,
            _ => {}
        }
        match &mut transport {
            Some(TransportHeader::Tcp(tcp)) => {
                (tcp.sequence_number, tcp.checksum, tcp.cwr, tcp.fin, tcp.psh) = (0, 0, false, false, false);
            }
            Some(TransportHeader::Udp(udp)) => (udp.length, udp.checksum) = (0, 0),
            _ => {}
        }
        (self.headers.link.clone(), self.headers.link_exts.clone(), net, transport)
    }

    fn ends(&self) -> bool {
        self.tcp().is_some_and(|tcp| tcp.fin || tcp.psh)
    }
}

/// True if `next` continues the segment that these frames are pieces of.
fn goes_on(segment: &[Frame], next: &Frame) -> bool {
    let pieces: Option<Vec<Read<'_>>> = segment.iter().map(|frame| Read::of(&frame.1)).collect();
    let (Some(pieces), Some(next)) = (pieces, Read::of(&next.1)) else { return false };
    let (first, last) = (&pieces[0], &pieces[pieces.len() - 1]);
    let size = first.payload.len();
    let bytes: usize = pieces.iter().map(|piece| piece.payload.len()).sum();
    pieces.len() < 64
        && first.same() == next.same()
        && last.payload.len() == size
        && (1..=size).contains(&next.payload.len())
        && pieces.iter().all(|piece| !piece.ends())
        && segment[0].1.len() - size + bytes + next.payload.len() - (link(first)) <= 65535
        && numbers_go_on(&pieces, &next, bytes)
        && flags_go_on(&pieces, &next)
}

fn link(read: &Read<'_>) -> usize {
    14 + 4 * read.headers.link_exts.len()
}

fn numbers_go_on(pieces: &[Read<'_>], next: &Read<'_>, bytes: usize) -> bool {
    let ids = pieces[0].ipv4().zip(next.ipv4()).is_none_or(|(first, next)| {
        next.identification == first.identification.wrapping_add(pieces.len() as u16)
    });
    let sequences = pieces[0]
        .tcp()
        .zip(next.tcp())
        .is_none_or(|(first, next)| next.sequence_number == first.sequence_number.wrapping_add(bytes as u32));
    ids && sequences
}

fn flags_go_on(pieces: &[Read<'_>], next: &Read<'_>) -> bool {
    let cwr: Vec<bool> = pieces.iter().filter_map(|piece| Some(piece.tcp()?.cwr)).collect();
    match (&cwr[..], next.tcp()) {
        (_, None) => true,
        ([first], Some(next)) => *first || !next.cwr,
        ([.., last], Some(next)) => *last == next.cwr,
        ([], Some(_)) => false,
    }
}

/// Pieces of a few segments, some of them changed, lost, repeated or out of order.
fn stream(rng: &mut Rng) -> Vec<Frame> {
    let mut pieces = Vec::new();
    while pieces.len() < 40 {
        let mut packet = Packet::any(rng);
        packet.payload.truncate(rng.usize(1..=packet.payload.len().min(4 * packet.size)));
        pieces.extend(packet.split());
    }
    pieces.truncate(200);
    for _ in 0..rng.usize(..6) {
        let (a, b) = (rng.usize(..pieces.len()), rng.usize(..pieces.len()));
        match rng.u8(..6) {
            0 => drop(pieces.remove(a)),
            1 => pieces.insert(b, pieces[a].clone()),
            2 => pieces.swap(a, b),
            _ => change(rng, &mut pieces[a]),
        }
    }
    pieces.iter().map(|piece| (piece.piece_vnet(), piece.partial())).collect()
}

fn change(rng: &mut Rng, piece: &mut Packet) {
    match (&mut piece.ip, rng.u8(..6)) {
        (_, 0) => piece.link[11] ^= 1,
        (_, 1) => piece.payload.truncate(1),
        (Ip::V4(header), 2) => header.time_to_live ^= 1,
        (Ip::V4(header), 3) => header.identification = header.identification.wrapping_add(1),
        (Ip::V6 { header, .. }, 2) => header.hop_limit ^= 1,
        (Ip::V6 { header, .. }, 3) => header.traffic_class ^= 1,
        _ => change_transport(rng, &mut piece.transport),
    }
}

fn change_transport(rng: &mut Rng, transport: &mut Transport) {
    match transport {
        Transport::Udp { ports } => ports[0] ^= 1,
        Transport::Tcp(tcp) => match rng.u8(..6) {
            0 => tcp.sequence_number ^= 1,
            1 => tcp.window_size ^= 1,
            2 => tcp.cwr ^= true,
            3 => tcp.psh ^= true,
            4 => tcp.ece ^= true,
            _ => tcp.acknowledgment_number ^= 1,
        },
    }
}

#[test]
fn frames_are_merged_by_the_rules() {
    let mut together = 0;
    for seed in 0..1000 {
        let frames = stream(&mut Rng::with_seed(seed));
        let merged = merge(&frames);
        assert_given_back(&frames, &merged);
        let mut begin = 0;
        for (_, count) in merged {
            let end = begin + count;
            for next in begin + 1..end {
                assert!(goes_on(&frames[begin..next], &frames[next]), "seed {seed}, frame {next}");
            }
            let refused = frames.get(end).is_none_or(|next| !goes_on(&frames[begin..end], next));
            assert!(refused, "seed {seed}, frame {end}");
            together += usize::from(count > 1);
            begin = end;
        }
    }
    assert!(together > 2000, "{together}");
}
