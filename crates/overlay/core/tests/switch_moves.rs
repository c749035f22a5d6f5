//! Moves of a MAC, at one switch.

mod support;

use fabric::Epoch;
use overlay::Mac;
use overlay::switch::{Destination, From, Gate, Limits, PortId, Reason, Refused, Switch, To, Verdict};
use std::time::Duration;
use support::*;

const SECOND: Duration = Duration::from_secs(1);

/// Frames to the moving station 1, which differ.
fn to_one(number: u8) -> Vec<u8> {
    let mut frame = frame(mac(1), mac(9));
    frame.push(number);
    frame
}

fn gates(switch: &Switch) -> Vec<Gate> {
    switch.state(NOW).ports.iter().map(|port| port.gate).collect()
}

/// Station 1 lives here and is paused, and two frames are kept for it.
fn paused() -> Switch {
    let mut switch = switch();
    push(&mut switch, &entry(1, ME, Some(ONE), 1));
    push(&mut switch, &entry(9, LEFT, None, 1));
    switch.pause(mac(1)).unwrap();
    assert_eq!(forward(&mut switch, From::Port(TWO), &frame(mac(1), mac(2))).0, Verdict::Held);
    assert_eq!(forward(&mut switch, link(LEFT, LEFT, Destination::Node(ME)), &to_one(1)).0, Verdict::Held);
    switch
}

#[test]
fn frames_kept_at_the_source_follow_the_mac() {
    let mut switch = paused();
    let lost = forward(&mut switch, From::Port(ONE), &frame(mac(9), mac(1)));
    assert_eq!(lost.0, Verdict::Dropped(Reason::Paused));
    let (_, out) = forward(&mut switch, From::Port(TWO), &frame(Mac::BROADCAST, mac(2)));
    assert!(!out.contains(&To::Port(ONE)), "frames for all are not kept");
    let mut out = vec![];
    assert_eq!(switch.commit(&entry(1, RIGHT, None, 2), NOW, &mut out), Ok(true));
    let after = |ingress| to(RIGHT, ingress, Destination::Forwarded(RIGHT), 2);
    let (first, second) = (frame(mac(1), mac(2)), to_one(1));
    assert_eq!(parcels(&out), [(after(ME), &first[..]), (after(LEFT), &second[..])]);
    let straggler = link(LEFT, LEFT, Destination::Node(ME));
    assert_eq!(forward(&mut switch, straggler, &to_one(2)), (Verdict::Forwarded, vec![after(LEFT)]));
    let again = link(LEFT, LEFT, Destination::Forwarded(ME));
    assert_eq!(forward(&mut switch, again, &to_one(2)).0, Verdict::Dropped(Reason::Stale), "once only");
    let late = forward_at(&mut switch, straggler, &to_one(2), NOW + SECOND * 5);
    assert_eq!(late.0, Verdict::Dropped(Reason::Stale));
    assert_eq!(switch.unpause(mac(1), NOW, &mut out), Err(Refused::NotHere(mac(1))), "never two");
    assert_eq!(switch.commit(&entry(1, RIGHT, None, 2), NOW, &mut out), Ok(false));
    assert_eq!(gates(&switch)[0], Gate::Paused);
}

#[test]
fn a_held_station_sends_and_gets_nothing_until_it_stops() {
    let mut switch = switch();
    push(&mut switch, &entry(1, ME, Some(ONE), 1));
    push(&mut switch, &entry(9, LEFT, None, 1));
    switch.hold(mac(1)).unwrap();
    assert_eq!(forward(&mut switch, link(LEFT, LEFT, Destination::Node(ME)), &to_one(1)).0, Verdict::Held);
    let (_, out) = forward(&mut switch, From::Port(TWO), &frame(Mac::BROADCAST, mac(2)));
    assert!(!out.contains(&To::Port(ONE)), "frames for all are not kept");
    assert_eq!(forward(&mut switch, From::Port(ONE), &frame(mac(9), mac(1))).0, Verdict::Forwarded);
    switch.pause(mac(1)).unwrap();
    let late = forward(&mut switch, From::Port(ONE), &frame(mac(9), mac(1)));
    assert_eq!(late.0, Verdict::Dropped(Reason::Paused));
    let mut out = vec![];
    switch.unpause(mac(1), NOW, &mut out).unwrap();
    assert_eq!(parcels(&out), [(To::Port(ONE), &to_one(1)[..])]);
    assert_eq!(gates(&switch), [Gate::Open; 3]);
}

#[test]
fn a_move_rolled_back_leaves_the_source_as_it_was() {
    let mut switch = paused();
    let mut out = vec![];
    switch.unpause(mac(1), NOW, &mut out).unwrap();
    let (first, second) = (frame(mac(1), mac(2)), to_one(1));
    assert_eq!(parcels(&out), [(To::Port(ONE), &first[..]), (To::Port(ONE), &second[..])]);
    assert_eq!(forward(&mut switch, From::Port(ONE), &frame(mac(9), mac(1))).0, Verdict::Forwarded);
    switch.unpause(mac(1), NOW, &mut vec![]).unwrap();
    assert_eq!(gates(&switch), [Gate::Open; 3]);
}

#[test]
fn the_destination_is_muted_until_it_resumes() {
    let mut switch = switch();
    push(&mut switch, &entry(1, LEFT, None, 1));
    push(&mut switch, &entry(9, LEFT, None, 1));
    switch.prepare(mac(1), ONE, Epoch(2)).unwrap();
    switch.prepare(mac(1), ONE, Epoch(2)).unwrap();
    let early = link(LEFT, LEFT, Destination::Forwarded(ME));
    assert_eq!(forward(&mut switch, early, &to_one(1)).0, Verdict::Held, "others know already");
    assert_eq!(forward(&mut switch, From::Port(ONE), &to_one(0)).0, Verdict::Dropped(Reason::Muted));
    let asked = forward(&mut switch, From::Port(ONE), &question(9));
    assert!(
        matches!(asked, (Verdict::Answered(_), ways) if ways.is_empty()),
        "or it would wait for a second"
    );
    assert_eq!(forward(&mut switch, From::Port(ONE), &question(7)).0, Verdict::Dropped(Reason::Muted));
    let mut out = vec![];
    assert_eq!(switch.resume(mac(1), &mut out), Err(Refused::NotCommitted(mac(1))));
    push(&mut switch, &entry(1, ME, None, 2));
    assert_eq!(switch.abort(mac(1), &mut out), Err(Refused::Committed(mac(1))));
    assert_eq!(switch.pause(mac(1)), Err(Refused::Arriving(mac(1))));
    assert_eq!(forward(&mut switch, link(LEFT, LEFT, Destination::Node(ME)), &to_one(2)).0, Verdict::Held);
    assert_eq!(gates(&switch)[0], Gate::Muted);
    switch.resume(mac(1), &mut out).unwrap();
    assert_eq!(parcels(&out), [(To::Port(ONE), &to_one(1)[..]), (To::Port(ONE), &to_one(2)[..])]);
    switch.resume(mac(1), &mut vec![]).unwrap();
    assert_eq!(forward(&mut switch, From::Port(ONE), &frame(mac(9), mac(1))).0, Verdict::Forwarded);
}

#[test]
fn late_frames_of_the_source_are_accepted_for_the_grace_time() {
    let mut switch = switch();
    push(&mut switch, &entry(1, LEFT, None, 1));
    push(&mut switch, &entry(1, RIGHT, None, 2));
    push(&mut switch, &entry(2, ME, Some(TWO), 1));
    let sent = frame(mac(2), mac(1));
    let from = |node| link(node, node, Destination::Node(ME));
    let late = NOW + SECOND * 5;
    assert_eq!(forward(&mut switch, from(LEFT), &sent).0, Verdict::Forwarded);
    assert_eq!(forward_at(&mut switch, from(LEFT), &sent, late).0, Verdict::Dropped(Reason::Spoofed));
    assert_eq!(forward_at(&mut switch, from(RIGHT), &sent, late).0, Verdict::Forwarded);
}

#[test]
fn an_aborted_destination_sends_back_its_kept_frames() {
    let mut switch = switch();
    push(&mut switch, &entry(1, LEFT, None, 1));
    switch.prepare(mac(1), ONE, Epoch(2)).unwrap();
    assert_eq!(forward(&mut switch, link(RIGHT, RIGHT, Destination::Node(ME)), &to_one(1)).0, Verdict::Held);
    let mut out = vec![];
    switch.abort(mac(1), &mut out).unwrap();
    switch.abort(mac(1), &mut out).unwrap();
    let back = to(LEFT, RIGHT, Destination::Forwarded(LEFT), 2);
    assert_eq!(parcels(&out), [(back, &to_one(1)[..])]);
    assert_eq!(gates(&switch)[0], Gate::Open);
}

#[test]
fn a_mac_moves_between_ports_of_one_node() {
    let mut switch = paused();
    switch.prepare(mac(1), LAN, Epoch(2)).unwrap();
    push(&mut switch, &entry(1, ME, Some(LAN), 2));
    assert_eq!(forward(&mut switch, link(LEFT, LEFT, Destination::Node(ME)), &to_one(2)).0, Verdict::Held);
    let mut out = vec![];
    switch.resume(mac(1), &mut out).unwrap();
    let expected = [frame(mac(1), mac(2)), to_one(1), to_one(2)];
    assert_eq!(parcels(&out), expected.each_ref().map(|frame| (To::Port(LAN), &frame[..])));
    assert_eq!(gates(&switch), [Gate::Paused, Gate::Open, Gate::Open]);
}

#[test]
fn the_number_of_kept_frames_is_bounded() {
    let one = Limits { kept_frames: 3, kept_bytes: 1000, ..Limits::default() };
    let in_all = Limits { kept_bytes_in_all: 900, ..one };
    for (limits, expected) in [(one, (3, 2)), (in_all, (3, 1))] {
        let mut switch = switch_with(limits);
        push(&mut switch, &entry(1, ME, Some(ONE), 1));
        push(&mut switch, &entry(3, ME, Some(LAN), 1));
        for number in [1, 3] {
            switch.pause(mac(number)).unwrap();
        }
        let mut held = |number, length| {
            let mut sent = frame(mac(number), mac(2));
            sent.resize(length, 0);
            (0..10).filter(|_| forward(&mut switch, From::Port(TWO), &sent).0 == Verdict::Held).count()
        };
        let held = (held(1, 60), held(3, 400));
        assert_eq!(held, expected);
        assert_eq!(switch.counters().dropped(Reason::KeptFull) as usize, 20 - held.0 - held.1);
    }
}

#[test]
fn a_commit_to_another_node_voids_the_preparation() {
    let mut switch = switch();
    push(&mut switch, &entry(1, LEFT, None, 1));
    switch.prepare(mac(1), ONE, Epoch(2)).unwrap();
    forward(&mut switch, link(RIGHT, RIGHT, Destination::Node(ME)), &to_one(1));
    let mut out = vec![];
    switch.commit(&entry(1, RIGHT, None, 2), NOW, &mut out).unwrap();
    assert_eq!(parcels(&out), [(to(RIGHT, RIGHT, Destination::Forwarded(RIGHT), 2), &to_one(1)[..])]);
    switch.prepare(mac(1), TWO, Epoch(5)).unwrap();
    switch.commit(&entry(1, LEFT, None, 3), NOW, &mut out).unwrap();
    push(&mut switch, &entry(1, ME, None, 5));
    assert_eq!(macs(&switch, NOW)[0].port, Some(TWO), "frames for a later move stay");
}

#[test]
fn invalid_move_calls_are_refused() {
    let mut switch = switch();
    let one = mac(1);
    let mut out = vec![];
    push(&mut switch, &entry(1, ME, Some(ONE), 3));
    assert_eq!(switch.prepare(one, TWO, Epoch(3)), Err(Refused::Old(one)));
    assert_eq!(switch.prepare(one, ONE, Epoch(4)), Err(Refused::Committed(one)));
    assert_eq!(switch.prepare(one, PortId(9), Epoch(4)), Err(Refused::NoPort(one)));
    assert_eq!(switch.pause(mac(2)), Err(Refused::NotHere(mac(2))));
    assert_eq!(switch.resume(mac(2), &mut out), Err(Refused::NotHere(mac(2))));
    switch.prepare(one, TWO, Epoch(4)).unwrap();
    assert_eq!(switch.prepare(one, TWO, Epoch(5)), Err(Refused::Arriving(one)));
    let group = overlay::switch::Entry { mac: Mac::BROADCAST, ..entry(1, LEFT, None, 1) };
    assert_eq!(switch.commit(&group, NOW, &mut out), Err(Refused::NoStation(Mac::BROADCAST)));
    assert_eq!(
        switch.commit(&entry(1, ME, Some(PortId(9)), 3), NOW, &mut out),
        Ok(false),
        "old, and so no matter"
    );
    assert_eq!(switch.commit(&entry(7, ME, None, 1), NOW, &mut out), Err(Refused::NoPort(mac(7))));
    let mut many = entry(7, LEFT, None, 1);
    many.addresses = (0..=64).map(|last| [10, 0, 0, last].into()).collect();
    assert_eq!(switch.commit(&many, NOW, &mut out), Err(Refused::TooManyAddresses(mac(7))));
    let mut full = switch_with(Limits { managed: 1, ..Limits::default() });
    push(&mut full, &entry(1, LEFT, None, 1));
    assert_eq!(full.commit(&entry(2, LEFT, None, 1), NOW, &mut out), Err(Refused::Full(mac(2))));
    push(&mut full, &entry(1, RIGHT, None, 2));
}

#[test]
fn stations_unknown_to_the_coordinator_are_withdrawn() {
    let mut switch = switch();
    push(&mut switch, &entry(1, ME, Some(ONE), 1));
    push(&mut switch, &entry(2, LEFT, None, 2));
    push(&mut switch, &entry(9, RIGHT, None, 7));
    switch.withdraw_others(&[mac(1)].into(), Epoch(5), NOW);
    let known: Vec<_> = macs(&switch, NOW).iter().map(|known| known.mac).collect();
    assert_eq!(known, [mac(1), mac(9)], "a newer entry came meanwhile");
    let mut out = vec![];
    assert_eq!(switch.commit(&entry(2, LEFT, None, 5), NOW, &mut out), Ok(false));
    assert_eq!(switch.commit(&entry(2, LEFT, None, 6), NOW, &mut out), Ok(true));
}

#[test]
fn a_flooded_frame_comes_to_one_of_two_owners() {
    let mut switch = switch();
    push(&mut switch, &entry(1, LEFT, None, 1));
    push(&mut switch, &entry(1, ME, Some(ONE), 2));
    let flooded = link(RIGHT, RIGHT, Destination::Everyone);
    let late = NOW + SECOND * 5;
    let (_, out) = forward(&mut switch, flooded, &to_one(1));
    assert!(!out.contains(&To::Port(ONE)), "the old owner may have delivered it");
    let mut switch_at = |now| forward_at(&mut switch, flooded, &frame(mac(1), mac(7)), now).1;
    assert!(switch_at(late).contains(&To::Port(ONE)));
}
