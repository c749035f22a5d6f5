use std::io::{self, IoSlice};
use std::net::SocketAddr;

use overlay::segment::vnet::{self, VnetHeader, gso};

use super::*;
use crate::socket::{Arrival, Socket};
use crate::tap::Tap;

#[test]
fn all_offloads_pass_their_trial_on_this_kernel() {
    assert_eq!(Offloads::ALL.probe().unwrap(), Offloads::ALL);
}

/// It does not touch disabled offloads.
struct Watched {
    offloads: Offloads,
}

impl Kernel for Watched {
    fn send(&self, socket: &Socket, to: SocketAddr, datagrams: &[u8], length: usize) -> io::Result<()> {
        assert!(self.offloads.udp_segment || datagrams.len() <= length);
        socket.send(to, datagrams, length)
    }

    fn write(&self, tap: &Tap, parts: &[IoSlice<'_>]) -> io::Result<()> {
        let is_on =
            if vnet_of(parts).is_udp() { self.offloads.udp_segments } else { self.offloads.tcp_segments };
        assert!(is_on || self.offloads.kernel);
        tap.write(parts)
    }
}

#[test]
fn disabled_offloads_stay_disabled_and_are_not_tried() {
    let off = [
        Offloads::NONE,
        Offloads { udp_segment: false, ..Offloads::ALL },
        Offloads { udp_gro: false, ..Offloads::ALL },
        Offloads { tcp_segments: false, ..Offloads::ALL },
        Offloads { udp_segments: false, ..Offloads::ALL },
        Offloads { kernel: false, ..Offloads::ALL },
    ];
    for offloads in off {
        assert_eq!(offloads.probe_with(&Watched { offloads }).unwrap(), offloads);
    }
}

fn vnet_of(parts: &[IoSlice<'_>]) -> VnetHeader {
    VnetHeader::decode(parts[0].first_chunk().unwrap())
}

/// Of datagrams that leave together only the first one does.
struct SendsTheFirst;

impl Kernel for SendsTheFirst {
    fn send(&self, socket: &Socket, to: SocketAddr, datagrams: &[u8], length: usize) -> io::Result<()> {
        socket.send(to, &datagrams[..length.min(datagrams.len())], length)
    }
}

#[test]
fn datagrams_that_do_not_leave_are_noticed() {
    let expected = Offloads { udp_segment: false, ..Offloads::ALL };
    assert_eq!(Offloads::ALL.probe_with(&SendsTheFirst).unwrap(), expected);
}

/// It does not say where one datagram ends and the next one begins.
struct SaysNoLength;

impl Kernel for SaysNoLength {
    fn receive(&self, socket: &Socket, into: &mut [u8]) -> io::Result<Arrival> {
        socket.receive(into).map(|arrival| Arrival { length: arrival.bytes, ..arrival })
    }
}

#[test]
fn datagrams_without_an_end_are_noticed() {
    let expected = Offloads { udp_gro: false, ..Offloads::ALL };
    assert_eq!(Offloads::ALL.probe_with(&SaysNoLength).unwrap(), expected);
}

/// A kernel that accepts segments of one kind, and drops them.
struct Swallows {
    udp: bool,
}

impl Kernel for Swallows {
    fn write(&self, tap: &Tap, parts: &[IoSlice<'_>]) -> io::Result<()> {
        let vnet = vnet_of(parts);
        if vnet.is_segment() && vnet.is_udp() == self.udp { Ok(()) } else { tap.write(parts) }
    }
}

#[test]
fn segments_that_do_not_leave_are_noticed() {
    let expected = Offloads { tcp_segments: false, kernel: false, ..Offloads::ALL };
    assert_eq!(Offloads::ALL.probe_with(&Swallows { udp: false }).unwrap(), expected);
    let expected = Offloads { udp_segments: false, ..Offloads::ALL };
    assert_eq!(Offloads::ALL.probe_with(&Swallows { udp: true }).unwrap(), expected);
}

/// A kernel that reports a wrong size of the pieces of a UDP segment.
struct SaysAWrongSize;

impl Kernel for SaysAWrongSize {
    fn read(&self, tap: &Tap, into: &mut [u8]) -> io::Result<usize> {
        let length = tap.read(into)?;
        let header = into.first_chunk_mut::<{ vnet::LENGTH }>().unwrap();
        let vnet = VnetHeader::decode(header);
        if vnet.gso_type == gso::UDP_L4 {
            *header = VnetHeader { gso_size: vnet.gso_size / 2, ..vnet }.encode();
        }
        Ok(length)
    }
}

#[test]
fn segments_of_a_wrong_size_are_noticed() {
    let expected = Offloads { udp_segments: false, ..Offloads::ALL };
    assert_eq!(Offloads::ALL.probe_with(&SaysAWrongSize).unwrap(), expected);
}

/// A bit of the received data has changed.
struct Damages;

impl Kernel for Damages {
    fn read(&self, tap: &Tap, into: &mut [u8]) -> io::Result<usize> {
        let length = tap.read(into)?;
        into[length - 1] ^= 1;
        Ok(length)
    }

    fn receive(&self, socket: &Socket, into: &mut [u8]) -> io::Result<Arrival> {
        let arrival = socket.receive(into)?;
        into[arrival.bytes - 1] ^= 1;
        Ok(arrival)
    }
}

#[test]
fn damaged_datagrams_are_noticed() {
    assert_eq!(Offloads::ALL.probe_with(&Damages).unwrap(), Offloads::NONE);
}
