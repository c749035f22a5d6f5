//! The positions of a frame's headers, found in the frame alone.

use crate::ethernet::{Front, ethertype};

/// The number of IPv6 extension headers that are skipped.
const MOST_EXTENSIONS: usize = 8;

/// The largest total length in an IPv4 header, and the largest payload length in an IPv6 header.
pub(super) const LONGEST: usize = u16::MAX as usize;

/// Bytes of headers without options.
const IPV4_HEADER: usize = 20;
const IPV6_HEADER: usize = 40;
const TCP_HEADER: usize = 20;
const UDP_HEADER: usize = 8;

/// Why the headers of a frame cannot be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// It ends within them.
    #[error("the frame ends within its headers")]
    Short,
    /// It carries this ethertype.
    #[error("ethertype {0:#06x} is not IP")]
    NotIp(u16),
    /// The IP header has another version than the ethertype.
    #[error("the IP header is of another version")]
    Version,
    /// The IP or TCP header claims an impossible length.
    #[error("a header is too short")]
    HeaderLength,
    /// It is a fragment.
    #[error("the datagram is a fragment")]
    Fragment,
    /// It has too many extension headers.
    #[error("more than {MOST_EXTENSIONS} extension headers")]
    Extensions,
    /// It carries this protocol.
    #[error("protocol {0} is neither TCP nor UDP")]
    Protocol(u8),
    /// No IP header could say how long it is.
    #[error("the datagram exceeds the maximum length of IP")]
    Long,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ip {
    V4,
    V6,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transport {
    Tcp,
    Udp,
}

impl Transport {
    /// Where its header has the checksum.
    pub fn checksum_offset(self) -> u16 {
        match self {
            Self::Tcp => 16,
            Self::Udp => super::checksum::UDP_OFFSET,
        }
    }
}

/// Where the headers of a frame begin, and its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub ip: Ip,
    pub ip_at: usize,
    pub transport: Transport,
    pub transport_at: usize,
    pub payload_at: usize,
}

impl Layout {
    /// The layout of `frame`. Its datagram reaches to its end.
    pub fn of(frame: &[u8]) -> Result<Self, LayoutError> {
        let front = Front::of(frame).ok_or(LayoutError::Short)?;
        let ip_at = front.payload;
        let (ip, transport_at, protocol) = match front.ethertype {
            ethertype::IPV4 => ipv4(frame, ip_at)?,
            ethertype::IPV6 => ipv6(frame, ip_at)?,
            other => return Err(LayoutError::NotIp(other)),
        };
        let (transport, payload_at) = transport(frame, transport_at, protocol)?;
        let own = if ip == Ip::V6 { IPV6_HEADER } else { 0 };
        if frame.len() - ip_at > LONGEST + own {
            return Err(LayoutError::Long);
        }
        Ok(Self { ip, ip_at, transport, transport_at, payload_at })
    }
}

/// The `length` bytes from `at` on.
fn header(frame: &[u8], at: usize, length: usize) -> Result<&[u8], LayoutError> {
    frame.get(at..at + length).ok_or(LayoutError::Short)
}

/// The begin and protocol of the payload of the IPv4 header at `at`.
fn ipv4(frame: &[u8], at: usize) -> Result<(Ip, usize, u8), LayoutError> {
    let header = header(frame, at, IPV4_HEADER)?;
    let length = usize::from(header[0] & 0xf) * 4;
    if header[0] >> 4 != 4 {
        return Err(LayoutError::Version);
    }
    if length < IPV4_HEADER {
        return Err(LayoutError::HeaderLength);
    }
    // More fragments follow, or this one is not the first.
    if u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0 {
        return Err(LayoutError::Fragment);
    }
    Ok((Ip::V4, at + length, header[9]))
}

/// The begin and protocol of the payload of the IPv6 header at `at` and its extension headers.
fn ipv6(frame: &[u8], at: usize) -> Result<(Ip, usize, u8), LayoutError> {
    const HOP_BY_HOP: u8 = 0;
    const ROUTING: u8 = 43;
    const FRAGMENT: u8 = 44;
    const DESTINATION: u8 = 60;
    let front = header(frame, at, IPV6_HEADER)?;
    if front[0] >> 4 != 6 {
        return Err(LayoutError::Version);
    }
    let (mut next, mut at) = (front[6], at + IPV6_HEADER);
    for _ in 0..=MOST_EXTENSIONS {
        match next {
            HOP_BY_HOP | ROUTING | DESTINATION => {
                let extension = header(frame, at, 8)?;
                next = extension[0];
                at += (usize::from(extension[1]) + 1) * 8;
            }
            FRAGMENT => return Err(LayoutError::Fragment),
            protocol => return Ok((Ip::V6, at, protocol)),
        }
    }
    Err(LayoutError::Extensions)
}

/// Where the payload behind the header at `at` begins.
fn transport(frame: &[u8], at: usize, protocol: u8) -> Result<(Transport, usize), LayoutError> {
    const TCP: u8 = 6;
    const UDP: u8 = 17;
    match protocol {
        TCP => {
            let length = usize::from(header(frame, at, TCP_HEADER)?[12] >> 4) * 4;
            if length < TCP_HEADER {
                return Err(LayoutError::HeaderLength);
            }
            header(frame, at, length)?;
            Ok((Transport::Tcp, at + length))
        }
        UDP => {
            header(frame, at, UDP_HEADER)?;
            Ok((Transport::Udp, at + UDP_HEADER))
        }
        other => Err(LayoutError::Protocol(other)),
    }
}
