//! The agent: accepts programs, and passes their packets on.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddrV4;
use std::os::fd::{AsFd, OwnedFd};
use std::process;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use fabric::seqpacket;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{ioctl_fionbio, retry_on_intr};

use crate::commands;
use crate::connection::{Connection, Packet};
use crate::frames::Frames;
use crate::port::{Heard, Port};
use crate::stream;
use crate::wire::{self, Generation, ToGuest, ToHost, VERSION};

/// How long the rest of a frame may take to follow its beginning.
const WHOLE: Duration = Duration::from_secs(1);

/// How often the agent checks whether a relay has come, and how long it waits for bytes.
const GLANCE: Duration = Duration::from_millis(20);

/// The most programs that are connected at a time.
const MAX_CONNECTIONS: usize = 1024;

/// Serves the programs that connect to `listener`, and commands, over `port`, until the port fails.
///
/// # Errors
/// Those of the port and of the listener.
pub fn serve(port: Port, listener: OwnedFd) -> io::Result<()> {
    let agent = Arc::new(Agent { port, state: Mutex::default(), changed: Condvar::new() });
    let accepting = agent.clone();
    thread::Builder::new().name("accept".into()).spawn(move || accepting.accept_all(&listener))?;
    let serving = agent.clone();
    commands::serve(move || serving.connect())?;
    agent.listen()
}

fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

struct Agent {
    port: Port,
    state: Mutex<State>,
    /// The relay has changed.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    relay: Option<Relay>,
    connections: HashMap<wire::Connection, Connection>,
    last: wire::Connection,
}

#[derive(Clone, Copy)]
struct Relay {
    generation: Generation,
    address: SocketAddrV4,
}

impl Agent {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics while it holds the lock")
    }

    /// Follows the relays at the other end of the port.
    fn listen(self: &Arc<Self>) -> io::Result<()> {
        let (mut frames, mut buffer) = (Frames::default(), vec![0; 64 << 10]);
        let (mut is_alone, mut last) = (true, Instant::now());
        loop {
            match self.port.receive(&mut buffer, GLANCE)? {
                Heard::Nobody => {
                    is_alone = true;
                    self.lose_relay();
                    thread::sleep(GLANCE);
                    continue;
                }
                Heard::Nothing if is_alone => {
                    is_alone = false;
                    self.greet()?;
                }
                Heard::Nothing if frames.is_within() && last.elapsed() > WHOLE => {
                    frames.skip();
                    // The torn frame may have been a Welcome.
                    self.greet()?;
                }
                Heard::Nothing => {}
                Heard::Bytes(length) => {
                    (is_alone, last) = (false, Instant::now());
                    frames.push(&buffer[..length]);
                }
            }
            while let Some(message) = frames.take() {
                self.hear(message)?;
            }
        }
    }

    fn greet(&self) -> io::Result<()> {
        let generation = self.lock().relay.map_or(0, |relay| relay.generation);
        self.port.send(&ToHost::Hello { version: VERSION, generation })
    }

    fn lose_relay(&self) {
        let mut state = self.lock();
        state.relay = None;
        state.connections.clear();
    }

    fn hear(self: &Arc<Self>, message: ToGuest) -> io::Result<()> {
        match message {
            ToGuest::Welcome { version, generation, mac, address } => {
                if version != VERSION {
                    eprintln!(
                        "transhume-guest: the node speaks version {version}, and this agent {VERSION}: install the node's own agent"
                    );
                    return Ok(());
                }
                self.follow(Relay { generation, address }, mac)?;
            }
            ToGuest::Message { connection, bytes, stream } => {
                if !self.deliver(connection, bytes, stream) {
                    self.lock().connections.remove(&connection);
                    self.port.send(&ToHost::Closed { connection })?;
                }
            }
            ToGuest::Closed { connection } => drop(self.lock().connections.remove(&connection)),
        }
        Ok(())
    }

    /// A relay has come. Connections over the one before end.
    fn follow(&self, relay: Relay, mac: [u8; 6]) -> io::Result<()> {
        let mut state = self.lock();
        let is_new = state.relay.is_none_or(|before| before.generation != relay.generation);
        if is_new {
            state.connections.clear();
            if let Err(error) = stream::route(*relay.address.ip(), mac) {
                eprintln!("transhume-guest: links to the node at {} may fail: {error}", relay.address);
            }
        }
        self.port.send(&ToHost::Hello { version: VERSION, generation: relay.generation })?;
        state.relay = Some(relay);
        drop(state);
        self.changed.notify_all();
        Ok(())
    }

    /// Hands a packet to a program. `false` if the program does not read.
    fn deliver(&self, number: wire::Connection, bytes: Vec<u8>, stream: Option<wire::Stream>) -> bool {
        let state = self.lock();
        let Some(relay) = state.relay else { return true };
        let packet = Packet { bytes, stream: stream.map(|stream| (stream, relay.address)) };
        state.connections.get(&number).is_none_or(|connection| connection.send(packet))
    }

    fn accept_all(self: &Arc<Self>, listener: &OwnedFd) {
        loop {
            let mut ready = [PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN)];
            let accepted = retry_on_intr(|| poll(&mut ready, None)).map_err(io::Error::from);
            let accepted = accepted.and_then(|_| seqpacket::accept(listener.as_fd())).and_then(|socket| {
                ioctl_fionbio(&socket, false)?;
                self.admit(socket)
            });
            if let Err(error) = accepted {
                eprintln!("transhume-guest: a program could not be accepted: {error}");
                thread::sleep(GLANCE);
            }
        }
    }

    /// Waits for a relay, and connects the program to it.
    fn admit(self: &Arc<Self>, socket: OwnedFd) -> io::Result<()> {
        let state = self.changed.wait_while(self.lock(), |state| state.relay.is_none());
        let mut state = state.expect("no thread panics while it holds the lock");
        if state.connections.len() >= MAX_CONNECTIONS {
            return Err(io::Error::other(format!("{MAX_CONNECTIONS} programs are connected already")));
        }
        let pid = seqpacket::peer_credentials(socket.as_fd())?.pid;
        self.open(&mut state, socket, |connection| ToHost::Opened { connection, pid })
    }

    /// A connection to the node for the agent itself, if there is a relay.
    fn connect(self: &Arc<Self>) -> io::Result<OwnedFd> {
        let mut state = self.lock();
        if state.relay.is_none() {
            return Err(io::ErrorKind::NotConnected.into());
        }
        let (near, far) = seqpacket::pair()?;
        let pid = process::id().cast_signed();
        self.open(&mut state, far, |connection| ToHost::OpenedForSessions { connection, pid })?;
        Ok(near)
    }

    fn open(
        self: &Arc<Self>,
        state: &mut State,
        socket: OwnedFd,
        opened: impl FnOnce(wire::Connection) -> ToHost,
    ) -> io::Result<()> {
        // The agent before this one began earlier, and accepted less than one in a nanosecond.
        state.last = (state.last + 1).max(since_1970().as_nanos() as wire::Connection);
        let connection = state.last;
        self.port.send(&opened(connection))?;
        let agent = self.clone();
        let started = Connection::start(socket, move |packet| agent.received(connection, packet))?;
        state.connections.insert(connection, started);
        Ok(())
    }

    fn received(&self, connection: wire::Connection, packet: Option<Vec<u8>>) {
        let sent = match packet {
            Some(bytes) => self.port.send(&ToHost::Message { connection, bytes }),
            None => {
                let known = self.lock().connections.remove(&connection);
                known.map_or(Ok(()), |_| self.port.send(&ToHost::Closed { connection }))
            }
        };
        if let Err(error) = sent {
            eprintln!("transhume-guest: cannot write to the port: {error}");
        }
    }
}
