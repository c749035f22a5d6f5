//! The header fields that differ between a segment and its pieces.
//!
//! | Header | Of a piece |
//! |---|---|
//! | IPv4 | total length; identification, one more with each piece; header checksum |
//! | IPv6 | payload length |
//! | TCP | sequence number; FIN, PSH and CWR, which splitting and merging handle themselves |
//! | UDP | length |
//! | both | the sum of the pseudo-header, which has the length in it |

use super::checksum::{fold, sum};
use super::layout::{Ip, Layout, Transport};

/// Bits of TCP's flags.
pub(super) mod tcp {
    pub const FIN: u8 = 0x01;
    pub const SYN: u8 = 0x02;
    pub const RST: u8 = 0x04;
    pub const PSH: u8 = 0x08;
    pub const URG: u8 = 0x20;
    pub const CWR: u8 = 0x80;
    /// The fields that only a segment's last piece has.
    pub const ENDS: u8 = FIN | PSH;
}

/// The header fields of one piece.
#[derive(Clone, Copy)]
pub(super) struct Part {
    /// Which piece it is, or the first one of.
    pub index: usize,
    /// Bytes of the segment's payload before it.
    pub offset: usize,
    /// Bytes of payload.
    pub length: usize,
}

/// The parts of a header that are computed once for all edits of its copies.
#[derive(Clone, Copy)]
pub(super) struct Edit {
    pub layout: Layout,
    /// IPv4's identification.
    id: u16,
    /// The sum of the IPv4 header without the edited fields.
    ip_sum: u64,
    /// TCP's sequence number.
    sequence: u32,
    /// The sum of the pseudo-header without the length. It is taken from the frame: with a routing header the addresses
    /// in it are not those of the IP header.
    pseudo: u16,
}

impl Edit {
    /// The values for the header of `frame`, which has this layout.
    pub fn of(frame: &[u8], layout: Layout) -> Self {
        let ip = &frame[layout.ip_at..layout.transport_at];
        let transport = &frame[layout.transport_at..];
        let checksum = word(transport, usize::from(layout.transport.checksum_offset()));
        Self {
            layout,
            id: word(ip, 4),
            ip_sum: sum(&ip[..2]) + sum(&ip[6..10]) + sum(&ip[12..]),
            sequence: u32::from(word(transport, 4)) << 16 | u32::from(word(transport, 6)),
            pseudo: fold(u64::from(checksum) + u64::from(!short(transport.len()))),
        }
    }

    /// Where TCP has its flags; UDP has none.
    pub fn flags_at(&self) -> Option<usize> {
        (self.layout.transport == Transport::Tcp).then_some(self.layout.transport_at + 13)
    }

    /// Makes `header`, a copy of the frame's, that of `part`.
    pub fn write(&self, header: &mut [u8], part: Part) {
        let (ip, transport) = header.split_at_mut(self.layout.transport_at);
        let ip = &mut ip[self.layout.ip_at..];
        let length = transport.len() + part.length;
        match self.layout.ip {
            Ip::V4 => self.write_ipv4(ip, length, part.index),
            Ip::V6 => put(ip, 4, short(ip.len() - 40 + length)),
        }
        match self.layout.transport {
            Transport::Tcp => {
                let sequence = self.sequence.wrapping_add(part.offset as u32);
                transport[4..8].copy_from_slice(&sequence.to_be_bytes());
            }
            Transport::Udp => put(transport, 4, short(length)),
        }
        let pseudo = fold(u64::from(self.pseudo) + u64::from(short(length)));
        put(transport, usize::from(self.layout.transport.checksum_offset()), pseudo);
    }

    fn write_ipv4(&self, ip: &mut [u8], length: usize, index: usize) {
        let (total, id) = (short(ip.len() + length), self.id.wrapping_add(short(index)));
        put(ip, 2, total);
        put(ip, 4, id);
        put(ip, 10, !fold(self.ip_sum + u64::from(total) + u64::from(id)));
    }
}

fn word(header: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([header[at], header[at + 1]])
}

fn put(header: &mut [u8], at: usize, word: u16) {
    header[at..at + 2].copy_from_slice(&word.to_be_bytes());
}

/// A length or a number of pieces that no datagram with a layout exceeds.
fn short(number: usize) -> u16 {
    number as u16
}
