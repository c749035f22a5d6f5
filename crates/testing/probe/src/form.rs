//! The packets of a prober: numbers in UDP datagrams, or in ICMP echo requests.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SocketType, connect, ipproto, socket};

const REQUEST: u8 = 8;
const REPLY: u8 = 0;

/// The length of the IP header before a reply.
const IP_HEADER: usize = 20;

/// How a number becomes a packet, and an answer a number; other packets have none.
#[derive(Debug)]
pub struct Form {
    pub encode: fn(u64) -> Vec<u8>,
    pub decode: fn(&[u8]) -> Option<u64>,
}

pub const UDP: Form = Form {
    encode: |number| number.to_be_bytes().into(),
    decode: |packet| packet.try_into().ok().map(u64::from_be_bytes),
};

pub const ECHO: Form = Form { encode: request, decode: answered };

/// A socket for echo requests to `target`.
pub fn echo_socket(target: Ipv4Addr) -> io::Result<OwnedFd> {
    let made = socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::ICMP))?;
    connect(&made, &SocketAddrV4::new(target, 0))?;
    Ok(made)
}

/// The number is in the data: the field for it has only 16 bits.
fn request(number: u64) -> Vec<u8> {
    let mut packet = [0; 16];
    packet[0] = REQUEST;
    packet[8..].copy_from_slice(&number.to_be_bytes());
    let checksum = checksum(&packet);
    packet[2..4].copy_from_slice(&checksum.to_be_bytes());
    packet.into()
}

/// A reply begins with its IP header.
fn answered(packet: &[u8]) -> Option<u64> {
    let packet = packet.get(IP_HEADER..)?;
    let number = packet.get(8..16)?.try_into().ok()?;
    (packet[0] == REPLY).then(|| u64::from_be_bytes(number))
}

/// The Internet checksum of a packet of even length.
fn checksum(packet: &[u8]) -> u16 {
    let words = packet.chunks_exact(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1]));
    let mut sum: u32 = words.sum();
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}
