//! The agent between programs and a relay that the test plays.

use std::io::{Read, Write};
use std::net::{SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use fabric::seqpacket;
use guest::agent::serve;
use guest::frames::{Frames, encode};
use guest::port::Port;
use guest::wire::{Connection, Generation, Stream, TOKEN, ToGuest, ToHost, VERSION};

const LIMIT: Duration = Duration::from_secs(10);

/// A relay, and the socket on which the agent accepts programs.
struct Relay {
    port: UnixStream,
    frames: Frames,
    socket: Vec<u8>,
    links: TcpListener,
    /// The agent's own connection.
    sessions: Option<Connection>,
}

impl Relay {
    fn new(test: &str) -> Self {
        let (port, agents) = UnixStream::pair().unwrap();
        port.set_read_timeout(Some(LIMIT)).unwrap();
        let socket = format!("transhume/agent-test/{test}/{}", std::process::id()).into_bytes();
        let listener = seqpacket::listen(&socket).unwrap();
        thread::spawn(move || serve(Port::over(agents.into()).unwrap(), listener));
        let links = TcpListener::bind("127.0.0.1:0").unwrap();
        Self { port, frames: Frames::default(), socket, links, sessions: None }
    }

    fn say(&mut self, message: &ToGuest) {
        self.port.write_all(&encode(message)).unwrap();
    }

    /// The next message that is not about sessions.
    fn hear(&mut self) -> ToHost {
        loop {
            match self.hear_any() {
                ToHost::OpenedForSessions { connection, .. } => self.sessions = Some(connection),
                ToHost::Message { connection, .. } | ToHost::Closed { connection }
                    if self.sessions == Some(connection) => {}
                other => return other,
            }
        }
    }

    fn hear_any(&mut self) -> ToHost {
        let mut bytes = [0; 4096];
        loop {
            if let Some(message) = self.frames.take() {
                return message;
            }
            let length = self.port.read(&mut bytes).unwrap();
            assert_ne!(length, 0, "the agent has ended");
            self.frames.push(&bytes[..length]);
        }
    }

    /// Comes, as a relay of this generation; returns when the agent listens to it.
    fn come(&mut self, generation: Generation) {
        let address = match self.links.local_addr().unwrap() {
            std::net::SocketAddr::V4(address) => address,
            std::net::SocketAddr::V6(address) => panic!("{address}"),
        };
        self.welcome(generation, address);
        while self.hear() != (ToHost::Hello { version: VERSION, generation }) {}
    }

    fn welcome(&mut self, generation: Generation, address: SocketAddrV4) {
        self.say(&ToGuest::Welcome { version: VERSION, generation, mac: [2, 9, 9, 9, 9, 9], address });
    }

    /// A program, and the number of its connection.
    fn program(&mut self) -> (OwnedFd, Connection) {
        let program = seqpacket::connect(&self.socket).unwrap();
        let ToHost::Opened { connection, pid } = self.hear() else { panic!("no program has connected") };
        assert_eq!(pid, std::process::id().cast_signed());
        (program, connection)
    }

    fn message(&mut self, connection: Connection, bytes: &[u8]) {
        self.say(&ToGuest::Message { connection, bytes: bytes.to_vec(), stream: None });
    }
}

fn received(program: &OwnedFd) -> seqpacket::Packet {
    seqpacket::receive(program.as_fd()).unwrap()
}

#[test]
fn packets_pass_in_both_directions_and_in_order() {
    let mut relay = Relay::new("order");
    relay.come(1);
    let ((one, first), (two, second)) = (relay.program(), relay.program());
    for number in 0..100_u8 {
        seqpacket::send(one.as_fd(), &[1, number], &[]).unwrap();
        relay.message(second, &[2, number]);
    }
    for number in 0..100_u8 {
        assert_eq!(relay.hear(), ToHost::Message { connection: first, bytes: vec![1, number] });
        assert_eq!(received(&two).bytes, [2, number]);
    }
    drop(one);
    assert_eq!(relay.hear(), ToHost::Closed { connection: first });
    relay.say(&ToGuest::Closed { connection: second });
    assert_eq!(received(&two).bytes, []);
}

#[test]
fn a_link_comes_as_a_connection_in_the_place_of_a_token() {
    let mut relay = Relay::new("link");
    relay.come(1);
    let (program, connection) = relay.program();
    let token = [7; TOKEN];
    let stream = Some(Stream { token, otherwise: b"none".into() });
    relay.say(&ToGuest::Message { connection, bytes: b"link".into(), stream: stream.clone() });
    relay.message(connection, b"behind it");
    let (mut accepted, _) = relay.links.accept().unwrap();
    let mut sent = [0; TOKEN];
    accepted.read_exact(&mut sent).unwrap();
    assert_eq!(sent, token);
    let mut packet = received(&program);
    assert_eq!((&packet.bytes[..], packet.descriptors.len()), (&b"link"[..], 1));
    assert_eq!(received(&program).bytes, b"behind it");
    let mut link = TcpStream::from(packet.descriptors.remove(0));
    link.write_all(b"through the link").unwrap();
    let mut bytes = [0; 16];
    accepted.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"through the link");
}

#[test]
fn a_link_that_cannot_be_opened_is_refused_in_the_relays_words() {
    let mut relay = Relay::new("refused");
    // Nobody listens there.
    let address = match TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap() {
        std::net::SocketAddr::V4(address) => address,
        std::net::SocketAddr::V6(address) => panic!("{address}"),
    };
    relay.welcome(1, address);
    while relay.hear() != (ToHost::Hello { version: VERSION, generation: 1 }) {}
    let (program, connection) = relay.program();
    let stream = Some(Stream { token: [7; TOKEN], otherwise: b"none".into() });
    relay.say(&ToGuest::Message { connection, bytes: b"link".into(), stream });
    let packet = received(&program);
    assert_eq!((&packet.bytes[..], packet.descriptors.len()), (&b"none"[..], 0));
}

/// As after a move: the new relay knows nothing of the one before, whose last frame may be torn.
#[test]
fn programs_connect_again_when_the_relay_has_changed() {
    let mut relay = Relay::new("change");
    relay.come(1);
    let (program, before) = relay.program();
    let torn = encode(&ToGuest::Message { connection: before, bytes: vec![1; 500], stream: None });
    relay.port.write_all(&torn[..300]).unwrap();
    relay.come(2);
    assert_eq!(received(&program).bytes, []);
    let (program, after) = relay.program();
    assert!(after > before);
    // The same relay again, as after a Hello that it has missed.
    relay.come(2);
    relay.message(after, b"still there");
    assert_eq!(received(&program).bytes, b"still there");
}

#[test]
fn a_program_that_does_not_read_is_disconnected() {
    let mut relay = Relay::new("deaf");
    relay.come(1);
    let (_deaf, connection) = relay.program();
    let mut port = relay.port.try_clone().unwrap();
    let flood = encode(&ToGuest::Message { connection, bytes: vec![0; 1000], stream: None });
    let flooding = thread::spawn(move || (0..5000).for_each(|_| port.write_all(&flood).unwrap()));
    assert_eq!(relay.hear(), ToHost::Closed { connection });
    flooding.join().unwrap();
    let (other, connection) = relay.program();
    relay.message(connection, b"others are served");
    assert_eq!(received(&other).bytes, b"others are served");
}
