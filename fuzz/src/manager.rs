//! Connection managers: hostile ones send any datagram, and connections of an honest one proceed.

use std::net::SocketAddr;
use std::time::Duration;

use cm::wire::{Body, Message, VERSION};
use cm::{Addresses, ConnectionId, Event, Limits, Manager, Offer, Output, Peer, Reason, Service};

use crate::input::Input;

const SPACE: u16 = 0x106;
const US: Peer = Peer { lid: 1, qpn: 0x1_0001 };
const HONEST: Peer = Peer { lid: 2, qpn: 0x3_0001 };
const HOSTILE: [Peer; 2] = [Peer { lid: 3, qpn: 0x1_0001 }, Peer { lid: 2, qpn: 0x4_0001 }];

/// Room for the requests of the hostile as well as the honest.
const BACKLOG: usize = 1024;

/// Our manager, and the honest one.
struct World {
    now: Duration,
    ours: Manager,
    theirs: Manager,
    /// The events of the honest connection at our program, and that connection's number.
    connection: Option<ConnectionId>,
    events: Vec<Event>,
    /// Connections that the hostile have asked for.
    pending: Vec<ConnectionId>,
}

/// Runs hostile managers as the script says.
///
/// # Panics
/// If the honest one is affected.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut world = World::new();
    while !input.is_empty() {
        world.act(&mut input);
    }
    world.finish();
}

fn service() -> Service {
    Service { space: SPACE, address: [10, 0, 0, 1].into(), port: 7 }
}

fn source() -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 2], 4000))
}

fn offer(private: &[u8]) -> Offer {
    Offer { qpn: 9, psn: 1, kind: 2, private: private.to_vec(), ..Offer::default() }
}

impl World {
    fn new() -> Self {
        let mut world = Self {
            now: Duration::from_secs(1),
            ours: Manager::new(Limits::default()),
            theirs: Manager::new(Limits::default()),
            connection: None,
            events: Vec::new(),
            pending: Vec::new(),
        };
        world.ours.listen(SPACE, Addresses::Any, 7, BACKLOG);
        let asked = world.theirs.connect(US, service(), source(), offer(b"honest"), false, world.now);
        assert!(asked.is_some());
        world.settle();
        world
    }

    fn act(&mut self, input: &mut Input<'_>) {
        let from = input.pick(&HOSTILE);
        match input.below(8) {
            0 => self.ours.received(from, input.bytes(), self.now),
            1 => {
                self.now += Duration::from_millis(u64::from(input.byte()) * 4);
                self.ours.expire(self.now);
                self.theirs.expire(self.now);
            }
            2 => {
                if let Some(id) = self.pending.pop() {
                    decide(&mut self.ours, id, input, self.now);
                }
            }
            _ => {
                let message = message(input);
                self.ours.received(from, &message.encode(), self.now);
            }
        }
        self.settle();
    }

    /// Carries messages between us and the honest manager until none are left.
    fn settle(&mut self) {
        for _ in 0..1000 {
            let (ours, theirs) = (self.ours.take_outputs(), self.theirs.take_outputs());
            if ours.is_empty() && theirs.is_empty() {
                return;
            }
            ours.into_iter().for_each(|output| self.ours_says(output));
            theirs.into_iter().for_each(|output| self.theirs_says(output));
        }
        panic!("managers talk without an end");
    }

    fn ours_says(&mut self, output: Output) {
        match output {
            Output::Send { to: HONEST, datagram } => self.theirs.received(US, &datagram, self.now),
            Output::Tell { event: Event::Requested(incoming), connection } if incoming.peer == HONEST => {
                assert_eq!(incoming.offer.private, b"honest");
                assert!(self.connection.replace(connection).is_none(), "it is asked for once");
                assert!(self.ours.accept(connection, offer(b"welcome"), self.now));
            }
            Output::Tell { event: Event::Requested(_), connection } => self.pending.push(connection),
            Output::Tell { connection, event } if Some(connection) == self.connection => {
                self.events.push(event);
            }
            Output::Send { to, datagram } => {
                assert!(HOSTILE.contains(&to) && Message::decode(&datagram).is_some());
            }
            Output::Tell { .. } | Output::Watch(_) => {}
        }
    }

    fn theirs_says(&mut self, output: Output) {
        match output {
            Output::Send { datagram, .. } => self.ours.received(HONEST, &datagram, self.now),
            Output::Tell { connection, event: Event::Replied(_) } => {
                assert!(self.theirs.establish(connection));
            }
            Output::Tell { .. } | Output::Watch(_) => {}
        }
    }

    /// The honest connection is there, and ends when its program wants it to.
    fn finish(mut self) {
        assert_eq!(self.events, [Event::Established]);
        let connection = self.connection.expect("the request was heard");
        assert!(self.ours.disconnect(connection, self.now));
        self.settle();
        assert_eq!(self.events[1..], [Event::Disconnected]);
    }
}

fn decide(ours: &mut Manager, id: ConnectionId, input: &mut Input<'_>, now: Duration) {
    let _ = match input.below(4) {
        0 => ours.accept(id, offer(b"yes"), now),
        1 => ours.reject(id, b"no".to_vec(), now),
        2 => ours.disconnect(id, now),
        _ => {
            ours.abandon(id, now);
            true
        }
    };
}

/// A message that is well-formed, with numbers that may be others'.
fn message(input: &mut Input<'_>) -> Message {
    let number = |input: &mut Input<'_>| {
        if input.coin() { u32::from(input.byte() & 7) } else { input.word() }
    };
    let (from, to) = (number(input), number(input));
    let offer = Offer { kind: input.byte() & 7, ..offer(b"evil") };
    let body = match input.below(8) {
        0 | 1 => Body::Request { service: service(), source: source(), offer },
        2 => Body::Wait,
        3 => Body::Reply(offer),
        4 => Body::Ready,
        5 => Body::Reject { reason: Reason(u16::from(input.byte())), private: input.bytes().to_vec() },
        6 => Body::Disconnect,
        _ => Body::Disconnected,
    };
    Message { version: VERSION, from, to, body }
}

/// A connection from its request to its end, and each message about a connection of another peer.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    let says = |peer: u8, from: u8, to: u8, body: u8| vec![peer, 7, 1, from, 1, to, 2, body];
    let others: Vec<Vec<u8>> = (0..8).map(|body| says(1, 5, 2, body)).collect();
    let own = [
        says(0, 1, 0, 0),
        vec![0, 2, 0],
        says(0, 1, 3, 4),
        vec![0, 1, 200],
        says(0, 1, 3, 6),
        vec![0, 1, 200],
    ];
    let raw = Message { version: VERSION, from: 1, to: 0, body: Body::Disconnect }.encode();
    let raw = [&[0, 0, raw.len() as u8], raw.as_slice()].concat();
    vec![others.concat(), own.concat(), raw]
}
