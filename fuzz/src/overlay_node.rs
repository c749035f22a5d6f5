//! The input of an overlay node: datagrams of other nodes, and frames of instances and LANs.

use std::time::Duration;

use fabric::Epoch;
use overlay::Mac;
use overlay::message::{Answer, Envelope, Message, Report};
use overlay::parts::{MAX_FRAME, Part, Reassembly};
use overlay::path_quality::{PathQuality, RoundTrip};
use overlay::segment::VnetHeader;
use overlay::switch::{
    Destination, Entry, Frame, From, Label, Limits, PortId, PortKind, Switch, To, Verdict,
};
use overlay::topology::{NodeId, Topology, Version};

use crate::input::Input;

const NODES: [NodeId; 4] = [NodeId(1), NodeId(2), NodeId(3), NodeId(4)];
const ME: NodeId = NODES[1];
const PORTS: [PortId; 3] = [PortId(1), PortId(2), PortId(3)];
const VERSIONS: [Version; 2] = [Version(1), Version(2)];

/// An instance's, behind the first port.
const OWN: Mac = Mac([2, 0, 0, 0, 0, 1]);
/// An instance's, on another node.
const OTHER: Mac = Mac([2, 0, 0, 0, 0, 2]);

/// So many datagrams the other node has been sent.
const SEALED: u64 = 1000;

/// Messages of other nodes, and their parts of frames.
///
/// # Panics
/// If a decoded message would be encoded differently, or a frame exceeds the maximum length.
pub fn content(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut reassembly = Reassembly::default();
    let mut now = Duration::ZERO;
    let mut quality = PathQuality::new(now);
    while !input.is_empty() {
        now += Duration::from_millis(input.byte().into());
        let said = input.bytes();
        match Message::decode(said) {
            Ok(Message::Frame(envelope, frame)) => {
                assert_eq!([&envelope.front()[..], frame].concat(), said);
                assert!(envelope.vnet.validate(frame.len()).is_ok() && !envelope.vnet.is_segment());
            }
            Ok(Message::Part(envelope, part, content)) => {
                assert_eq!([&envelope.part_front(&part)[..], content].concat(), said);
                if let Ok(Some(frame)) = reassembly.take(&part, content, now) {
                    assert!(frame.len() == part.total as usize && frame.len() <= MAX_FRAME);
                }
            }
            Ok(Message::Probe(length)) => assert_eq!(said[..4], Message::probe(length)),
            Ok(Message::Answer(answer)) => assert_eq!(said, answer.encode()),
            Ok(Message::Report(report)) => {
                assert_eq!(said, report.encode());
                let _ = quality.reported(&report, SEALED);
                assert!(quality.lost() <= quality.sent() && quality.sent() <= SEALED);
            }
            Ok(Message::Echo(stamp)) => {
                assert_eq!(said, Message::echo(stamp));
                quality.echoed(stamp, now);
                let is_possible = |trip: RoundTrip| trip.least <= trip.smoothed && trip.smoothed <= now;
                assert!(quality.round_trip().is_none_or(is_possible));
            }
            Err(_) => {}
        }
    }
}

/// Frames for a switch, from ports and from nodes, with moves of a MAC in between.
///
/// # Panics
/// If a frame goes back to its origin, to a missing place, or to more than one place though it is for one.
pub fn switch(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut switch = node();
    let (mut now, mut epoch, mut parcels) = (Duration::ZERO, 1, Vec::new());
    while !input.is_empty() {
        now += Duration::from_millis(u64::from(input.byte()) * 10);
        // A refused message changes nothing.
        let _ = match input.below(8) {
            0 => switch.pause(OWN),
            1 => switch.unpause(OWN, now, &mut parcels),
            2 => {
                epoch += 1;
                let entry = entry(OWN, input.pick(&NODES), epoch);
                switch.commit(&entry, now, &mut parcels).map(drop)
            }
            3 => switch.prepare(OWN, PORTS[1], Epoch(epoch + 1)),
            4 => switch.resume(OWN, &mut parcels),
            5 => {
                switch.tick(now, &mut parcels);
                Ok(())
            }
            _ => {
                hear(&mut switch, &mut input, now);
                Ok(())
            }
        };
        parcels.drain(..).for_each(|parcel| assert_is_there(parcel.to));
    }
}

/// A node in the middle of others, with two instances' ports and a LAN's.
fn node() -> Switch {
    let limits = Limits { learned: 32, managed: 8, kept_frames: 8, kept_bytes: 4096, ..Limits::default() };
    let mut switch = Switch::new(ME, 7, limits);
    let kinds = [PortKind::Instance, PortKind::Instance, PortKind::Lan];
    PORTS.iter().zip(kinds).for_each(|(port, kind)| switch.attach(*port, kind));
    let topologies = [Topology::mesh(VERSIONS[0], &NODES), Topology::star(VERSIONS[1], ME, &NODES)];
    for topology in topologies {
        switch.install(topology.unwrap().routes(ME).unwrap()).unwrap();
    }
    switch.use_version(VERSIONS[1]).unwrap();
    for (mac, node) in [(OWN, ME), (OTHER, NODES[2])] {
        switch.commit(&entry(mac, node, 1), Duration::ZERO, &mut Vec::new()).unwrap();
    }
    switch
}

fn entry(mac: Mac, node: NodeId, epoch: u64) -> Entry {
    let addresses = vec![[10, 0, 0, mac.0[5]].into(), [0xfe80, 0, 0, 0, 0, 0, 0, mac.0[5].into()].into()];
    Entry { mac, node, port: (node == ME).then_some(PORTS[0]), epoch: Epoch(epoch), addresses }
}

fn hear(switch: &mut Switch, input: &mut Input<'_>, now: Duration) {
    let from = if input.coin() { From::Port(input.pick(&PORTS)) } else { link(input) };
    let mut bytes = input.bytes().to_vec();
    // A frame, mostly with a known destination.
    if bytes.len() >= 12 && input.coin() {
        bytes[..6].copy_from_slice(&input.pick(&[OWN, OTHER, Mac::BROADCAST]).0);
        bytes[6..12].copy_from_slice(&input.pick(&[OWN, OTHER, Mac([2, 0, 0, 0, 0, 9])]).0);
    }
    let mut out = Vec::new();
    let verdict = switch.forward(from, Frame::whole(&bytes), now, &mut out);
    out.iter().for_each(|to| assert_is_there(*to));
    match verdict {
        Verdict::Forwarded => assert_eq!(out.len(), 1),
        Verdict::Flooded => {}
        Verdict::Held | Verdict::Answered(_) | Verdict::Dropped(_) => assert!(out.is_empty()),
    }
    let is_back = |to: &To| match (from, to) {
        (From::Port(port), To::Port(to)) => port == *to,
        (From::Link { neighbour, .. }, To::Link { neighbour: to, label }) => {
            // After a MAC that has moved a frame may go by the way that it came.
            neighbour == *to && !matches!(label.to, Destination::Forwarded(_))
        }
        _ => false,
    };
    assert!(!out.iter().any(is_back), "{from:?} {out:?}");
}

fn link(input: &mut Input<'_>) -> From {
    let node = input.pick(&NODES);
    let to = input.pick(&[Destination::Node(node), Destination::Forwarded(node), Destination::Everyone]);
    let version = input.pick(&[VERSIONS[0], VERSIONS[1], Version(9)]);
    let label = Label { version, ingress: input.pick(&NODES), to, hops: input.byte().max(1) };
    From::Link { neighbour: input.pick(&[NODES[0], NODES[2], NODES[3]]), label }
}

fn assert_is_there(to: To) {
    match to {
        To::Port(port) => assert!(PORTS.contains(&port)),
        To::Link { neighbour, label } => {
            assert!(NODES.contains(&neighbour) && neighbour != ME && label.hops > 0)
        }
    }
}

/// Each kind of message, behind a pause and its length.
#[must_use]
pub fn content_seeds() -> Vec<Vec<u8>> {
    let label = Label { version: VERSIONS[0], ingress: NODES[0], to: Destination::Node(ME), hops: 2 };
    let envelope = Envelope { label, vnet: VnetHeader::partial(34, 16) };
    let part = |index| Part { frame: 1, total: 90, index, count: 2 };
    let said = [
        [&envelope.front()[..], &[7; 60]].concat(),
        [&envelope.part_front(&part(0))[..], &[7; 45]].concat(),
        [&envelope.part_front(&part(1))[..], &[8; 45]].concat(),
        Message::probe(1472).to_vec(),
        Answer { length: 1472, lane: 1, generation: 2 }.encode().to_vec(),
        Report { received: 100, lost: 3, stamp: 5_000_000, rate: 1 << 30 }.encode().to_vec(),
        Message::echo(5_000_000).to_vec(),
    ];
    let scripted = said.map(|said| [&[1, said.len() as u8][..], &said].concat());
    vec![scripted.concat()]
}

/// Frames between stations, questions of ARP, and a move.
#[must_use]
pub fn switch_seeds() -> Vec<Vec<u8>> {
    let frame = |to: Mac, from: Mac| [&to.0[..], &from.0, &[0x08, 0x00], &[0; 40]].concat();
    let question = [
        &Mac::BROADCAST.0[..],
        &OWN.0,
        &[0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 1],
        &OWN.0,
        &[10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 10, 0, 0, 2],
    ];
    let from_port =
        |port: u8, frame: Vec<u8>| [&[1, 6, 1, port, frame.len() as u8][..], &frame, &[0]].concat();
    let stranger = Mac([2, 0, 0, 0, 0, 9]);
    let steps = [
        from_port(0, frame(OTHER, OWN)),
        from_port(0, question.concat()),
        from_port(2, frame(OWN, stranger)),
        vec![1, 0],
        from_port(2, frame(OWN, stranger)),
        vec![1, 2, 2],
        from_port(2, frame(OWN, stranger)),
        vec![1, 5],
    ];
    vec![steps.concat()]
}
