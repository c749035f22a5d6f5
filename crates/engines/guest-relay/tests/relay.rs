//! A relay with the real agent, between programs and a broker that the test plays.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use fabric::attach::{self, OutputStream, Role, ToNode, ToProcess, Transport};
use fabric::session::{End, FromSession, Order, SessionId, ToSession, Word};
use fabric::stream::Receiving;
use fabric::{Epoch, FabricId, ProcessId, Vid, seqpacket};
use guest::agent::serve;
use guest::port::Port;
use guest_relay::{Machine, Relay};
use tokio::runtime::Runtime;

const LIMIT: Duration = Duration::from_secs(10);

const ID: SessionId = SessionId(7);

/// A machine with an agent, whose port any number of relays can connect to, one after the other.
struct World {
    runtime: Runtime,
    socket: Vec<u8>,
    port: std::path::PathBuf,
    _folder: tempfile::TempDir,
}

impl World {
    fn new(test: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (port, inside) = (folder.path().join("port"), folder.path().join("inside"));
        let (outer, inner) = (UnixListener::bind(&port).unwrap(), UnixListener::bind(&inside).unwrap());
        thread::spawn(move || emulate(&outer, &inner));
        let socket = format!("transhume/relay-test/{test}/{}", std::process::id()).into_bytes();
        let listener = seqpacket::listen(&socket).unwrap();
        let agents = UnixStream::connect(inside).unwrap();
        thread::spawn(move || serve(Port::over(agents.into()).unwrap(), listener));
        Self { runtime: Runtime::new().unwrap(), socket, port, _folder: folder }
    }

    /// A relay, and the broker's ends of its connections.
    fn relay(&self) -> (Relay, Receiver<OwnedFd>) {
        let (relay, programs, _) = self.relay_with_sessions();
        (relay, programs)
    }

    /// The same, and the broker's ends of the agent's own connections.
    fn relay_with_sessions(&self) -> (Relay, Receiver<OwnedFd>, Receiver<OwnedFd>) {
        let links = TcpListener::bind("127.0.0.1:0").unwrap();
        let machine =
            Machine { port: UnixStream::connect(&self.port).unwrap(), links, mac: [2, 9, 9, 9, 9, 9] };
        let ((made, programs), (made_for_sessions, sessions)) = (channel(), channel());
        let _inside = self.runtime.enter();
        let relay = Relay::start(machine, move |_pid, role| {
            let (near, far) = seqpacket::pair()?;
            unblock(&near)?;
            let made = if role == Role::Sessions { &made_for_sessions } else { &made };
            // A test without sessions does not take them.
            let _ = made.send(far);
            Ok(near)
        });
        (relay.unwrap(), programs, sessions)
    }

    fn program(&self) -> OwnedFd {
        seqpacket::connect(&self.socket).unwrap()
    }
}

fn unblock(socket: &OwnedFd) -> std::io::Result<()> {
    Ok(rustix::io::ioctl_fionbio(socket, true)?)
}

/// As an emulator does: the machine's end stays when the host's end changes.
fn emulate(outer: &UnixListener, inner: &UnixListener) {
    let (mut machine, _) = inner.accept().unwrap();
    for host in outer.incoming() {
        let mut host = host.unwrap();
        let (mut from_host, mut to_machine) = (host.try_clone().unwrap(), machine.try_clone().unwrap());
        let inwards = thread::spawn(move || std::io::copy(&mut from_host, &mut to_machine));
        let mut bytes = [0; 4096];
        machine.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
        while !inwards.is_finished() {
            if let Ok(length) = machine.read(&mut bytes) {
                let _ = host.write_all(&bytes[..length]);
            }
        }
    }
}

fn tell(broker: &OwnedFd, message: ToSession) {
    let message = ToProcess::Session { id: ID, message };
    seqpacket::send(broker.as_fd(), &attach::encode(&message), &[]).unwrap();
}

/// Welcomes the agent, and returns the sessions that it reports.
fn welcome(broker: &OwnedFd) -> Vec<SessionId> {
    assert!(matches!(heard(broker), Some(ToNode::Hello { role: Role::Sessions, .. })));
    let welcome = ToProcess::Welcome { process: process(0), fabric: FabricId(1), epoch: Epoch(0) };
    seqpacket::send(broker.as_fd(), &attach::encode(&welcome), &[]).unwrap();
    loop {
        match heard(broker) {
            Some(ToNode::Sessions(Word::All(known))) => return known.into_iter().map(|(id, _)| id).collect(),
            // A message that did not get through the connection before.
            Some(ToNode::Resumed { .. } | ToNode::Sessions(Word::One(..))) => {}
            other => panic!("{other:?}"),
        }
    }
}

/// Output of the session, until it is this long or the command has ended.
fn output(broker: &OwnedFd, taken: &mut Receiving, text: &mut String, enough: usize) -> Option<End> {
    while text.len() < enough {
        match heard(broker) {
            Some(ToNode::Sessions(Word::One(ID, FromSession::Output { offset, bytes, .. }))) => {
                let new = taken.accept(offset, &bytes).to_vec();
                taken.take(new.len());
                *text += str::from_utf8(&new).unwrap();
                tell(broker, ToSession::Taken { stream: OutputStream::Stdout, up_to: taken.tell() });
            }
            Some(ToNode::Sessions(Word::One(ID, FromSession::Ended { end, .. }))) => return Some(end),
            Some(ToNode::Sessions(Word::One(ID, FromSession::State(_)))) => {}
            other => panic!("{other:?}"),
        }
    }
    None
}

fn say(socket: &OwnedFd, message: &ToNode) {
    seqpacket::send(socket.as_fd(), &attach::encode(message), &[]).unwrap();
}

fn hello(role: Role) -> ToNode {
    ToNode::Hello { version: attach::VERSION, role, resume: None }
}

fn process(index: u8) -> ProcessId {
    ProcessId { vid: Vid::new(3).unwrap(), index }
}

/// What the broker hears of a program that has connected.
fn heard(broker: &OwnedFd) -> Option<ToNode> {
    let packet = seqpacket::receive(broker.as_fd()).unwrap();
    (!packet.bytes.is_empty()).then(|| attach::decode(&packet.bytes).unwrap())
}

#[test]
fn a_program_in_a_machine_is_a_client_of_the_broker() {
    let world = World::new("client");
    let (_relay, brokers) = world.relay();
    let program = world.program();
    say(&program, &hello(Role::Verbs));
    let broker = brokers.recv_timeout(LIMIT).unwrap();
    assert_eq!(heard(&broker), Some(hello(Role::Verbs)));
    seqpacket::send(broker.as_fd(), &attach::encode(&ToProcess::Suspend), &[]).unwrap();
    assert_eq!(seqpacket::receive(program.as_fd()).unwrap().bytes, attach::encode(&ToProcess::Suspend));
    drop(program);
    assert_eq!(heard(&broker), None);
}

#[test]
fn a_link_carries_bytes_in_both_directions() {
    let world = World::new("link");
    let (_relay, brokers) = world.relay();
    let program = world.program();
    say(&program, &hello(Role::Verbs));
    let broker = brokers.recv_timeout(LIMIT).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut peer, _) = listener.accept().unwrap();
    let up = ToProcess::LinkUp { peer: process(9), epoch: Epoch(1), transport: Transport::Stream };
    seqpacket::send(broker.as_fd(), &attach::encode(&up), &[near.as_fd()]).unwrap();
    drop(near);
    let mut packet = seqpacket::receive(program.as_fd()).unwrap();
    assert_eq!(attach::decode::<ToProcess>(&packet.bytes).unwrap(), up);
    let mut link = TcpStream::from(packet.descriptors.pop().unwrap());
    let all: Vec<u8> = (0..3 << 20).map(|at: u32| ((at * 7) >> 3) as u8).collect();
    let sent = all.clone();
    let mut sending = link.try_clone().unwrap();
    let sender = thread::spawn(move || sending.write_all(&sent).unwrap());
    let mut found = vec![0; all.len()];
    peer.read_exact(&mut found).unwrap();
    sender.join().unwrap();
    assert!(found == all);
    peer.write_all(&all).unwrap();
    link.read_exact(&mut found).unwrap();
    assert!(found == all);
    drop(peer);
    assert_eq!(link.read(&mut found).unwrap(), 0);
}

#[test]
fn a_program_cannot_speak_for_the_machine() {
    let world = World::new("role");
    let (_relay, brokers) = world.relay();
    for first in [hello(Role::Init), hello(Role::Sessions), ToNode::Exited { code: 0 }] {
        let program = world.program();
        say(&program, &first);
        let broker = brokers.recv_timeout(LIMIT).unwrap();
        assert_eq!(heard(&broker), None);
        assert_eq!(seqpacket::receive(program.as_fd()).unwrap().bytes, []);
    }
}

/// As after a move, or a restart of the node.
#[test]
fn programs_connect_to_the_next_relay() {
    let world = World::new("next");
    let (relay, brokers) = world.relay();
    let program = world.program();
    say(&program, &hello(Role::Verbs));
    let broker = brokers.recv_timeout(LIMIT).unwrap();
    assert!(heard(&broker).is_some());
    drop(relay);
    assert_eq!(heard(&broker), None);
    let (_relay, brokers) = world.relay();
    assert_eq!(seqpacket::receive(program.as_fd()).unwrap().bytes, []);
    let program = world.program();
    say(&program, &hello(Role::Verbs));
    assert_eq!(heard(&brokers.recv_timeout(LIMIT).unwrap()), Some(hello(Role::Verbs)));
}

#[test]
fn descriptors_that_are_no_links_harm_nobody_else() {
    let world = World::new("full");
    let (_relay, brokers) = world.relay();
    let program = world.program();
    say(&program, &hello(Role::Verbs));
    let broker = brokers.recv_timeout(LIMIT).unwrap();
    let up = ToProcess::LinkUp { peer: process(9), epoch: Epoch(1), transport: Transport::Stream };
    // A descriptor beside it that is no connection breaks like a link that is lost.
    let (end, other) = UnixStream::pair().unwrap();
    seqpacket::send(broker.as_fd(), &attach::encode(&up), &[end.as_fd()]).unwrap();
    drop((end, other));
    let packet = seqpacket::receive(program.as_fd()).unwrap();
    let mut link = TcpStream::from(packet.descriptors.into_iter().next().unwrap());
    assert_eq!(link.read(&mut [0; 8]).unwrap(), 0);
    // A message that is no link brings none.
    let (end, _other) = UnixStream::pair().unwrap();
    seqpacket::send(broker.as_fd(), &attach::encode(&ToProcess::Suspend), &[end.as_fd()]).unwrap();
    assert_eq!(seqpacket::receive(program.as_fd()).unwrap().bytes, []);
}

#[test]
fn a_command_in_the_guest_outlives_relays_and_loses_no_output() {
    let world = World::new("command");
    let (relay, _programs, sessions) = world.relay_with_sessions();
    let broker = sessions.recv_timeout(LIMIT).unwrap();
    assert_eq!(welcome(&broker), []);
    let script = "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); echo $i; done; exit 3";
    let command = ["sh", "-c", script].map(str::to_owned).into();
    tell(&broker, ToSession::Open(Order { command, ..Order::default() }));
    let (mut taken, mut text) = (Receiving::default(), String::new());
    assert_eq!(output(&broker, &mut taken, &mut text, 1000), None);
    drop(relay);
    let (_relay, _programs, sessions) = world.relay_with_sessions();
    let broker = sessions.recv_timeout(LIMIT).unwrap();
    assert_eq!(welcome(&broker), [ID]);
    tell(&broker, ToSession::Taken { stream: OutputStream::Stdout, up_to: taken.tell() });
    assert_eq!(output(&broker, &mut taken, &mut text, usize::MAX), Some(End::Exited(3)));
    let expected: String = (1..=20_000).map(|number| format!("{number}\n")).collect();
    assert!(text == expected, "{} of {} bytes", text.len(), expected.len());
}

#[test]
fn a_command_that_does_not_exist_ends_with_127() {
    let world = World::new("absent");
    let (_relay, _programs, sessions) = world.relay_with_sessions();
    let broker = sessions.recv_timeout(LIMIT).unwrap();
    welcome(&broker);
    tell(&broker, ToSession::Open(Order { command: vec!["/nowhere/x".into()], ..Order::default() }));
    let (mut taken, mut text) = (Receiving::default(), String::new());
    let end = output(&broker, &mut taken, &mut text, usize::MAX);
    assert!(matches!(&end, Some(End::NotStarted(why)) if why.code == 127), "{end:?}");
}
