//! The common parts of the switch's tests.
#![allow(dead_code, reason = "each test uses a part")]

use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use etherparse::icmpv6::RouterAdvertisementHeader;
use etherparse::{Icmpv6Type, PacketBuilder};
use fabric::Epoch;
use overlay::Mac;
use overlay::segment::VnetHeader;
use overlay::switch::{
    Destination, Entry, Frame, From, Label, Limits, MacState, Parcel, PortId, PortKind, Switch, To, Verdict,
};
use overlay::topology::{NodeId, Topology, Version};

pub const ME: NodeId = NodeId(2);
pub const LEFT: NodeId = NodeId(1);
pub const RIGHT: NodeId = NodeId(3);
pub const ONE: PortId = PortId(1);
pub const TWO: PortId = PortId(2);
pub const LAN: PortId = PortId(3);
pub const NOW: Duration = Duration::from_secs(100);

/// The `number`th station.
pub fn mac(number: u8) -> Mac {
    Mac([2, 0, 0, 0, 0, number])
}

/// An untagged frame.
pub fn frame(to: Mac, from: Mac) -> Vec<u8> {
    let mut frame = [to.0, from.0].concat();
    frame.extend([0x08, 0x00]);
    frame.extend([0; 46]);
    frame
}

/// The middle one of three nodes in a row, with two instances' ports and a LAN's.
pub fn switch() -> Switch {
    switch_with(Limits::default())
}

pub fn switch_with(limits: Limits) -> Switch {
    let mut switch = Switch::new(ME, 7, limits);
    switch.install(row(1).routes(ME).unwrap()).unwrap();
    switch.use_version(Version(1)).unwrap();
    switch.attach(ONE, PortKind::Instance);
    switch.attach(TWO, PortKind::Instance);
    switch.attach(LAN, PortKind::Lan);
    switch
}

/// Three nodes in a row.
pub fn row(version: u32) -> Topology {
    Topology::star(Version(version), ME, &[LEFT, ME, RIGHT]).unwrap()
}

pub fn entry(number: u8, node: NodeId, port: Option<PortId>, epoch: u64) -> Entry {
    let addresses = vec![IpAddr::from([10, 0, 0, number])];
    Entry { mac: mac(number), node, port, epoch: Epoch(epoch), addresses }
}

/// Station 1 asks all by ARP for the MAC of station `target`.
pub fn question(target: u8) -> Vec<u8> {
    let mut frame = frame(Mac::BROADCAST, mac(1))[..12].to_vec();
    frame.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    frame.extend(mac(1).0);
    frame.extend([10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 10, 0, 0, target]);
    frame
}

/// Station `number` says to all that it is a router, with this address.
pub fn router_advertisement(number: u8, address: Ipv6Addr) -> Vec<u8> {
    let all = Ipv6Addr::from_bits(0xff02 << 112 | 1);
    let lifetime = RouterAdvertisementHeader::from_bytes([64, 0, 7, 8]);
    said_to_neighbours(number, address, all, Icmpv6Type::RouterAdvertisement(lifetime), &[0; 8])
}

/// Station 1 asks for the MAC of the one with the address `target`.
pub fn solicitation(target: Ipv6Addr) -> Vec<u8> {
    let group = Ipv6Addr::from_bits(0xff02 << 112 | 0x1_ff00_0000 | target.to_bits() & 0xff_ffff);
    let from = Ipv6Addr::from_bits(0xfe80 << 112 | 1);
    let payload = [&target.octets()[..], &[1, 1], &mac(1).0].concat();
    said_to_neighbours(1, from, group, Icmpv6Type::NeighborSolicitation, &payload)
}

fn said_to_neighbours(number: u8, from: Ipv6Addr, to: Ipv6Addr, kind: Icmpv6Type, payload: &[u8]) -> Vec<u8> {
    let [.., a, b, c, d] = to.octets();
    let builder = PacketBuilder::ethernet2(mac(number).0, [0x33, 0x33, a, b, c, d])
        .ipv6(from.octets(), to.octets(), 255)
        .icmpv6(kind);
    let mut frame = vec![];
    builder.write(&mut frame, payload).unwrap();
    frame
}

/// A switch that knows the place of a MAC, and keeps no frames for it.
pub fn push(switch: &mut Switch, entry: &Entry) {
    let mut out = vec![];
    assert_eq!(switch.commit(entry, NOW, &mut out), Ok(true));
    assert!(out.is_empty());
}

pub fn label(ingress: NodeId, to: Destination) -> Label {
    Label { version: Version(1), ingress, to, hops: 2 }
}

pub fn link(neighbour: NodeId, ingress: NodeId, to: Destination) -> From {
    From::Link { neighbour, label: label(ingress, to) }
}

pub fn to(neighbour: NodeId, ingress: NodeId, destination: Destination, hops: u8) -> To {
    To::Link { neighbour, label: Label { hops, ..label(ingress, destination) } }
}

/// The fate of a frame, and its destinations.
pub fn forward(switch: &mut Switch, from: From, frame: &[u8]) -> (Verdict, Vec<To>) {
    forward_at(switch, from, frame, NOW)
}

pub fn forward_at(switch: &mut Switch, from: From, frame: &[u8], now: Duration) -> (Verdict, Vec<To>) {
    let mut out = vec![];
    let verdict = switch.forward(from, Frame { vnet: LEFT_TO_DO, bytes: frame }, now, &mut out);
    (verdict, out)
}

/// The payload of each frame.
const LEFT_TO_DO: VnetHeader =
    VnetHeader { flags: 1, gso_type: 1, hdr_len: 54, gso_size: 1000, csum_start: 34, csum_offset: 16 };

/// The known places, in order.
pub fn macs(switch: &Switch, now: Duration) -> Vec<MacState> {
    let mut macs = switch.macs(now);
    macs.sort_by_key(MacState::place_in_order);
    macs
}

/// Frames by their destinations, each with its `vnet` header.
pub fn parcels(out: &[Parcel]) -> Vec<(To, &[u8])> {
    assert!(out.iter().all(|parcel| parcel.vnet == LEFT_TO_DO));
    out.iter().map(|parcel| (parcel.to, &parcel.bytes[..])).collect()
}
