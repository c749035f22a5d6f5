//! The fate of frames at one switch.

mod support;

use overlay::Mac;
use overlay::switch::{
    Destination, Entry, FloodRates, From, Label, Limits, Origin, Parcel, PortId, PortKind, Rate, Reason,
    Switch, To, Verdict,
};
use overlay::topology::{Link, NodeId, Topology, Version};
use std::net::Ipv6Addr;
use std::time::Duration;
use support::*;

const SECOND: Duration = Duration::from_secs(1);

fn dropped(reason: Reason) -> (Verdict, Vec<To>) {
    (Verdict::Dropped(reason), vec![])
}

fn everyone() -> Vec<To> {
    vec![to(LEFT, ME, Destination::Everyone, 2), to(RIGHT, ME, Destination::Everyone, 2)]
}

#[test]
fn unknown_macs_are_flooded_and_known_ones_are_not() {
    let mut switch = switch();
    let mut expected = vec![To::Port(TWO), To::Port(LAN)];
    expected.extend(everyone());
    let request = frame(mac(9), mac(1));
    assert_eq!(forward(&mut switch, From::Port(ONE), &request), (Verdict::Flooded, expected));
    let answer = forward(&mut switch, From::Port(TWO), &frame(mac(1), mac(9)));
    assert_eq!(answer, (Verdict::Forwarded, vec![To::Port(ONE)]));
    assert_eq!(forward(&mut switch, From::Port(ONE), &request), (Verdict::Forwarded, vec![To::Port(TWO)]));
    assert_eq!(forward(&mut switch, From::Port(TWO), &frame(mac(9), mac(7))), dropped(Reason::SamePort));
}

#[test]
fn labels_teach_where_a_mac_is() {
    let mut switch = switch();
    let here = Destination::Node(ME);
    let first = forward(&mut switch, link(LEFT, LEFT, Destination::Everyone), &frame(mac(1), mac(9)));
    let ports = [ONE, TWO, LAN].map(To::Port);
    let onward = to(RIGHT, LEFT, Destination::Everyone, 1);
    assert_eq!(first, (Verdict::Flooded, [&[onward], &ports[..]].concat()));
    let answer = forward(&mut switch, From::Port(ONE), &frame(mac(9), mac(1)));
    assert_eq!(answer, (Verdict::Forwarded, vec![to(LEFT, ME, Destination::Node(LEFT), 2)]));
    let next = forward(&mut switch, link(LEFT, LEFT, here), &frame(mac(1), mac(9)));
    assert_eq!(next, (Verdict::Forwarded, vec![To::Port(ONE)]));
    let unknown = forward(&mut switch, link(LEFT, LEFT, here), &frame(mac(5), mac(9)));
    assert_eq!(unknown, dropped(Reason::Stale));
}

#[test]
fn vlans_are_learned_apart() {
    let mut switch = switch();
    let tagged = |to, from| {
        let mut frame = frame(to, from);
        frame.splice(12..12, [0x81, 0, 0, 7]);
        frame
    };
    forward(&mut switch, From::Port(ONE), &tagged(Mac::BROADCAST, mac(1)));
    let known = forward(&mut switch, From::Port(TWO), &tagged(mac(1), mac(2)));
    assert_eq!(known, (Verdict::Forwarded, vec![To::Port(ONE)]));
    assert_eq!(forward(&mut switch, From::Port(TWO), &frame(mac(1), mac(2))).0, Verdict::Flooded);
    let managed = entry(9, RIGHT, None, 1);
    push(&mut switch, &managed);
    let known = forward(&mut switch, From::Port(TWO), &tagged(mac(9), mac(2)));
    assert_eq!(known, (Verdict::Forwarded, vec![to(RIGHT, ME, Destination::Node(RIGHT), 2)]));
}

#[test]
fn transit_goes_by_the_label_and_learns_nothing() {
    let mut switch = switch();
    let passing = forward(&mut switch, link(LEFT, LEFT, Destination::Node(RIGHT)), b"");
    assert_eq!(passing, (Verdict::Forwarded, vec![to(RIGHT, LEFT, Destination::Node(RIGHT), 1)]));
    let sent = frame(mac(1), mac(9));
    forward(&mut switch, link(LEFT, LEFT, Destination::Node(RIGHT)), &sent);
    assert!(switch.macs(NOW).is_empty());
    let back = link(RIGHT, LEFT, Destination::Forwarded(RIGHT));
    assert_eq!(forward(&mut switch, back, &sent), dropped(Reason::Loop));
    let last = Label { hops: 1, ..label(LEFT, Destination::Node(RIGHT)) };
    let last = From::Link { neighbour: LEFT, label: last };
    assert_eq!(forward(&mut switch, last, &sent), dropped(Reason::Loop));
    let own = link(LEFT, ME, Destination::Node(ME));
    assert_eq!(forward(&mut switch, own, &sent), dropped(Reason::Loop));
    let nobody = link(LEFT, LEFT, Destination::Node(NodeId(9)));
    assert_eq!(forward(&mut switch, nobody, &sent), dropped(Reason::Unreachable));
}

#[test]
fn a_forged_ingress_node_is_refused() {
    let mut switch = switch();
    push(&mut switch, &entry(1, ME, Some(ONE), 1));
    push(&mut switch, &entry(9, RIGHT, None, 1));
    let managed = frame(mac(1), mac(9));
    let learned = frame(mac(1), mac(8));
    for (sent, ingress) in [(&managed, RIGHT), (&learned, RIGHT), (&learned, NodeId(77))] {
        for to in [ME, RIGHT] {
            let lie = link(LEFT, ingress, Destination::Node(to));
            assert_eq!(forward(&mut switch, lie, sent), dropped(Reason::ReversePath));
        }
        let sent_on = link(LEFT, ingress, Destination::Forwarded(ME));
        let late = NOW + SECOND * 10;
        assert_eq!(forward_at(&mut switch, sent_on, sent, late), dropped(Reason::Stale), "it did not move");
    }
    assert!(switch.macs(NOW).iter().all(|known| known.mac != mac(8)));
}

#[test]
fn broadcasts_are_accepted_from_the_parent_only() {
    let mut switch = switch();
    let sent = frame(Mac::BROADCAST, mac(9));
    for (neighbour, ingress) in [(RIGHT, LEFT), (LEFT, ME), (LEFT, RIGHT), (LEFT, NodeId(9))] {
        let from = link(neighbour, ingress, Destination::Everyone);
        assert_eq!(forward(&mut switch, from, &sent), dropped(Reason::ReversePath));
    }
    let last = Label { hops: 1, ..label(LEFT, Destination::Everyone) };
    let (verdict, out) = forward(&mut switch, From::Link { neighbour: LEFT, label: last }, &sent);
    assert_eq!((verdict, out.len()), (Verdict::Flooded, 3), "it goes no further, but to the ports");
    assert_eq!(switch.counters().dropped(Reason::Loop), 1);
    let group = link(LEFT, LEFT, Destination::Node(ME));
    assert_eq!(forward(&mut switch, group, &sent), dropped(Reason::Malformed));
}

#[test]
fn frames_keep_to_the_version_of_their_stamp() {
    let mut switch = switch();
    let sent = frame(mac(1), mac(9));
    let with = |version| {
        let label = Label { version: Version(version), ..label(LEFT, Destination::Node(RIGHT)) };
        From::Link { neighbour: LEFT, label }
    };
    let nodes = vec![LEFT, ME, RIGHT, NodeId(4)];
    let links = [(LEFT, ME), (ME, NodeId(4)), (NodeId(4), RIGHT)].map(|(a, b)| Link { a, b, cost: 1 });
    let around = Topology::new(Version(2), nodes, links.into()).unwrap();
    assert_eq!(forward(&mut switch, with(2), &sent), dropped(Reason::UnknownVersion));
    switch.install(around.routes(ME).unwrap()).unwrap();
    for version in [1, 2] {
        let neighbour = if version == 1 { RIGHT } else { NodeId(4) };
        let (_, out) = forward(&mut switch, with(version), &sent);
        assert!(
            matches!(out[0], To::Link { neighbour: to, label } if to == neighbour && label.version.0 == version)
        );
    }
    for version in 3..7 {
        switch.install(row(version).routes(ME).unwrap()).unwrap();
        switch.use_version(Version(version)).unwrap();
    }
    assert_eq!(forward(&mut switch, with(1), &sent), dropped(Reason::UnknownVersion));
    assert!(switch.install(row(7).routes(LEFT).unwrap()).is_err());
    assert!(switch.use_version(Version(5)).is_err());
    assert_eq!(switch.state(NOW).version, Some(Version(6)));
}

#[test]
fn managed_macs_are_not_overridden() {
    let mut switch = switch();
    push(&mut switch, &entry(1, ME, Some(ONE), 1));
    push(&mut switch, &entry(9, LEFT, None, 1));
    let lie = frame(Mac::BROADCAST, mac(1));
    assert_eq!(forward(&mut switch, From::Port(TWO), &lie), dropped(Reason::Spoofed));
    assert_eq!(
        forward(&mut switch, link(LEFT, LEFT, Destination::Node(ME)), &lie).0,
        Verdict::Dropped(Reason::Malformed)
    );
    let lie = frame(mac(1), mac(9));
    let from_right = link(RIGHT, RIGHT, Destination::Node(ME));
    assert_eq!(forward(&mut switch, from_right, &lie), dropped(Reason::Spoofed));
    let (verdict, out) = forward(&mut switch, link(RIGHT, RIGHT, Destination::Everyone), &lie);
    assert_eq!((verdict, out), (Verdict::Flooded, vec![to(LEFT, RIGHT, Destination::Everyone, 1)]));
    let honest = forward(&mut switch, link(LEFT, LEFT, Destination::Node(ME)), &lie);
    assert_eq!(honest, (Verdict::Forwarded, vec![To::Port(ONE)]));
    let far = Duration::from_secs(10_000);
    switch.tick(NOW + far, &mut vec![]);
    let (verdict, _) = forward_at(&mut switch, From::Port(TWO), &frame(mac(1), mac(2)), NOW + far);
    assert_eq!(verdict, Verdict::Forwarded, "they do not age");
}

#[test]
fn malformed_and_link_local_frames_go_nowhere() {
    let mut switch = switch();
    let sent = frame(mac(2), mac(1));
    for length in 0..14 {
        assert_eq!(forward(&mut switch, From::Port(ONE), &sent[..length]), dropped(Reason::Malformed));
    }
    for source in [Mac::BROADCAST, Mac([0; 6]), Mac([1, 0, 0x5e, 0, 0, 1])] {
        let sent = frame(mac(2), source);
        assert_eq!(forward(&mut switch, From::Port(ONE), &sent), dropped(Reason::Malformed));
        let from = link(LEFT, LEFT, Destination::Everyone);
        assert_eq!(forward(&mut switch, from, &sent), dropped(Reason::Malformed));
    }
    let tree = frame(Mac([1, 0x80, 0xc2, 0, 0, 0]), mac(1));
    assert_eq!(forward(&mut switch, From::Port(LAN), &tree), dropped(Reason::LinkLocal));
    assert_eq!(forward(&mut switch, From::Port(PortId(9)), &sent), dropped(Reason::NoPort));
    assert!(switch.macs(NOW).is_empty());
}

#[test]
fn floods_are_limited_by_port_and_by_node() {
    let rate = |frames| Rate { frames, bytes: 1 << 20 };
    let rates = |frames| FloodRates { unknown: rate(frames), broadcast: rate(2 * frames) };
    let limits = Limits { port_flood: rates(3), node_flood: rates(4), ..Limits::default() };
    let mut switch = switch_with(limits);
    let mut flooded = |from, to| {
        let sent = frame(to, mac(1));
        (0..20).filter(|_| forward(&mut switch, from, &sent).0 == Verdict::Flooded).count()
    };
    assert_eq!(flooded(From::Port(ONE), mac(9)), 3);
    assert_eq!(flooded(From::Port(ONE), Mac::BROADCAST), 6);
    assert_eq!(flooded(From::Port(TWO), mac(9)), 3);
    assert_eq!(flooded(link(LEFT, LEFT, Destination::Everyone), mac(9)), 4);
    assert_eq!(flooded(link(RIGHT, RIGHT, Destination::Everyone), Mac([1, 0, 0x5e, 0, 0, 1])), 8);
    assert_eq!(switch.counters().dropped(Reason::UnknownLimit), 17 + 17 + 16);
    assert_eq!(switch.counters().dropped(Reason::BroadcastLimit), 14 + 12);
}

#[test]
fn a_full_table_makes_room() {
    let mut switch = switch_with(Limits { learned: 2, ..Limits::default() });
    for number in 1..=3 {
        forward(&mut switch, From::Port(ONE), &frame(Mac::BROADCAST, mac(number)));
    }
    assert_eq!(switch.macs(NOW).len(), 2);
    assert_eq!(switch.counters().displaced, 1);
    assert_eq!(forward(&mut switch, From::Port(TWO), &frame(mac(3), mac(9))).0, Verdict::Forwarded);
    assert_eq!(forward(&mut switch, From::Port(ONE), &frame(mac(9), mac(3))).0, Verdict::Forwarded);
    assert_eq!(switch.macs(NOW).len(), 2);
}

#[test]
fn macs_behind_a_detached_port_are_forgotten() {
    let mut switch = switch();
    forward(&mut switch, From::Port(ONE), &frame(Mac::BROADCAST, mac(1)));
    push(&mut switch, &entry(2, ME, Some(ONE), 1));
    switch.detach(ONE);
    assert_eq!(forward(&mut switch, From::Port(TWO), &frame(mac(1), mac(9))).0, Verdict::Flooded);
    assert_eq!(forward(&mut switch, From::Port(TWO), &frame(mac(2), mac(9))), dropped(Reason::NoPort));
    switch.attach(ONE, PortKind::Instance);
    assert_eq!(forward(&mut switch, From::Port(TWO), &frame(mac(2), mac(9))).0, Verdict::Forwarded);
}

#[test]
fn local_ports_are_switched_without_a_topology() {
    let mut switch = Switch::new(ME, 7, Limits::default());
    switch.attach(ONE, PortKind::Instance);
    switch.attach(TWO, PortKind::Instance);
    push(&mut switch, &entry(9, LEFT, None, 1));
    let flooded = forward(&mut switch, From::Port(ONE), &frame(mac(2), mac(1)));
    assert_eq!(flooded, (Verdict::Flooded, vec![To::Port(TWO)]));
    assert_eq!(forward(&mut switch, From::Port(ONE), &frame(mac(9), mac(1))), dropped(Reason::Unreachable));
}

#[test]
fn arp_is_answered_for_instances_elsewhere_only() {
    let mut switch = switch();
    push(&mut switch, &entry(1, ME, Some(ONE), 1));
    push(&mut switch, &entry(9, LEFT, None, 1));
    let (verdict, out) = forward(&mut switch, From::Port(ONE), &question(9));
    let Verdict::Answered(answer) = verdict else { panic!("{verdict:?}") };
    assert_eq!((&answer[..6], &answer[6..12], out.len()), (&mac(1).0[..], &mac(9).0[..], 0));
    assert_eq!(forward(&mut switch, From::Port(ONE), &question(7)).0, Verdict::Flooded);
    push(&mut switch, &entry(2, ME, Some(ONE), 1));
    assert_eq!(
        forward(&mut switch, From::Port(ONE), &question(2)).0,
        Verdict::Flooded,
        "it is behind the same port"
    );
    assert!(switch.withdraw(mac(9), fabric::Epoch(2), NOW));
    assert_eq!(forward(&mut switch, From::Port(ONE), &question(9)).0, Verdict::Flooded);
    assert_eq!(switch.announcements(mac(1)).len(), 2);
    assert_eq!(switch.announcements(mac(9)).len(), 0);
}

#[test]
fn answers_and_announcements_for_a_router_carry_its_flag() {
    let mut switch = switch();
    let router = Ipv6Addr::from_bits(0xfe80 << 112 | 9);
    let placed = |node, epoch| Entry { addresses: vec![router.into()], ..entry(9, node, None, epoch) };
    push(&mut switch, &entry(1, ME, Some(ONE), 1));
    push(&mut switch, &placed(LEFT, 1));
    // Neighbour advertisements have their flags in this byte, and the router's is the highest bit.
    let says_router = |frame: &[u8]| frame[58] & 0x80 != 0;
    let flags = |switch: &mut Switch, minutes| {
        let asked = forward_at(switch, From::Port(ONE), &solicitation(router), NOW + SECOND * 60 * minutes).0;
        let Verdict::Answered(answer) = asked else { panic!("{asked:?}") };
        [says_router(&answer), says_router(&switch.announcements(mac(9))[1])]
    };
    assert_eq!(flags(&mut switch, 0), [false; 2]);
    let advertised = router_advertisement(9, router);
    let lies = [From::Port(TWO), From::Port(LAN), link(RIGHT, RIGHT, Destination::Everyone)];
    lies.iter().for_each(|from| drop(forward(&mut switch, *from, &advertised)));
    forward(&mut switch, From::Port(TWO), &router_advertisement(7, router));
    assert_eq!(flags(&mut switch, 1), [false; 2], "others have said so");
    forward(&mut switch, link(LEFT, LEFT, Destination::Everyone), &advertised);
    assert_eq!(flags(&mut switch, 2), [true; 2]);
    push(&mut switch, &placed(RIGHT, 2));
    assert_eq!(flags(&mut switch, 3), [true; 2], "it has moved");
    assert!(switch.withdraw(mac(9), fabric::Epoch(3), NOW));
    push(&mut switch, &placed(RIGHT, 4));
    assert_eq!(flags(&mut switch, 4), [false; 2], "it is another one");
}

#[test]
fn a_local_router_is_learned_from_its_advertisement() {
    let mut switch = switch();
    let router = Ipv6Addr::from_bits(0xfe80 << 112 | 2);
    push(&mut switch, &Entry { addresses: vec![router.into()], ..entry(2, ME, Some(TWO), 1) });
    assert_eq!(forward(&mut switch, From::Port(TWO), &router_advertisement(2, router)).0, Verdict::Flooded);
    assert_eq!(switch.announcements(mac(2))[1][58], 0xa0);
}

/// Station `number` asks all for the MAC of station 9.
fn question_of(number: u8) -> Vec<u8> {
    let mut frame = question(9);
    (frame[11], frame[27], frame[31]) = (number, number, number);
    frame
}

#[test]
fn questions_for_a_contested_address_are_flooded() {
    let mut switch = switch();
    for (number, node, port) in [(1, ME, Some(ONE)), (2, ME, Some(TWO)), (9, LEFT, None)] {
        push(&mut switch, &entry(number, node, port, 1));
    }
    let claim = |number: u8| {
        let mut claim = question_of(number);
        claim[28..32].copy_from_slice(&[10, 0, 0, 9]);
        claim
    };
    let from_right = link(RIGHT, RIGHT, Destination::Everyone);
    assert_eq!(forward(&mut switch, from_right, &claim(5)).0, Verdict::Flooded);
    assert_eq!(forward(&mut switch, From::Port(ONE), &question_of(1)).0, Verdict::Flooded);
    let from_left = link(LEFT, LEFT, Destination::Everyone);
    assert_eq!(forward(&mut switch, from_left, &claim(9)).0, Verdict::Flooded);
    assert!(matches!(forward(&mut switch, From::Port(ONE), &question_of(1)).0, Verdict::Answered(_)));
    // Others have to learn of the asker, as well.
    let mut other = question(1);
    (other[11], other[27], other[31]) = (2, 2, 9);
    assert_eq!(forward(&mut switch, From::Port(TWO), &other).0, Verdict::Flooded);
    assert_eq!(forward(&mut switch, From::Port(ONE), &question_of(1)).0, Verdict::Flooded);
}

#[test]
fn a_repeated_question_is_flooded() {
    let mut switch = switch();
    for (number, node, port) in [(1, ME, Some(ONE)), (2, ME, Some(TWO)), (9, LEFT, None)] {
        push(&mut switch, &entry(number, node, port, 1));
    }
    let asked = |switch: &mut Switch, number, port, now| {
        matches!(forward_at(switch, From::Port(port), &question_of(number), now).0, Verdict::Answered(_))
    };
    assert!(asked(&mut switch, 1, ONE, NOW) && asked(&mut switch, 2, TWO, NOW));
    assert!(!asked(&mut switch, 1, ONE, NOW + SECOND) && !asked(&mut switch, 1, ONE, NOW + SECOND * 59));
    assert!(asked(&mut switch, 1, ONE, NOW + SECOND * 60));
}

#[test]
fn of_two_lans_that_are_bridged_one_is_blocked() {
    let mut switch = switch();
    let other = PortId(4);
    switch.attach(other, PortKind::Lan);
    let mut probes = vec![];
    switch.tick(NOW, &mut probes);
    let leaving: Vec<_> = probes.iter().map(|probe| probe.to).collect();
    assert_eq!(leaving, [To::Port(LAN), To::Port(other)]);
    for (port, arriving) in [(LAN, 1), (other, 0)] {
        let (verdict, out) = forward(&mut switch, From::Port(port), &probes[arriving].bytes);
        assert!(matches!(verdict, Verdict::Dropped(Reason::Loop | Reason::Blocked)) && out.is_empty());
    }
    let state = switch.state(NOW);
    let blocked: Vec<_> =
        state.ports.iter().filter(|port| !port.blocked.is_zero()).map(|port| port.port).collect();
    assert_eq!(blocked, [other]);
    let sent = frame(Mac::BROADCAST, mac(1));
    assert_eq!(forward(&mut switch, From::Port(other), &sent), dropped(Reason::Blocked));
    let (_, out) = forward(&mut switch, From::Port(ONE), &sent);
    assert!(!out.contains(&To::Port(other)) && out.contains(&To::Port(LAN)));
    let later = forward_at(&mut switch, From::Port(other), &sent, NOW + SECOND * 5);
    assert_eq!(later.0, Verdict::Flooded);
}

/// Has `switch` find at [`NOW`] that its LAN has another way to the node on its left. Returns its output.
fn close_lan(switch: &mut Switch) -> Vec<Parcel> {
    let mut out = vec![];
    switch.tick(NOW, &mut out);
    let round = link(LEFT, LEFT, Destination::Everyone);
    assert_eq!(forward(switch, round, &out[0].bytes).0, Verdict::Flooded);
    out.clear();
    switch.tick(NOW, &mut out);
    out
}

#[test]
fn learned_macs_are_forgotten_when_a_lan_port_is_blocked_or_opened() {
    let mut switch = switch();
    let teach = |switch: &mut Switch, now| {
        forward_at(switch, From::Port(LAN), &frame(Mac::BROADCAST, mac(7)), now);
        forward_at(switch, link(LEFT, LEFT, Destination::Everyone), &frame(Mac::BROADCAST, mac(8)), now);
    };
    teach(&mut switch, NOW);
    assert_eq!(forward(&mut switch, From::Port(TWO), &frame(mac(7), mac(2))).1, [To::Port(LAN)]);
    let notices = close_lan(&mut switch);
    assert!(macs(&switch, NOW).is_empty());
    let (_, out) = forward(&mut switch, From::Port(TWO), &frame(mac(7), mac(2)));
    assert_eq!(out, [&[To::Port(ONE)], &everyone()[..]].concat(), "it may be reached by another way");
    let ways: Vec<_> = notices.iter().map(|notice| notice.to).collect();
    assert_eq!(ways, everyone());
    // Notices may be lost, and frames still go round.
    let mut said = vec![];
    for tenths in 1..50 {
        let now = NOW + SECOND * tenths / 10;
        teach(&mut switch, now);
        switch.tick(now, &mut said);
    }
    let count = |said: &[Parcel]| said.iter().filter(|parcel| parcel.bytes == notices[0].bytes).count();
    assert_eq!(count(&said), 2 * 2);
    said.clear();
    let open = NOW + SECOND * 5;
    switch.tick(open, &mut said);
    assert!(count(&said) == 2 && macs(&switch, open).is_empty(), "it is open again");
}

#[test]
fn detaching_a_lan_port_sends_a_change_notice() {
    let mut switch = switch();
    let notices = close_lan(&mut switch);
    let now = NOW + SECOND * 20;
    for tenths in 0..50 {
        switch.tick(now + SECOND * tenths / 10, &mut vec![]);
    }
    let now = now + SECOND * 5;
    let count = |switch: &mut Switch| {
        let mut said = vec![];
        switch.tick(now, &mut said);
        said.iter().filter(|parcel| parcel.bytes == notices[0].bytes).count()
    };
    switch.detach(ONE);
    assert_eq!(count(&mut switch), 0, "the port has no LAN");
    switch.detach(LAN);
    assert_eq!(count(&mut switch), 2);
}

#[test]
fn all_stations_are_announced_despite_repeated_changes() {
    let mut switch = switch();
    for number in 0..2000_u16 {
        let [high, low] = number.to_be_bytes();
        let mac = Mac([2, 9, 0, 0, high, low]);
        push(&mut switch, &Entry { mac, ..entry(1, RIGHT, None, 1) });
    }
    let notice = close_lan(&mut switch)[0].bytes.clone();
    let open = NOW + SECOND * 10;
    let mut said = vec![];
    for tenths in 0..12 {
        let now = open + SECOND * tenths / 10;
        if tenths % 6 == 0 {
            forward_at(&mut switch, link(LEFT, LEFT, Destination::Everyone), &notice, now);
        }
        switch.tick(now, &mut said);
    }
    let told =
        said.iter().filter(|parcel| parcel.to == To::Port(LAN) && parcel.bytes[12..14] == [0x80, 0x35]);
    let told: std::collections::HashSet<_> = told.map(|parcel| parcel.bytes[6..12].to_vec()).collect();
    assert!(told.len() >= 2000, "{} of 2000", told.len());
}

#[test]
fn a_blocked_lan_port_makes_all_nodes_relearn_and_announce_stations() {
    let mut other = Switch::new(LEFT, 9, Limits::default());
    other.install(row(1).routes(LEFT).unwrap()).unwrap();
    other.use_version(Version(1)).unwrap();
    let others = [PortId(1), PortId(2)];
    others.iter().for_each(|port| other.attach(*port, PortKind::Lan));
    let mut out = vec![];
    other.tick(NOW, &mut out);
    forward(&mut other, From::Port(others[1]), &out[0].bytes);
    out.clear();
    other.tick(NOW, &mut out);
    let [Parcel { to: To::Link { neighbour: ME, .. }, bytes: notice, .. }] = &out[..] else {
        panic!("{out:?}")
    };

    let mut switch = switch();
    push(&mut switch, &entry(1, ME, Some(ONE), 1));
    push(&mut switch, &entry(3, ME, Some(LAN), 1));
    (20..=255).for_each(|number| push(&mut switch, &entry(number, RIGHT, None, 1)));
    switch.tick(NOW, &mut vec![]);
    forward(&mut switch, From::Port(TWO), &frame(Mac::BROADCAST, mac(7)));
    assert_eq!(forward(&mut switch, From::Port(LAN), notice), dropped(Reason::Spoofed));
    assert!(macs(&switch, NOW).iter().any(|known| known.mac == mac(7)));
    let heard = forward(&mut switch, link(LEFT, LEFT, Destination::Everyone), notice);
    assert_eq!(heard, (Verdict::Flooded, vec![to(RIGHT, LEFT, Destination::Everyone, 1)]), "to no port");
    assert!(!macs(&switch, NOW).iter().any(|known| known.mac == mac(7)));
    let mut said = vec![];
    switch.tick(NOW, &mut said);
    assert!(said.iter().all(|parcel| parcel.to == To::Port(LAN) && parcel.bytes[12..14] == [0x80, 0x35]));
    let mut told: Vec<u8> = said.iter().map(|parcel| parcel.bytes[11]).collect();
    told.sort_unstable();
    assert_eq!(
        told,
        [&[1], &(20..=255).collect::<Vec<u8>>()[..]].concat(),
        "but not the stations behind the LAN"
    );
    said.clear();
    switch.tick(NOW, &mut said);
    assert_eq!(said, [], "once");
    forward(&mut switch, From::Port(TWO), &frame(Mac::BROADCAST, mac(7)));
    let again = |switch: &mut Switch, now| {
        forward_at(switch, link(LEFT, LEFT, Destination::Everyone), notice, now);
        macs(switch, now).iter().any(|known| known.mac == mac(7))
    };
    assert!(again(&mut switch, NOW + SECOND / 10), "many notices are as one");
    assert!(!again(&mut switch, NOW + SECOND));
}

#[test]
fn announcements_to_lans_are_rate_limited() {
    let mut switch = switch();
    for number in 0..1000_u16 {
        let [high, low] = number.to_be_bytes();
        push(&mut switch, &Entry { mac: Mac([2, 0, 0, 1, high, low]), ..entry(1, RIGHT, None, 1) });
    }
    switch.attach(PortId(4), PortKind::Lan);
    close_lan(&mut switch);
    let mut told = vec![];
    let mut times = 0;
    loop {
        let mut said = vec![];
        switch.tick(NOW, &mut said);
        if said.is_empty() {
            break;
        }
        assert!(said.len() <= 256 && said.iter().all(|parcel| parcel.to == To::Port(PortId(4))));
        told.extend(said.iter().map(|parcel| parcel.bytes[6..12].to_vec()));
        times += 1;
    }
    told.sort();
    told.dedup();
    assert!(times == 3 && told.len() == 1000 - 256, "the first of them with the notice: {times}");
}

#[test]
fn an_instance_that_bridges_the_lan_has_the_lan_blocked() {
    let mut switch = switch();
    let mut probes = vec![];
    switch.tick(NOW, &mut probes);
    assert_eq!(forward(&mut switch, From::Port(ONE), &probes[0].bytes), dropped(Reason::Loop));
    let blocked = |switch: &Switch| {
        switch.state(NOW).ports.iter().map(|port| !port.blocked.is_zero()).collect::<Vec<_>>()
    };
    assert_eq!(blocked(&switch), [false, false, true]);
}

#[test]
fn of_two_nodes_on_one_lan_the_higher_blocks_its_port() {
    let mut switch = switch();
    let mut probes = vec![];
    switch.tick(NOW, &mut probes);
    let round = |neighbour| link(neighbour, neighbour, Destination::Everyone);
    let blocked = |switch: &Switch| !switch.state(NOW).ports[2].blocked.is_zero();
    assert_eq!(forward(&mut switch, round(RIGHT), &probes[0].bytes).0, Verdict::Flooded);
    assert!(!blocked(&switch), "the other has found it as well, and is higher");
    forward(&mut switch, round(LEFT), &probes[0].bytes);
    assert!(blocked(&switch));
    assert_eq!(switch.counters().dropped(Reason::Loop), 2);
}

#[test]
fn foreign_probes_pass_and_are_not_learned() {
    let mut switch = switch();
    let mut others = Switch::new(ME, 8, Limits::default());
    others.attach(LAN, PortKind::Lan);
    let mut probes = vec![];
    others.tick(NOW, &mut probes);
    let relayed = forward(&mut switch, From::Port(LAN), &probes[0].bytes);
    assert_eq!(relayed, (Verdict::Flooded, everyone()), "to no LAN");
    let (_, out) = forward(&mut switch, link(LEFT, LEFT, Destination::Everyone), &probes[0].bytes);
    assert_eq!(out, [to(RIGHT, LEFT, Destination::Everyone, 1)]);
    assert!(switch.macs(NOW).is_empty() && switch.state(NOW).ports[2].blocked.is_zero());
}

#[test]
fn a_lan_that_returns_our_frames_is_blocked_without_probes() {
    let mut switch = switch();
    push(&mut switch, &entry(1, ME, Some(ONE), 1));
    push(&mut switch, &entry(8, LEFT, None, 1));
    push(&mut switch, &entry(9, RIGHT, None, 1));
    let is_blocked = |switch: &Switch, now| !switch.state(now).ports[2].blocked.is_zero();
    let sent = |number| frame(Mac::BROADCAST, mac(number));
    for (number, begin) in [(1, NOW), (8, NOW + SECOND * 30), (9, NOW + SECOND * 60)] {
        let mut signs = (0..80).map(|tenths| begin + SECOND * tenths / 10);
        let blocked = signs.find(|now| {
            let (verdict, _) = forward_at(&mut switch, From::Port(LAN), &sent(number), *now);
            assert_eq!(verdict, Verdict::Dropped(Reason::Loop));
            is_blocked(&switch, *now)
        });
        assert!(blocked.is_some_and(|at| at > begin + SECOND * 3), "{number}: another node may end it");
    }
    assert_eq!(switch.state(NOW).ports[2].loops, 3);
    for seconds in 100..200 {
        let now = NOW + SECOND * 3 * seconds;
        forward_at(&mut switch, From::Port(LAN), &sent(9), now);
        assert!(!is_blocked(&switch, now), "it has ended each time");
    }
}

#[test]
fn the_state_reports_how_places_were_learned() {
    let mut switch = switch();
    push(&mut switch, &entry(1, ME, Some(ONE), 3));
    forward(&mut switch, From::Port(TWO), &frame(Mac::BROADCAST, mac(2)));
    let state = switch.state(NOW + SECOND);
    let macs = macs(&switch, NOW + SECOND);
    let known: Vec<_> = macs.iter().map(|state| (state.mac, state.port, state.age)).collect();
    assert_eq!(known, [(mac(1), Some(ONE), SECOND), (mac(2), Some(TWO), SECOND)]);
    assert_eq!(macs[0].origin, Origin::Managed { epoch: fabric::Epoch(3), kept: 0 });
    assert_eq!(macs[1].origin, Origin::Learned { vlan: 0 });
    assert_eq!((state.versions, state.macs), (vec![Version(1)], 2));
}
