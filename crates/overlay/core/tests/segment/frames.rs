//! Segments made of their parts by etherparse, and the expected result of splitting them, built independently.

use etherparse::checksum::Sum16BitWords;
use etherparse::{IpFragOffset, IpNumber, Ipv4Header, Ipv6Header, TcpHeader};
use fastrand::Rng;
use overlay::segment::VnetHeader;
use overlay::segment::vnet::{flag, gso};

#[derive(Clone, Debug)]
pub enum Ip {
    V4(Ipv4Header),
    /// With the bytes of its extension headers, and the address that a routing header may have besides.
    V6 {
        header: Ipv6Header,
        extensions: Vec<u8>,
        final_destination: [u8; 16],
    },
}

#[derive(Clone, Debug)]
pub enum Transport {
    Tcp(Box<TcpHeader>),
    Udp { ports: [u16; 2] },
}

/// A segment, or a piece.
#[derive(Clone, Debug)]
pub struct Packet {
    /// Ethernet addresses and tags.
    pub link: Vec<u8>,
    pub ip: Ip,
    pub transport: Transport,
    pub payload: Vec<u8>,
    /// Bytes of payload in each piece, and whether CWR is for the first one only.
    pub size: usize,
    pub ecn: bool,
}

impl Packet {
    /// TCP over IPv4, of this many bytes in pieces of `size`.
    pub fn tcp(length: usize, size: usize) -> Self {
        let mut rng = Rng::with_seed(7);
        let mut tcp = TcpHeader::new(4000, 80, 0xffff_ff00, 512);
        (tcp.ack, tcp.acknowledgment_number) = (true, 99);
        let mut packet = Self {
            link: vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2],
            ip: ipv4(&mut rng, false),
            transport: Transport::Tcp(Box::new(tcp)),
            payload: bytes(&mut rng, length),
            size,
            ecn: false,
        };
        packet.link.extend([0x81, 0, 0, 9]);
        packet
    }

    /// The same over IPv6.
    pub fn over_ipv6(self) -> Self {
        Self { ip: ipv6(&mut Rng::with_seed(8), false), ..self }
    }

    /// The same as UDP.
    pub fn with_udp(self) -> Self {
        Self { transport: Transport::Udp { ports: [53, 54] }, ..self }
    }

    pub fn tcp_mut(&mut self) -> &mut TcpHeader {
        match &mut self.transport {
            Transport::Tcp(tcp) => tcp,
            Transport::Udp { .. } => panic!("UDP"),
        }
    }

    pub fn ipv4_mut(&mut self) -> &mut Ipv4Header {
        match &mut self.ip {
            Ip::V4(header) => header,
            Ip::V6 { .. } => panic!("IPv6"),
        }
    }

    /// Any segment: one or both protocols of each layer, 0 to 2 tags, options, extensions, all sizes.
    pub fn any(rng: &mut Rng) -> Self {
        let mut link = bytes(rng, 12);
        for tag in [[0x88, 0xa8], [0x81, 0x00]].iter().skip(rng.usize(..3)) {
            link.extend(tag);
            link.extend(bytes(rng, 2));
        }
        let udp = rng.u8(..3) == 0;
        let ip = if rng.bool() { ipv4(rng, true) } else { ipv6(rng, true) };
        let transport = if udp { Transport::Udp { ports: [rng.u16(..), rng.u16(..)] } } else { tcp(rng) };
        let mut packet = Self { link, ip, transport, payload: Vec::new(), size: 0, ecn: false };
        let most = 65535 - (packet.header_length() - packet.link.len() - 2);
        let length = match rng.u8(..4) {
            0 => rng.usize(1..=most),
            1 => most - rng.usize(..3),
            2 => rng.usize(1..=3000),
            _ => rng.usize(1..=40),
        };
        packet.payload = bytes(rng, length);
        // No more pieces than a plan may have.
        let pieces = 256 * 1024 / packet.header_length();
        packet.size = match rng.u8(..4) {
            0 => 1448,
            1 => rng.usize(1..=100),
            2 => rng.usize(1..=9000),
            _ => rng.usize(1..=length),
        }
        .max(length.div_ceil(pieces));
        if let Transport::Tcp(tcp) = &packet.transport {
            packet.ecn = tcp.cwr && rng.bool();
        }
        packet
    }

    pub fn is_tcp(&self) -> bool {
        matches!(self.transport, Transport::Tcp(_))
    }

    fn ip_length(&self) -> usize {
        match &self.ip {
            Ip::V4(header) => header.header_len(),
            Ip::V6 { extensions, .. } => 40 + extensions.len(),
        }
    }

    fn transport_length(&self) -> usize {
        match &self.transport {
            Transport::Tcp(tcp) => tcp.header_len(),
            Transport::Udp { .. } => 8,
        }
    }

    pub fn transport_at(&self) -> usize {
        self.link.len() + 2 + self.ip_length()
    }

    pub fn header_length(&self) -> usize {
        self.transport_at() + self.transport_length()
    }

    pub fn pieces(&self) -> usize {
        self.payload.len().div_ceil(self.size)
    }

    /// Its header if it is a segment.
    pub fn vnet(&self) -> VnetHeader {
        let ecn = if self.ecn { gso::ECN } else { 0 };
        let gso_type = match (&self.transport, &self.ip) {
            (Transport::Tcp(_), Ip::V4(_)) => gso::TCPV4 | ecn,
            (Transport::Tcp(_), Ip::V6 { .. }) => gso::TCPV6 | ecn,
            (Transport::Udp { .. }, _) => gso::UDP_L4,
        };
        let (hdr_len, gso_size) = (self.header_length() as u16, self.size as u16);
        VnetHeader { gso_type, hdr_len, gso_size, ..self.piece_vnet() }
    }

    /// The header of one of its pieces.
    pub fn piece_vnet(&self) -> VnetHeader {
        let csum_offset = if self.is_tcp() { 16 } else { 6 };
        let csum_start = self.transport_at() as u16;
        VnetHeader { flags: flag::NEEDS_CSUM, csum_start, csum_offset, ..VnetHeader::default() }
    }

    /// Its pieces: the expected headers, payload in chunks.
    pub fn split(&self) -> Vec<Self> {
        let last = self.pieces() - 1;
        let chunks = self.payload.chunks(self.size).enumerate();
        chunks.map(|(index, chunk)| self.piece(index, index == last, chunk)).collect()
    }

    fn piece(&self, index: usize, is_last: bool, payload: &[u8]) -> Self {
        let (link, ip, transport) = (self.link.clone(), self.ip.clone(), self.transport.clone());
        let mut piece =
            Self { link, ip, transport, payload: payload.to_vec(), size: self.size, ecn: self.ecn };
        if let Ip::V4(header) = &mut piece.ip {
            header.identification = header.identification.wrapping_add(index as u16);
        }
        if let Transport::Tcp(tcp) = &mut piece.transport {
            tcp.sequence_number = tcp.sequence_number.wrapping_add((index * self.size) as u32);
            tcp.fin &= is_last;
            tcp.psh &= is_last;
            tcp.cwr &= index == 0 || !self.ecn;
        }
        piece
    }

    /// Its bytes, with the checksum left partial.
    pub fn partial(&self) -> Vec<u8> {
        self.bytes(self.pseudo_sum())
    }

    /// Its bytes, with the checksum complete.
    pub fn complete(&self) -> Vec<u8> {
        let sum = self.pseudo_words().add_slice(&self.transport_bytes(0)).add_slice(&self.payload);
        match sum.ones_complement().to_be() {
            0 if !self.is_tcp() => self.bytes(0xffff),
            checksum => self.bytes(checksum),
        }
    }

    /// The folded sum of its pseudo-header.
    pub fn pseudo_sum(&self) -> u16 {
        !self.pseudo_words().ones_complement().to_be()
    }

    fn pseudo_words(&self) -> Sum16BitWords {
        let length = (self.transport_length() + self.payload.len()) as u16;
        let protocol = if self.is_tcp() { 6 } else { 17 };
        let words = match &self.ip {
            Ip::V4(header) => Sum16BitWords::new().add_4bytes(header.source).add_4bytes(header.destination),
            Ip::V6 { header, final_destination, .. } => {
                Sum16BitWords::new().add_16bytes(header.source).add_16bytes(*final_destination)
            }
        };
        words.add_2bytes([0, protocol]).add_2bytes(length.to_be_bytes())
    }

    fn transport_bytes(&self, checksum: u16) -> Vec<u8> {
        match &self.transport {
            Transport::Tcp(tcp) => TcpHeader { checksum, ..(**tcp).clone() }.to_bytes().to_vec(),
            Transport::Udp { ports } => {
                let length = (8 + self.payload.len()) as u16;
                [ports[0], ports[1], length, checksum].iter().flat_map(|word| word.to_be_bytes()).collect()
            }
        }
    }

    fn bytes(&self, checksum: u16) -> Vec<u8> {
        let mut frame = self.link.clone();
        let length = self.transport_length() + self.payload.len();
        let protocol = if self.is_tcp() { IpNumber::TCP } else { IpNumber::UDP };
        match &self.ip {
            Ip::V4(header) => {
                let mut header = header.clone();
                header.protocol = protocol;
                header.set_payload_len(length).unwrap();
                header.header_checksum = header.calc_header_checksum();
                frame.extend([0x08, 0x00]);
                frame.extend(header.to_bytes());
            }
            Ip::V6 { header, extensions, .. } => {
                let mut header = header.clone();
                let mut extensions = extensions.clone();
                header.payload_length = (extensions.len() + length) as u16;
                set_protocol(&mut header, &mut extensions, protocol);
                frame.extend([0x86, 0xdd]);
                frame.extend(header.to_bytes());
                frame.extend(extensions);
            }
        }
        frame.extend(self.transport_bytes(checksum));
        frame.extend(&self.payload);
        frame
    }
}

/// Makes the last of the headers name the protocol behind it.
fn set_protocol(header: &mut Ipv6Header, extensions: &mut [u8], protocol: IpNumber) {
    let mut at = 0;
    if extensions.is_empty() {
        header.next_header = protocol;
        return;
    }
    loop {
        let next = at + (usize::from(extensions[at + 1]) + 1) * 8;
        if next == extensions.len() {
            extensions[at] = protocol.0;
            return;
        }
        at = next;
    }
}

fn bytes(rng: &mut Rng, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    rng.fill(&mut bytes);
    bytes
}

fn ipv4(rng: &mut Rng, with_options: bool) -> Ip {
    let mut header = Ipv4Header::new(0, 64, IpNumber::TCP, [10, 0, 0, 1], [10, 0, 0, 2]).unwrap();
    header.source = rng.u32(..).to_be_bytes();
    header.destination = rng.u32(..).to_be_bytes();
    header.time_to_live = rng.u8(..);
    header.identification = if rng.bool() { 0xfff0 | rng.u16(..) } else { rng.u16(..) };
    header.dont_fragment = rng.bool();
    header.fragment_offset = IpFragOffset::ZERO;
    if with_options && rng.bool() {
        let words = rng.usize(..=10);
        header.options = bytes(rng, words * 4).as_slice().try_into().unwrap();
    }
    Ip::V4(header)
}

fn ipv6(rng: &mut Rng, with_extensions: bool) -> Ip {
    const KINDS: [u8; 3] = [0, 60, 43];
    let mut address = || rng.u128(..).to_be_bytes();
    let (source, destination, mut final_destination) = (address(), address(), address());
    let mut header = Ipv6Header { source, destination, hop_limit: rng.u8(..), ..Ipv6Header::default() };
    header.flow_label = (rng.u32(..) & 0xf_ffff).try_into().unwrap();
    let kinds = if with_extensions && rng.bool() { &KINDS[..rng.usize(..=3)] } else { &[] };
    let mut extensions = Vec::new();
    for (index, _) in kinds.iter().enumerate() {
        let units = rng.u8(..4);
        extensions.extend([kinds.get(index + 1).copied().unwrap_or(0), units]);
        extensions.extend(bytes(rng, usize::from(units) * 8 + 6));
    }
    header.next_header = IpNumber(kinds.first().copied().unwrap_or(0));
    if kinds.len() < 3 {
        final_destination = destination;
    }
    Ip::V6 { header, extensions, final_destination }
}

/// TCP with any options, and flags that a segment of data may have.
fn tcp(rng: &mut Rng) -> Transport {
    let mut tcp = TcpHeader::new(rng.u16(..), rng.u16(..), rng.u32(..), rng.u16(..));
    tcp.acknowledgment_number = rng.u32(..);
    tcp.ack = true;
    (tcp.fin, tcp.psh, tcp.cwr, tcp.ece, tcp.ns) =
        (rng.bool(), rng.bool(), rng.bool(), rng.bool(), rng.bool());
    let words = rng.usize(..=10);
    tcp.set_options_raw(&bytes(rng, words * 4)).unwrap();
    Transport::Tcp(Box::new(tcp))
}
