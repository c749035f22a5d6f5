//! A hostile machine at the port of its relay: the node's memory and time stay bounded, and other machines are served.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use fabric::attach::{self, Role, ToNode};
use fabric::seqpacket;
use guest::frames::{Frames, encode};
use guest::wire::{ToGuest, ToHost, VERSION};
use guest_relay::{Machine, Relay};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use tokio::runtime::Runtime;

const LIMIT: Duration = Duration::from_secs(10);

/// How long a relay that does not read any more is watched.
const SILENCE: Duration = Duration::from_millis(500);

/// More bytes than all buffers between a machine and a relay that does not read.
const MUCH: usize = 64 << 20;

/// A machine without an agent: the test is its guest.
struct Hostile {
    port: UnixStream,
    frames: Frames,
    links: std::net::SocketAddr,
    brokers: Receiver<OwnedFd>,
    _relay: Relay,
}

impl Hostile {
    fn new(runtime: &Runtime) -> Self {
        let (port, far) = UnixStream::pair().unwrap();
        let links = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = links.local_addr().unwrap();
        let (made, brokers) = channel();
        let _inside = runtime.enter();
        let machine = Machine { port: far, links, mac: [2, 9, 9, 9, 9, 9] };
        let relay = Relay::start(machine, move |_pid, _role| {
            let (near, far) = seqpacket::pair()?;
            rustix::io::ioctl_fionbio(&near, true)?;
            made.send(far).map_err(std::io::Error::other)?;
            Ok(near)
        });
        port.set_read_timeout(Some(LIMIT)).unwrap();
        port.set_write_timeout(Some(SILENCE)).unwrap();
        Self { port, frames: Frames::default(), links: address, brokers, _relay: relay.unwrap() }
    }

    fn hear(&mut self) -> ToGuest {
        let mut part = [0; 4096];
        loop {
            if let Some(message) = self.frames.take() {
                return message;
            }
            let length = self.port.read(&mut part).unwrap();
            assert!(length > 0, "the relay has closed the port");
            self.frames.push(&part[..length]);
        }
    }

    fn say(&mut self, message: &impl Serialize) {
        self.port.write_all(&encode(message)).unwrap();
    }

    /// Listens to the relay's generation, as an agent does.
    fn greet(&mut self) {
        let ToGuest::Welcome { generation, .. } = self.hear() else { panic!("no welcome") };
        self.say(&ToHost::Hello { version: VERSION, generation });
    }

    /// Writes `bytes` over and over until the relay takes no more. Returns how many it has taken.
    fn flood(&mut self, bytes: &[u8]) -> usize {
        let mut taken = 0;
        while taken < MUCH {
            match self.port.write(bytes) {
                Ok(length) => taken += length,
                // A relay that closes the port may leave bytes unread, which resets it.
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock | ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => break,
                    _ => panic!("{error}"),
                },
            }
        }
        taken
    }

    /// Whether a program of this machine reaches the broker.
    fn is_served(&mut self, connection: u64) -> bool {
        let hello =
            attach::encode(&ToNode::Hello { version: attach::VERSION, role: Role::Verbs, resume: None });
        self.say(&ToHost::Opened { connection, pid: 1 });
        self.say(&ToHost::Message { connection, bytes: hello.clone() });
        let broker = self.brokers.recv_timeout(LIMIT).unwrap();
        seqpacket::receive(broker.as_fd()).unwrap().bytes == hello
    }
}

/// The processor time of this process.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap())
}

#[test]
fn false_headers_cost_little_and_end_the_port() {
    let runtime = Runtime::new().unwrap();
    let (mut hostile, mut other) = (Hostile::new(&runtime), Hostile::new(&runtime));
    other.greet();
    // A frame's magic number, and a length that asks for a checksum over all that follows.
    let header =
        [&encode(&ToHost::Closed { connection: 0 })[..4], &60_000_u32.to_le_bytes(), &[0; 8]].concat();
    let before = processor_time();
    let taken = hostile.flood(&header.repeat(4096));
    let spent = processor_time() - before;
    assert!(taken < 4 << 20, "{taken} bytes were read");
    assert!(spent < Duration::from_secs(3), "{spent:?}");
    assert!(other.is_served(1));
}

#[test]
fn a_machine_that_does_not_read_is_not_read() {
    let runtime = Runtime::new().unwrap();
    let (mut hostile, mut other) = (Hostile::new(&runtime), Hostile::new(&runtime));
    other.greet();
    // Each of these is answered with a welcome.
    let taken = hostile.flood(&encode(&ToHost::Hello { version: VERSION, generation: 1 }).repeat(1000));
    assert!(taken < 4 << 20, "{taken} bytes were read");
    assert!(other.is_served(1));
}

#[test]
fn a_machine_has_a_limited_number_of_programs() {
    const LIMIT_OF_PROGRAMS: usize = 1024;
    let runtime = Runtime::new().unwrap();
    let mut hostile = Hostile::new(&runtime);
    hostile.greet();
    let mut refused = 0;
    for connection in 0..3000 {
        hostile.say(&ToHost::Opened { connection, pid: -1 });
        if connection >= LIMIT_OF_PROGRAMS as u64 {
            assert_eq!(hostile.hear(), ToGuest::Closed { connection });
            refused += 1;
        }
    }
    assert_eq!((hostile.brokers.try_iter().count(), refused), (LIMIT_OF_PROGRAMS, 3000 - LIMIT_OF_PROGRAMS));
    // A place is free again.
    hostile.say(&ToHost::Closed { connection: 0 });
    assert!(hostile.is_served(3000));
}

#[test]
fn one_name_for_two_programs_harms_only_these() {
    let runtime = Runtime::new().unwrap();
    let mut hostile = Hostile::new(&runtime);
    hostile.greet();
    assert!(hostile.is_served(1));
    assert!(hostile.is_served(1));
    hostile.say(&ToHost::Message { connection: 77, bytes: vec![0; 100] });
    assert!(hostile.is_served(2));
}

#[test]
fn connections_without_a_token_take_few_descriptors() {
    let runtime = Runtime::new().unwrap();
    let (mut hostile, mut other) = (Hostile::new(&runtime), Hostile::new(&runtime));
    hostile.greet();
    other.greet();
    let begun = Instant::now();
    let mut open: Vec<TcpStream> = Vec::new();
    // Less than the time after which the relay closes them. The queue of its listener is full at last.
    while open.len() < 2000 && begun.elapsed() < Duration::from_secs(4) {
        open.extend(TcpStream::connect_timeout(&hostile.links, Duration::from_millis(1500)));
    }
    let accepted = accepted_at(hostile.links.port());
    assert!(open.len() > 256 && accepted <= 256, "{accepted} of {} are open", open.len());
    assert!(hostile.is_served(1) && other.is_served(1));
}

/// The accepted connections at `port`. Connections that wait in the listener's queue have no inode.
fn accepted_at(port: u16) -> usize {
    let (local, table) = (format!(":{port:04X}"), std::fs::read_to_string("/proc/net/tcp").unwrap());
    let is_accepted = |line: &&str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        fields[1].ends_with(&local) && fields[3] == "01" && fields[9] != "0"
    };
    table.lines().skip(1).filter(is_accepted).count()
}
