//! Two managers in virtual time, with a network that may lose or repeat datagrams.

use std::net::SocketAddr;
use std::time::Duration;

use cm::{Addresses, ConnectionId, Event, Limits, ListenerId, Manager, Offer, Output, Peer, Reason, Service};

const SPACE: u16 = 0x106;
const CLIENT: Peer = Peer { lid: 1, qpn: 0x1_0001 };
const SERVER: Peer = Peer { lid: 2, qpn: 0x3_0001 };

/// What becomes of a datagram.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Arrives,
    IsLost,
    ArrivesTwice,
}

struct World {
    now: Duration,
    managers: [Manager; 2],
    told: [Vec<(ConnectionId, Event)>; 2],
    watched: [Vec<Peer>; 2],
    fate: Box<dyn FnMut(usize) -> Fate>,
    sent: usize,
}

impl World {
    fn new(fate: impl FnMut(usize) -> Fate + 'static) -> Self {
        Self {
            now: Duration::ZERO,
            managers: [Manager::new(Limits::default()), Manager::new(Limits::default())],
            told: Default::default(),
            watched: Default::default(),
            fate: Box::new(fate),
            sent: 0,
        }
    }

    /// Carries datagrams until there are none.
    fn settle(&mut self) {
        while let Some(side) = (0..2).find(|side| self.carry(*side)) {
            assert!(self.sent < 10_000, "side {side} does not stop");
        }
    }

    fn carry(&mut self, side: usize) -> bool {
        let outputs = self.managers[side].take_outputs();
        for output in &outputs {
            match output.clone() {
                Output::Tell { connection, event } => self.told[side].push((connection, event)),
                Output::Watch(peer) => self.watched[side].push(peer),
                Output::Send { to, datagram } => {
                    self.sent += 1;
                    assert_eq!(to, [SERVER, CLIENT][side]);
                    let times = match (self.fate)(self.sent) {
                        Fate::Arrives => 1,
                        Fate::IsLost => 0,
                        Fate::ArrivesTwice => 2,
                    };
                    for _ in 0..times {
                        self.managers[1 - side].received([CLIENT, SERVER][side], &datagram, self.now);
                    }
                }
            }
        }
        !outputs.is_empty()
    }

    /// Lets time pass, with all that happens in it.
    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        self.settle();
        while let Some(at) = self.managers.iter().filter_map(Manager::deadline).min().filter(|at| *at <= end)
        {
            self.now = at;
            for manager in &mut self.managers {
                manager.expire(at);
            }
            self.settle();
        }
        self.now = end;
    }

    /// Lets time pass until something has happened.
    fn wait(&mut self, happened: impl Fn(&Self) -> bool) {
        self.settle();
        while !happened(self) {
            assert!(self.now < Duration::from_secs(60), "{:?}", self.told);
            self.pass(Duration::from_millis(10));
        }
    }

    fn connect(&mut self, port: u16) -> ConnectionId {
        self.ask(port, offer("hello"), false)
    }

    fn ask(&mut self, port: u16, offer: Offer, datagram: bool) -> ConnectionId {
        let service = Service { space: SPACE, address: "10.0.0.2".parse().unwrap(), port };
        let source: SocketAddr = "10.0.0.1:4000".parse().unwrap();
        self.managers[0].connect(SERVER, service, source, offer, datagram, self.now).unwrap()
    }

    fn listen(&mut self, backlog: usize) -> ListenerId {
        self.managers[1].listen(SPACE, Addresses::Any, 7, backlog)
    }

    /// The server's connection of the only request.
    fn requested(&self) -> ConnectionId {
        let asked = self.told[1].iter().filter(|(_, event)| matches!(event, Event::Requested(_)));
        let [(id, _)] = asked.collect::<Vec<_>>()[..] else { panic!("{:?}", self.told[1]) };
        *id
    }

    fn told(&self, side: usize, wanted: &Event) -> bool {
        self.told[side].iter().filter(|(_, event)| event == wanted).count() == 1
    }

    /// A connection that the passive side has accepted, and the active side knows so.
    fn replied(&mut self) -> (ConnectionId, ConnectionId) {
        self.listen(4);
        let here = self.connect(7);
        self.wait(|world| !world.told[1].is_empty());
        let there = self.requested();
        assert!(self.managers[1].accept(there, offer("welcome"), self.now));
        self.wait(|world| world.told(0, &Event::Replied(offer("welcome"))));
        (here, there)
    }

    /// A connection, as both sides have it.
    fn connected(&mut self) -> (ConnectionId, ConnectionId) {
        let (here, there) = self.replied();
        assert!(self.managers[0].establish(here));
        self.wait(|world| world.told(1, &Event::Established));
        (here, there)
    }
}

fn offer(text: &str) -> Offer {
    Offer { qpn: 9, kind: 2, private: text.into(), ..Offer::default() }
}

#[test]
fn a_connection_is_made_and_ended_from_either_side() {
    for ending in 0..2 {
        let mut world = World::new(|_| Fate::Arrives);
        let (here, there) = world.connected();
        assert_eq!(world.sent, 3);
        assert!(world.managers[ending].disconnect([here, there][ending], world.now));
        world.pass(Duration::from_secs(1));
        for side in 0..2 {
            assert!(world.told(side, &Event::Disconnected) && world.told(side, &Event::Over));
        }
        assert!(
            world.managers[1 - ending].disconnect([there, here][ending], world.now),
            "once more is no harm"
        );
    }
}

#[test]
fn accepting_and_closing_at_once_establishes_the_connection() {
    let mut world = World::new(|_| Fate::Arrives);
    world.listen(4);
    let here = world.connect(7);
    world.wait(|world| !world.told[1].is_empty());
    let there = world.requested();
    assert!(world.managers[1].accept(there, offer("welcome"), world.now));
    assert!(world.managers[1].disconnect(there, world.now));
    world.pass(Duration::from_secs(1));
    let heard: Vec<_> = world.told[0].iter().map(|(_, event)| event).collect();
    assert_eq!(heard, [&Event::Replied(offer("welcome")), &Event::Disconnected, &Event::Over]);
    assert!(world.managers[0].establish(here));
}

#[test]
fn lost_and_repeated_datagrams_change_nothing() {
    for modulus in 2..6 {
        for lost in 0..modulus {
            let mut world = World::new(move |number| match number % modulus {
                at if at == lost => Fate::IsLost,
                at if at == (lost + 1) % modulus => Fate::ArrivesTwice,
                _ => Fate::Arrives,
            });
            let (here, _) = world.connected();
            world.managers[0].disconnect(here, world.now);
            world.pass(Duration::from_secs(30));
            for side in 0..2 {
                assert!(world.told(side, &Event::Disconnected), "{modulus} {lost}: {:?}", world.told[side]);
            }
        }
    }
}

#[test]
fn no_listener_and_a_rejection_are_distinguished() {
    let mut world = World::new(|_| Fate::Arrives);
    world.connect(7);
    world.pass(Duration::from_millis(900));
    let nobody = Event::Rejected { reason: Reason::INVALID_SERVICE, private: Vec::new() };
    assert!(world.told[0].is_empty(), "somebody may be about to listen");
    world.pass(Duration::from_secs(2));
    assert!(world.told(0, &nobody));
    world.connect(7);
    world.settle();
    world.listen(1);
    world.pass(Duration::from_secs(1));
    let there = world.requested();
    assert!(world.managers[1].reject(there, b"no".to_vec(), world.now));
    world.settle();
    assert!(world.told(0, &Event::Rejected { reason: Reason::CONSUMER, private: b"no".to_vec() }));
}

#[test]
fn a_ready_peer_learns_of_a_rejection_after_the_reply() {
    let no = Event::Rejected { reason: Reason::CONSUMER, private: b"no".to_vec() };
    // The next messages are that the one side is ready, and then that the other has rejected it.
    for lost in [None, Some(2)] {
        let mut world = World::new(|_| Fate::Arrives);
        let (here, there) = world.replied();
        let before = world.sent;
        world.fate = Box::new(move |at| if Some(at - before) == lost { Fate::IsLost } else { Fate::Arrives });
        assert!(world.managers[0].establish(here));
        assert!(world.managers[1].reject(there, b"no".to_vec(), world.now));
        world.wait(|world| world.told(0, &no));
        assert!(!world.told(1, &Event::Established), "it has taken it back");
    }
}

#[test]
fn a_peer_that_is_ready_late_learns_of_its_rejection() {
    for forgets in [false, true] {
        let mut world = World::new(|_| Fate::Arrives);
        let (here, there) = world.replied();
        world.fate = Box::new(|_| Fate::IsLost);
        assert!(world.managers[1].reject(there, b"no".to_vec(), world.now));
        if forgets {
            world.managers[1].abandon(there, world.now);
        }
        world.pass(Duration::from_secs(1));
        world.fate = Box::new(|_| Fate::Arrives);
        assert!(world.managers[0].establish(here));
        let (reason, private) =
            if forgets { (Reason::INVALID_ID, Vec::new()) } else { (Reason::CONSUMER, b"no".to_vec()) };
        world.wait(|world| world.told(0, &Event::Rejected { reason, private: private.clone() }));
    }
}

#[test]
fn an_established_connection_cannot_be_rejected() {
    let mut world = World::new(|_| Fate::Arrives);
    let (here, there) = world.connected();
    assert!(!world.managers[1].reject(there, Vec::new(), world.now));
    assert!(!world.managers[0].reject(here, Vec::new(), world.now));
}

#[test]
fn a_stale_refusal_ends_no_connection() {
    let mut world = World::new(|_| Fate::Arrives);
    let here = world.connect(7);
    let Some(Output::Send { datagram, .. }) = world.managers[0].take_outputs().into_iter().next() else {
        panic!("no request")
    };
    world.managers[1].received(CLIENT, &datagram, world.now);
    let refusals = world.managers[1].take_outputs();
    world.listen(4);
    world.wait(|world| !world.told[1].is_empty());
    let there = world.requested();
    assert!(world.managers[1].accept(there, offer("welcome"), world.now));
    world.wait(|world| world.told(0, &Event::Replied(offer("welcome"))));
    assert!(world.managers[0].establish(here));
    for refusal in refusals {
        let Output::Send { datagram, .. } = refusal else { continue };
        world.managers[0].received(SERVER, &datagram, world.now);
    }
    world.pass(Duration::from_secs(1));
    assert!(world.told(1, &Event::Established) && world.told[0].len() == 1, "{:?}", world.told);
}

#[test]
fn a_silent_peer_becomes_unreachable() {
    let mut world = World::new(|_| Fate::IsLost);
    world.connect(7);
    world.pass(Duration::from_secs(50));
    assert!(world.told[0].is_empty());
    world.pass(Duration::from_secs(20));
    assert!(world.told(0, &Event::Unreachable));
}

#[test]
fn a_program_may_take_its_time() {
    let mut world = World::new(|_| Fate::Arrives);
    world.listen(1);
    world.connect(7);
    world.pass(Duration::from_secs(300));
    assert!(world.told[0].is_empty(), "{:?}", world.told[0]);
    let there = world.requested();
    assert!(world.managers[1].accept(there, offer("at last"), world.now));
    world.settle();
    assert!(world.told(0, &Event::Replied(offer("at last"))));
}

#[test]
fn a_full_backlog_makes_others_wait() {
    let mut world = World::new(|_| Fate::Arrives);
    world.listen(1);
    let first = world.connect(7);
    world.settle();
    world.connect(7);
    world.settle();
    let there = world.requested();
    world.managers[1].accept(there, offer("one"), world.now);
    world.pass(Duration::from_secs(5));
    assert_eq!(world.told[0], [(first, Event::Replied(offer("one")))]);
    let asked = world.told[1].iter().filter(|(_, event)| matches!(event, Event::Requested(_))).count();
    assert_eq!(asked, 2);
}

#[test]
fn abandoned_requests_count_until_the_program_takes_them() {
    let mut world = World::new(|_| Fate::Arrives);
    world.listen(2);
    for _ in 0..5 {
        let here = world.connect(7);
        world.settle();
        world.managers[0].abandon(here, world.now);
        world.settle();
    }
    let asked = |world: &World| {
        let asked = world.told[1].iter().filter(|(_, event)| matches!(event, Event::Requested(_)));
        asked.map(|(id, _)| *id).collect::<Vec<_>>()
    };
    assert_eq!(asked(&world).len(), 2);
    let gone = asked(&world);
    assert!(!world.managers[1].accept(gone[0], offer("too late"), world.now));
    world.connect(7);
    world.settle();
    assert_eq!(asked(&world).len(), 3);
    world.managers[1].abandon(gone[1], world.now);
    world.connect(7);
    world.settle();
    assert_eq!(asked(&world).len(), 4);
}

#[test]
fn the_end_of_a_process_ends_its_connections() {
    let mut world = World::new(|_| Fate::Arrives);
    world.connected();
    assert_eq!(world.watched, [[SERVER], [CLIENT]]);
    world.managers[0].peer_ended(SERVER.lid, SERVER.index(), world.now);
    world.connect(7);
    world.managers[0].peer_ended(SERVER.lid, SERVER.index(), world.now);
    world.carry(0);
    let nobody = Event::Rejected { reason: Reason::INVALID_SERVICE, private: Vec::new() };
    assert!(world.told(0, &Event::Disconnected) && world.told(0, &nobody), "{:?}", world.told[0]);
}

#[test]
fn disconnecting_before_the_peer_is_ready_counts_as_a_rejection() {
    let mut world = World::new(|_| Fate::Arrives);
    world.listen(1);
    let here = world.connect(7);
    world.settle();
    let there = world.requested();
    assert!(world.managers[1].accept(there, offer("yes"), world.now));
    world.settle();
    world.managers[0].peer_ended(SERVER.lid, SERVER.index(), world.now);
    world.carry(0);
    let nobody = Event::Rejected { reason: Reason::INVALID_SERVICE, private: Vec::new() };
    assert_eq!(world.told[0], [(here, Event::Replied(offer("yes"))), (here, nobody)]);
}

#[test]
fn abandoned_connections_are_ended_in_the_background() {
    let mut world = World::new(|_| Fate::Arrives);
    world.connected();
    world.managers[0].abandon_all(world.now);
    world.pass(Duration::from_secs(1));
    assert!(world.told(1, &Event::Disconnected));
    assert!(!world.told(0, &Event::Disconnected));
    let waiting = world.connect(7);
    world.settle();
    world.managers[0].abandon(waiting, world.now);
    world.settle();
    assert!(world.told(1, &Event::Rejected { reason: Reason::TIMEOUT, private: Vec::new() }));
    assert_eq!(world.managers[0].deadline(), None);
}

#[test]
fn a_datagram_service_is_resolved_by_two_messages() {
    let mut world = World::new(|_| Fate::Arrives);
    world.listen(1);
    let asking = Offer { kind: Offer::DATAGRAM, ..offer("where?") };
    world.ask(7, asking, true);
    world.settle();
    let there = world.requested();
    assert!(world.managers[1].accept(there, offer("here"), world.now));
    world.settle();
    assert!(world.told(0, &Event::Replied(offer("here"))));
    assert_eq!((world.sent, world.managers[1].deadline()), (2, None));
}

#[test]
fn a_stranger_cannot_send_for_a_peer() {
    let mut world = World::new(|_| Fate::Arrives);
    let (here, _) = world.connected();
    let stranger = Peer { lid: 7, qpn: 0x1_0001 };
    let body = cm::wire::Body::Disconnect;
    let message = cm::wire::Message { version: cm::wire::VERSION, from: 1, to: here.0, body };
    world.managers[0].received(stranger, &message.encode(), world.now);
    assert!(!world.told(0, &Event::Disconnected));
    let outputs = world.managers[0].take_outputs();
    assert!(matches!(outputs[..], [Output::Send { to, .. }] if to == stranger));
}

#[test]
fn managers_that_number_differently_do_not_know_each_others_listeners() {
    let mut parent = Manager::new(Limits::default()).numbering_from(u32::MAX);
    let mut child = Manager::new(Limits::default()).numbering_from(7);
    let inherited = [parent.listen(1, Addresses::Any, 1, 1), parent.listen(1, Addresses::Any, 2, 1)];
    let own = child.listen(1, Addresses::Any, 1, 1);
    assert_eq!((inherited, own), ([ListenerId(u32::MAX), ListenerId(1)], ListenerId(7)), "never 0");
}
