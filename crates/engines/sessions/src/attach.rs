//! A connection to the node, which is made again whenever it is lost.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use fabric::attach::{self, Role, SOCKET_NAME, ToNode, ToProcess, VERSION};
use fabric::{ProcessId, seqpacket};

/// The number of attempts at the short interval.
const LONG: u32 = 5000;

/// How to reach the node.
pub struct Way {
    /// Makes a connection, over which the attach protocol is spoken.
    pub connect: Box<dyn Fn() -> io::Result<OwnedFd> + Send>,
    /// The interval between the first attempts.
    pub soon: Duration,
    /// The interval between later attempts.
    pub later: Duration,
}

impl Way {
    /// Over the node's socket in the instance's network namespace. The interval is short, since a move's blackout lasts until then.
    #[must_use]
    pub fn direct() -> Self {
        Self {
            connect: Box::new(|| seqpacket::connect(SOCKET_NAME)),
            soon: Duration::from_millis(1),
            later: Duration::from_millis(20),
        }
    }
}

/// The connection to the node, or the attempts to make it.
pub struct Attachment {
    way: Way,
    role: Role,
    state: State,
    process: Option<ProcessId>,
    /// A packet that the socket had no room for, or that was made while the socket was closed.
    waiting: Option<Vec<u8>>,
    /// The node's messages to sessions.
    heard: Vec<ToProcess>,
}

enum State {
    Detached { attempts: u32 },
    Greeting(OwnedFd),
    Attached(OwnedFd),
    Dismissed,
}

impl Attachment {
    /// An attachment without a connection yet.
    #[must_use]
    pub fn new(role: Role, way: Way) -> Self {
        let state = State::Detached { attempts: 0 };
        Self { way, role, state, process: None, waiting: None, heard: Vec::new() }
    }

    /// Whether the node has recorded the command's end.
    pub fn dismissed(&self) -> bool {
        matches!(self.state, State::Dismissed)
    }

    /// Whether the node has answered the `Hello` and is connected.
    pub fn is_attached(&self) -> bool {
        matches!(self.state, State::Attached(_))
    }

    /// Whether [`Self::send`] may be called.
    pub fn has_room(&self) -> bool {
        self.waiting.is_none() && !self.dismissed()
    }

    /// How soon to call [`Self::step`] again, at the latest.
    pub fn retry_after(&self) -> Option<Duration> {
        match self.state {
            State::Detached { attempts } => {
                Some(if attempts < LONG { self.way.soon } else { self.way.later })
            }
            _ => None,
        }
    }

    /// The socket and the events to poll it for.
    pub fn interest(&self) -> Option<(RawFd, libc::c_short)> {
        match &self.state {
            State::Attached(socket) if self.waiting.is_some() => {
                Some((socket.as_raw_fd(), libc::POLLIN | libc::POLLOUT))
            }
            State::Attached(socket) | State::Greeting(socket) => Some((socket.as_raw_fd(), libc::POLLIN)),
            State::Detached { .. } | State::Dismissed => None,
        }
    }

    /// Sends a message now or as soon as the socket accepts it. One at a time: see [`Self::has_room`].
    pub fn send(&mut self, message: &ToNode) {
        self.waiting = Some(attach::encode(message));
        self.flush();
    }

    /// Connects if there is no connection, receives messages, and sends a queued one. Returns whether the node has just answered
    /// the `Hello` of a new connection. Calls `hold` before it sends `Suspended`, and sends the message that it returns; afterwards, the
    /// instance may be stopped at any time.
    pub fn step(&mut self, mut hold: impl FnMut() -> Option<ToNode>) -> bool {
        if let State::Detached { attempts } = self.state {
            self.state = match self.greet() {
                Ok(socket) => State::Greeting(socket),
                Err(_) => State::Detached { attempts: attempts.saturating_add(1) },
            };
        }
        let mut welcomed = false;
        while let Some(message) = self.receive() {
            welcomed |= self.hear(message, &mut hold);
        }
        self.flush();
        welcomed
    }

    /// The node's messages to sessions since the last call.
    pub fn take_heard(&mut self) -> Vec<ToProcess> {
        std::mem::take(&mut self.heard)
    }

    fn greet(&self) -> io::Result<OwnedFd> {
        let socket = (self.way.connect)()?;
        let hello = ToNode::Hello { version: VERSION, role: self.role, resume: self.process };
        seqpacket::send(socket.as_fd(), &attach::encode(&hello), &[])?;
        set_nonblocking(&socket)?;
        Ok(socket)
    }

    fn receive(&mut self) -> Option<ToProcess> {
        let (State::Greeting(socket) | State::Attached(socket)) = &self.state else { return None };
        match seqpacket::receive(socket.as_fd()) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
            Ok(packet) if !packet.bytes.is_empty() => {
                if let Ok(message) = attach::decode(&packet.bytes) {
                    return Some(message);
                }
            }
            _ => {}
        }
        self.detach();
        None
    }

    fn hear(&mut self, message: ToProcess, hold: impl FnOnce() -> Option<ToNode>) -> bool {
        match message {
            ToProcess::Welcome { process, .. } => self.welcome(process),
            ToProcess::Suspend => {
                let since = Instant::now();
                let last = hold();
                self.suspend(since, last.as_ref());
                false
            }
            ToProcess::Farewell => {
                self.state = State::Dismissed;
                false
            }
            ToProcess::Session { .. } | ToProcess::SayAgain
                if matches!(self.role, Role::Sessions | Role::Console) =>
            {
                self.heard.push(message);
                false
            }
            _ => {
                self.detach();
                false
            }
        }
    }

    fn welcome(&mut self, process: ProcessId) -> bool {
        let State::Greeting(socket) = self.replace_with_detached() else { return false };
        let resumed = self.process.replace(process).is_some();
        if resumed {
            let message = attach::encode(&ToNode::Resumed { elapsed_us: 0 });
            let _lost_with_the_connection = seqpacket::send(socket.as_fd(), &message, &[]);
        }
        self.state = State::Attached(socket);
        true
    }

    /// Sends the last messages of this connection. A waiting packet that the node does not accept stays for the next one. Messages that
    /// nobody has taken yet are dropped, since a held session must not act; the node repeats them over the next connection.
    fn suspend(&mut self, since: Instant, last: Option<&ToNode>) {
        self.heard.clear();
        if let State::Attached(socket) = self.replace_with_detached() {
            self.waiting = self.waiting.take().filter(|packet| !send_in_time(&socket, packet));
            last.map(|last| send_in_time(&socket, &attach::encode(last)));
            let message = ToNode::Suspended {
                elapsed_us: since.elapsed().as_micros() as u64,
                queue_pairs: 0,
                memory_regions: 0,
                active_peers: Vec::new(),
            };
            send_in_time(&socket, &attach::encode(&message));
        }
    }

    fn flush(&mut self) {
        let State::Attached(socket) = &self.state else { return };
        let Some(packet) = self.waiting.take() else { return };
        if let Err(error) = seqpacket::send(socket.as_fd(), &packet, &[]) {
            self.waiting = Some(packet);
            if error.kind() != io::ErrorKind::WouldBlock {
                self.detach();
            }
        }
    }

    fn detach(&mut self) {
        self.replace_with_detached();
    }

    fn replace_with_detached(&mut self) -> State {
        std::mem::replace(&mut self.state, State::Detached { attempts: 0 })
    }
}

/// Sends even if the socket is full of output: the node is reading it. If a node does not read within a few seconds, it sees a
/// closed connection instead. Returns whether the packet was sent.
fn send_in_time(socket: &OwnedFd, packet: &[u8]) -> bool {
    const PATIENCE: Duration = Duration::from_secs(5);
    let end = Instant::now() + PATIENCE;
    loop {
        match seqpacket::send(socket.as_fd(), packet, &[]) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < end => {
                let mut poll = libc::pollfd { fd: socket.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
                // SAFETY: one live pollfd is passed.
                unsafe { libc::poll(&raw mut poll, 1, 100) };
            }
            sent => return sent.is_ok(),
        }
    }
}

fn set_nonblocking(socket: &OwnedFd) -> io::Result<()> {
    // SAFETY: no memory is passed, and the descriptor is open.
    let result = unsafe { libc::fcntl(socket.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
