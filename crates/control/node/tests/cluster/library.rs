//! A process of an instance as its node sees it: it lets go when it is told to, and comes back.

use std::collections::HashSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use fabric::attach::{self, LinkRefusal, OutputStream, Role, SOCKET_NAME, ToNode, ToProcess};
use fabric::directory::{Answer, Request};
use fabric::{Epoch, ProcessId, netns, seqpacket};

pub const LIMIT: Duration = Duration::from_secs(10);

/// What a process hears.
#[derive(Debug)]
pub enum Heard {
    Welcome(ProcessId, Epoch),
    Link(ProcessId, TcpStream),
    Directory(u64, Answer),
    DirectoryBack,
}

/// A process that uses verbs.
pub struct Library {
    pub id: ProcessId,
    heard: Receiver<Heard>,
    socket: Receiver<OwnedFd>,
    current: OwnedFd,
    wanted: Wanted,
}

/// Links that a process has asked for and does not have yet.
type Wanted = Arc<Mutex<HashSet<ProcessId>>>;

impl Library {
    /// Attaches in `network`; the rest happens on a thread of its own.
    pub fn attach(network: OwnedFd) -> Self {
        let (hears, heard) = channel();
        let (sockets, socket) = channel();
        let wanted = Wanted::default();
        let wants = wanted.clone();
        thread::spawn(move || live(&network, &hears, &sockets, &wants));
        let current = socket.recv_timeout(LIMIT).unwrap();
        let Ok(Heard::Welcome(id, _)) = heard.recv_timeout(LIMIT) else { panic!("not welcome") };
        Self { id, heard, socket, current, wanted }
    }

    pub fn hear(&self) -> Heard {
        self.heard.recv_timeout(LIMIT).expect("nothing was heard")
    }

    /// The epoch with which the process is welcome again.
    pub fn comes_back(&mut self) -> Epoch {
        loop {
            if let Heard::Welcome(id, epoch) = self.hear() {
                assert_eq!(id, self.id);
                self.current = self.socket.recv_timeout(LIMIT).unwrap();
                return epoch;
            }
        }
    }

    pub fn open(&self, peer: ProcessId) {
        self.wanted.lock().unwrap().insert(peer);
        send(&self.current, &ToNode::OpenLink { peer });
    }

    pub fn link(&self, with: ProcessId) -> TcpStream {
        loop {
            match self.hear() {
                Heard::Link(peer, stream) if peer == with => return stream,
                Heard::DirectoryBack => {}
                other => panic!("no link but {other:?}"),
            }
        }
    }

    pub fn ask_directory(&self, number: u64, request: Request) {
        send(&self.current, &ToNode::Directory { number, request });
    }

    /// What the directory answers to `request`.
    pub fn directory(&self, number: u64, request: Request) -> Answer {
        self.ask_directory(number, request);
        self.answer(number)
    }

    /// The answer to request `number`.
    pub fn answer(&self, number: u64) -> Answer {
        loop {
            if let Heard::Directory(answered, answer) = self.hear() {
                assert_eq!(answered, number);
                return answer;
            }
        }
    }

    /// Waits until the directory wants to be told again.
    pub fn directory_is_back(&self) {
        while !matches!(self.hear(), Heard::DirectoryBack) {}
    }
}

/// Joins two processes, and sees that bytes go through.
pub fn assert_linked(one: &Library, other: &Library) {
    /// A link may be cut that was opened while a node still learnt where the peer is now.
    const TRIES: u32 = 10;
    let (low, high) = if one.id < other.id { (one, other) } else { (other, one) };
    let goes_through = || {
        high.open(low.id);
        let (mut near, mut far) = (low.link(high.id), high.link(low.id));
        let mut got = [0; 4];
        let sent = near.write_all(b"ping").and_then(|()| far.read_exact(&mut got));
        sent.is_ok_and(|()| got == *b"ping")
    };
    assert!((0..TRIES).any(|_| goes_through()));
}

fn live(network: &OwnedFd, hears: &Sender<Heard>, sockets: &Sender<OwnedFd>, wanted: &Wanted) {
    let mut resume = None;
    loop {
        let socket = connect(network);
        send(&socket, &ToNode::Hello { version: attach::VERSION, role: Role::Verbs, resume });
        sockets.send(socket.try_clone().unwrap()).unwrap();
        while let Some((message, descriptors)) = receive(&socket) {
            let heard = match message {
                ToProcess::Welcome { process, epoch, .. } => {
                    if resume.is_some() {
                        send(&socket, &ToNode::Resumed { elapsed_us: 5 });
                    }
                    resume = Some(process);
                    Heard::Welcome(process, epoch)
                }
                ToProcess::LinkUp { peer, .. } => {
                    // On one host, too, the last descriptor is a connected stream socket.
                    let stream = TcpStream::from(descriptors.into_iter().last().unwrap());
                    stream.set_nonblocking(false).unwrap();
                    stream.set_read_timeout(Some(LIMIT)).unwrap();
                    wanted.lock().unwrap().remove(&peer);
                    Heard::Link(peer, stream)
                }
                ToProcess::LinkRefused { peer, reason } => {
                    assert_ne!(reason, LinkRefusal::Gone);
                    if wanted.lock().unwrap().contains(&peer) {
                        thread::sleep(Duration::from_millis(1));
                        send(&socket, &ToNode::OpenLink { peer });
                    }
                    continue;
                }
                ToProcess::Nudge { peer } => {
                    send(&socket, &ToNode::OpenLink { peer });
                    continue;
                }
                ToProcess::Suspend => {
                    send(
                        &socket,
                        &ToNode::Suspended {
                            elapsed_us: 3,
                            queue_pairs: 2,
                            memory_regions: 1,
                            active_peers: Vec::new(),
                        },
                    );
                    break;
                }
                ToProcess::Directory { number, answer } => Heard::Directory(number, answer),
                ToProcess::DirectoryBack => Heard::DirectoryBack,
                ToProcess::Refused { .. }
                | ToProcess::Farewell
                | ToProcess::Session { .. }
                | ToProcess::SayAgain => return,
            };
            if hears.send(heard).is_err() {
                return;
            }
        }
        // The copy that the test has ends the connection as well.
        // SAFETY: no memory is passed.
        unsafe { libc::shutdown(std::os::fd::AsRawFd::as_raw_fd(&socket), libc::SHUT_RDWR) };
    }
}

/// An instance's first process that writes `text` and ends with `code`.
pub fn run_command(network: &OwnedFd, text: &str, code: i32) {
    let socket = connect(network);
    send(&socket, &ToNode::Hello { version: attach::VERSION, role: Role::Init, resume: None });
    assert!(matches!(receive(&socket), Some((ToProcess::Welcome { .. }, _))));
    send(&socket, &ToNode::Output { stream: OutputStream::Stdout, bytes: text.as_bytes().to_vec() });
    send(&socket, &ToNode::Exited { code });
    assert_eq!(receive(&socket).map(|(message, _)| message), Some(ToProcess::Farewell));
}

fn connect(network: &OwnedFd) -> OwnedFd {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        match netns::enter(network.as_fd(), || seqpacket::connect(SOCKET_NAME)).flatten() {
            Ok(socket) => return socket,
            Err(error) if Instant::now() > deadline => panic!("nobody listens: {error}"),
            Err(_) => thread::sleep(Duration::from_millis(1)),
        }
    }
}

fn send(socket: &OwnedFd, message: &ToNode) {
    // A node that has just closed is noticed by the reader.
    let _ = seqpacket::send(socket.as_fd(), &attach::encode(message), &[]);
}

fn receive(socket: &OwnedFd) -> Option<(ToProcess, Vec<OwnedFd>)> {
    let packet = seqpacket::receive(socket.as_fd()).ok()?;
    (!packet.bytes.is_empty()).then(|| (attach::decode(&packet.bytes).unwrap(), packet.descriptors))
}
