//! Checks whether a frame is as its device claims.

use super::checksum::{fold, sum};
use super::layout::{Ip, Layout, Transport};
use super::split::Plan;
use super::vnet::VnetHeader;

/// False if `frame` contradicts `vnet`, which came with it: its pieces cannot be found, or its TCP or UDP checksum is
/// neither complete nor a correct partial one.
///
/// True for all frames that cannot be checked, such as fragments and encapsulated ones.
#[must_use]
pub fn matches_claims(vnet: &VnetHeader, frame: &[u8]) -> bool {
    let is_cut = Plan::of(vnet, frame).is_ok();
    let checksum = Layout::of(frame).ok().and_then(|layout| Checksum::of(frame, layout));
    is_cut && checksum.is_none_or(|checksum| checksum.matches_claims(vnet))
}

/// The checksum of a datagram, and its coverage.
struct Checksum<'a> {
    layout: Layout,
    /// The sum of the pseudo-header.
    pseudo: u64,
    /// TCP or UDP, with its payload.
    transport: &'a [u8],
}

impl<'a> Checksum<'a> {
    /// `None` if the datagram is not whole, or where the addresses of its pseudo-header are is not known.
    fn of(frame: &'a [u8], layout: Layout) -> Option<Self> {
        let ip = &frame[layout.ip_at..];
        let (header, addresses, end) = match layout.ip {
            Ip::V4 => (layout.transport_at - layout.ip_at, 12..20, word(ip, 2)),
            Ip::V6 => (40, 8..40, 40 + word(ip, 4)),
        };
        // Behind further headers it may have other addresses. Short frames are filled up behind their datagrams.
        let is_plain = layout.transport_at == layout.ip_at + header;
        let reaches = layout.ip_at + end >= layout.payload_at;
        let transport = ip.get(header..end).filter(|_| is_plain && reaches)?;
        let protocol = match layout.transport {
            Transport::Tcp => 6,
            Transport::Udp => 17,
        };
        let pseudo = sum(&ip[addresses]) + protocol + transport.len() as u64;
        Some(Self { layout, pseudo, transport })
    }

    fn matches_claims(&self, vnet: &VnetHeader) -> bool {
        let at = self.layout.transport.checksum_offset();
        let stored = word(self.transport, usize::from(at));
        let is_its = (usize::from(vnet.csum_start), vnet.csum_offset) == (self.layout.transport_at, at);
        let has_none = self.layout.transport == Transport::Udp && stored == 0;
        match vnet.needs_checksum() {
            true => !is_its || is_same(stored as u16, fold(self.pseudo)),
            false => has_none || fold(self.pseudo + sum(self.transport)) == u16::MAX,
        }
    }
}

/// In ones' complement 0 has two forms.
fn is_same(one: u16, other: u16) -> bool {
    one == other || [one, other].iter().all(|word| [0, u16::MAX].contains(word))
}

fn word(bytes: &[u8], at: usize) -> usize {
    usize::from(u16::from_be_bytes([bytes[at], bytes[at + 1]]))
}

#[cfg(test)]
mod tests {
    use super::super::complete_checksum;
    use super::super::vnet::gso;
    use super::*;

    const MACS: [u8; 12] = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];

    /// A frame with a partial checksum, and its header.
    fn frame(ip: Ip, transport: Transport, payload: usize, tag: bool) -> (VnetHeader, Vec<u8>) {
        let (protocol, mut segment) = match transport {
            Transport::Tcp => {
                (6, [vec![0x1f, 0x90, 0, 80], vec![0; 8], vec![0x50, 0x10], vec![0; 6]].concat())
            }
            Transport::Udp => (17, vec![0x1f, 0x90, 0, 80, 0, 0, 0, 0]),
        };
        segment.extend((0..payload).map(|at| (at * 7) as u8));
        let length = (segment.len() as u16).to_be_bytes();
        if transport == Transport::Udp {
            segment[4..6].copy_from_slice(&length);
        }
        let (ethertype, header, addresses) = match ip {
            Ip::V4 => {
                let total = (20 + segment.len() as u16).to_be_bytes();
                let rest = [0, 1, 0, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
                ([8, 0], [&[0x45, 0][..], &total, &rest].concat(), 12..20)
            }
            Ip::V6 => {
                let addresses: Vec<u8> = (0..32).collect();
                let front = [0x60, 0, 0, 0, length[0], length[1], protocol, 64];
                ([0x86, 0xdd], [&front[..], &addresses].concat(), 8..40)
            }
        };
        let at = usize::from(transport.checksum_offset());
        let pseudo = fold(sum(&header[addresses]) + u64::from(protocol) + segment.len() as u64);
        segment[at..at + 2].copy_from_slice(&pseudo.to_be_bytes());
        let tag: &[u8] = if tag { &[0x81, 0, 0, 7] } else { &[] };
        let front = [&MACS[..], tag, &ethertype, &header].concat();
        let vnet = VnetHeader::partial(front.len() as u16, at as u16);
        (vnet, [front, segment].concat())
    }

    fn each() -> impl Iterator<Item = (VnetHeader, Vec<u8>)> {
        let kinds = [Ip::V4, Ip::V6].into_iter().flat_map(|ip| [(ip, Transport::Tcp), (ip, Transport::Udp)]);
        let lengths = kinds.flat_map(|kind| [0, 1, 2, 999, 1000].map(|length| (kind, length)));
        lengths
            .flat_map(|((ip, transport), length)| [false, true].map(|tag| frame(ip, transport, length, tag)))
    }

    #[test]
    fn correct_claims_are_confirmed() {
        for (vnet, mut frame) in each() {
            assert!(matches_claims(&vnet, &frame), "{vnet:?}");
            complete_checksum(&vnet, &mut frame).unwrap();
            assert!(matches_claims(&VnetHeader::default(), &frame), "{vnet:?}");
            // As short frames are.
            frame.extend([0; 9]);
            assert!(matches_claims(&VnetHeader::default(), &frame), "{vnet:?}");
        }
    }

    #[test]
    fn a_checksum_that_is_wrong_is_noticed() {
        for (vnet, frame) in each() {
            assert!(!matches_claims(&VnetHeader::default(), &frame), "the checksum is not completed later");
            let at = usize::from(vnet.csum_start + vnet.csum_offset);
            let mut other = frame.clone();
            other[at] ^= 0x40;
            assert!(!matches_claims(&vnet, &other), "it was wrongly begun");
            let mut other = frame.clone();
            complete_checksum(&vnet, &mut other).unwrap();
            let last = other.len() - 1;
            other[last] ^= 1;
            let has_payload = last >= usize::from(vnet.csum_start) + 20;
            assert!(!has_payload || !matches_claims(&VnetHeader::default(), &other));
        }
    }

    #[test]
    fn a_wrong_segment_claim_is_noticed() {
        let (vnet, frame) = frame(Ip::V4, Transport::Tcp, 3000, false);
        let segment = VnetHeader { gso_type: gso::TCPV4, gso_size: 1000, ..vnet };
        assert!(matches_claims(&segment, &frame));
        for wrong in [
            VnetHeader { gso_type: gso::UDP_L4, ..segment },
            VnetHeader { gso_type: gso::TCPV6, ..segment },
            VnetHeader { gso_size: 0, ..segment },
            VnetHeader { gso_type: 9, ..segment },
            VnetHeader { flags: 0, ..segment },
            VnetHeader { csum_start: 12, ..segment },
        ] {
            assert!(!matches_claims(&wrong, &frame), "{wrong:?}");
        }
    }

    #[test]
    fn unknown_protocols_give_no_verdict() {
        let (vnet, whole) = frame(Ip::V4, Transport::Tcp, 100, false);
        // Another protocol, a fragment, a datagram that is cut off, a checksum that is of something within.
        let changed = |at: usize, byte: u8| {
            let mut frame = whole.clone();
            frame[at] = byte;
            frame
        };
        for (vnet, frame) in [
            (VnetHeader::default(), changed(23, 47)),
            (VnetHeader::default(), changed(20, 0x20)),
            (VnetHeader::default(), whole[..whole.len() - 1].to_vec()),
            (VnetHeader::default(), vec![0; 60]),
            (VnetHeader::default(), Vec::new()),
            (VnetHeader::partial(60, 6), whole.clone()),
        ] {
            assert!(matches_claims(&vnet, &frame), "{vnet:?}");
        }
        assert!(matches_claims(&vnet, &whole));
    }

    #[test]
    fn no_bytes_make_it_panic() {
        let mut rng = fastrand::Rng::with_seed(9);
        let frames: Vec<_> = each().collect();
        for _ in 0..200_000 {
            let (mut vnet, mut frame) = frames[rng.usize(..frames.len())].clone();
            frame.truncate(rng.usize(..=frame.len()));
            for _ in 0..rng.usize(..4) {
                if let Some(byte) = frame.get_mut(rng.usize(..80)) {
                    *byte = rng.u8(..);
                }
            }
            if rng.bool() {
                vnet = VnetHeader::decode(&std::array::from_fn(|_| rng.u8(..)));
            }
            let _ = matches_claims(&vnet, &frame);
        }
    }
}
