//! Frames that need not pass the switch, at one switch. Networks of them are in `switch_simulation`.

mod support;

use std::collections::HashSet;

use fabric::Epoch;
use overlay::switch::{Changes, From, Reason, ShortCut, Switch, To, Verdict};
use overlay::topology::Version;
use support::*;

/// Station 1 lives here behind the first port, 2 on a neighbour.
fn two_stations() -> Switch {
    let mut switch = switch();
    push(&mut switch, &entry(1, ME, Some(ONE), 1));
    push(&mut switch, &entry(2, LEFT, None, 1));
    let _ = switch.take_changes();
    switch
}

fn short_cuts(switch: &Switch) -> [Option<ShortCut>; 2] {
    [1, 2].map(|number| switch.short_cut(mac(number)))
}

/// The stations with these numbers may have others.
fn of(numbers: &[u8]) -> Changes {
    Changes::Some(numbers.iter().map(|number| mac(*number)).collect::<HashSet<_>>())
}

const BOTH: [Option<ShortCut>; 2] = [Some(ShortCut::Port(ONE)), Some(ShortCut::Node(LEFT))];

#[test]
fn local_and_neighbouring_stations_have_short_cuts() {
    let mut switch = two_stations();
    assert_eq!(short_cuts(&switch), BOTH);
    push(&mut switch, &entry(3, ME, Some(LAN), 1));
    assert_eq!(switch.short_cut(mac(3)), None, "on a LAN there may be others");
    let (_, out) = forward(&mut switch, From::Port(TWO), &frame(mac(1), mac(7)));
    assert_eq!(out, [To::Port(ONE)]);
    assert_eq!(switch.short_cut(mac(7)), None, "a learned station may be forged");
    let at_the_end = overlay::topology::Topology::star(Version(2), LEFT, &[LEFT, ME, RIGHT]).unwrap();
    switch.install(at_the_end.routes(ME).unwrap()).unwrap();
    push(&mut switch, &entry(4, RIGHT, None, 1));
    assert_eq!(switch.short_cut(mac(4)), Some(ShortCut::Node(RIGHT)));
    let _ = switch.take_changes();
    switch.use_version(Version(2)).unwrap();
    assert_eq!(switch.take_changes(), Changes::All);
    assert_eq!((switch.short_cut(mac(4)), short_cuts(&switch)), (None, BOTH), "over another node");
}

#[test]
fn paused_and_prepared_stations_have_no_short_cuts() {
    let mut switch = two_stations();
    // Another one is to live there.
    switch.prepare(mac(9), ONE, Epoch(2)).unwrap();
    assert_eq!((switch.take_changes(), short_cuts(&switch)), (of(&[1, 9]), [None, BOTH[1]]));
    switch.abort(mac(9), &mut vec![]).unwrap();
    assert_eq!((switch.take_changes(), short_cuts(&switch)), (of(&[1, 9]), BOTH));
    switch.pause(mac(1)).unwrap();
    assert_eq!((switch.take_changes(), short_cuts(&switch)), (of(&[1]), [None, BOTH[1]]));
    switch.unpause(mac(1), NOW, &mut vec![]).unwrap();
    assert_eq!((switch.take_changes(), short_cuts(&switch)), (of(&[1]), BOTH));
    switch.detach(ONE);
    assert_eq!((switch.take_changes(), short_cuts(&switch)), (of(&[1]), [None, BOTH[1]]));
}

#[test]
fn each_change_is_reported_once() {
    let mut switch = two_stations();
    assert_eq!(switch.take_changes(), Changes::default());
    push(&mut switch, &entry(2, RIGHT, None, 2));
    assert_eq!((switch.take_changes(), switch.take_changes()), (of(&[2]), Changes::default()));
    assert!(switch.withdraw(mac(2), Epoch(3), NOW));
    assert_eq!((switch.take_changes(), switch.short_cut(mac(2))), (of(&[2]), None));
    // Of so many that is not worth while.
    (0..=255)
        .for_each(|epoch| (10..15).for_each(|number| push(&mut switch, &entry(number, LEFT, None, epoch))));
    assert!(matches!(switch.take_changes(), Changes::Some(macs) if macs.len() == 5));
}

#[test]
fn frames_from_a_short_cut_are_treated_like_frames_of_a_neighbour() {
    let mut switch = two_stations();
    let come =
        |switch: &mut Switch, to, from| forward(switch, From::ShortCut(LEFT), &frame(mac(to), mac(from)));
    assert_eq!(come(&mut switch, 1, 2), (Verdict::Forwarded, vec![To::Port(ONE)]));
    push(&mut switch, &entry(3, RIGHT, None, 1));
    assert_eq!(come(&mut switch, 1, 3).0, Verdict::Dropped(Reason::Spoofed));
    assert_eq!(come(&mut switch, 3, 2).0, Verdict::Dropped(Reason::Stale), "it goes no further");
    let to_all = frame(overlay::Mac::BROADCAST, mac(2));
    assert_eq!(forward(&mut switch, From::ShortCut(LEFT), &to_all).0, Verdict::Dropped(Reason::Malformed));
    switch.pause(mac(1)).unwrap();
    assert_eq!(come(&mut switch, 1, 2).0, Verdict::Held);
}
