//! The port, and the programs behind it.

use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, SocketAddrV4, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use fabric::attach::Role;
use guest::frames::{Frames, encode};
use guest::wire::{Connection, Generation, ToGuest, ToHost, VERSION};
use pace::Pace;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tracing::{debug, warn};

use crate::links::Links;
use crate::program::Program;

/// The most programs of a machine.
const MAX_PROGRAMS: usize = 1024;

/// Connections of a machine: a burst, and then one in each interval.
const CONNECTIONS: u32 = 1024;
const BETWEEN_CONNECTIONS: Duration = Duration::from_millis(1);

/// Frames that may wait for the agent. Programs wait for room.
const QUEUE: usize = 256;

/// What a relay needs of a machine.
pub struct Machine {
    /// The host's end of the port.
    pub port: UnixStream,
    /// Accepts the agent's connections; at an address that the machine reaches over its NIC.
    pub links: TcpListener,
    /// The MAC of that NIC.
    pub mac: [u8; 6],
}

/// A running relay. Dropping it closes the connections of all programs, and all links.
pub struct Relay {
    tasks: [JoinHandle<()>; 3],
}

impl Relay {
    /// Starts the relay of a machine, in tokio's runtime. `connect` connects a program of
    /// this PID to the broker, or the agent: then the role is [`Role::Sessions`].
    ///
    /// # Errors
    /// If the sockets cannot be watched, or there are no random numbers.
    pub fn start(
        machine: Machine,
        connect: impl Fn(i32, Role) -> io::Result<OwnedFd> + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let Machine { port, links: listener, mac } = machine;
        let SocketAddr::V4(address) = listener.local_addr()? else {
            return Err(io::ErrorKind::AddrNotAvailable.into());
        };
        listener.set_nonblocking(true)?;
        let listener = tokio::net::TcpListener::from_std(listener)?;
        port.set_nonblocking(true)?;
        let (reading, writing) = tokio::net::UnixStream::from_std(port)?.into_split();
        let (out, waiting) = mpsc::channel(QUEUE);
        let links = Links::default();
        let programs = Programs {
            generation: generation()?,
            address,
            mac,
            is_heard: false,
            has_warned: false,
            open: HashMap::new(),
            sessions: None,
            pace: Pace::new(CONNECTIONS, BETWEEN_CONNECTIONS, Instant::now()),
            links: links.clone(),
            out,
            connect: Box::new(connect),
        };
        Ok(Self {
            tasks: [
                tokio::spawn(write(writing, waiting)),
                tokio::spawn(read(reading, programs)),
                tokio::spawn(links.serve(listener)),
            ],
        })
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// A number that no other relay has, and no program can guess.
fn generation() -> io::Result<Generation> {
    Ok(getrandom::u64()?.max(1))
}

async fn write(mut port: OwnedWriteHalf, mut waiting: mpsc::Receiver<ToGuest>) {
    while let Some(message) = waiting.recv().await {
        if let Err(error) = port.write_all(&encode(&message)).await {
            debug!("the port of a machine is closed: {error}");
            return;
        }
    }
}

async fn read(mut port: OwnedReadHalf, mut programs: Programs) {
    let (mut frames, mut buffer) = (Frames::default(), vec![0; 64 << 10]);
    programs.welcome().await;
    loop {
        match port.read(&mut buffer).await {
            Ok(0) => return,
            Ok(length) => frames.push(&buffer[..length]),
            Err(error) => {
                debug!("the port of a machine is closed: {error}");
                return;
            }
        }
        while let Some(message) = frames.take() {
            programs.hear(message).await;
        }
        if frames.is_noise() {
            warn!(
                "a machine floods the port of its agent: its programs find no RDMA until it moves or the node restarts"
            );
            return;
        }
    }
}

/// The programs of a machine.
struct Programs {
    generation: Generation,
    address: SocketAddrV4,
    mac: [u8; 6],
    /// Whether the agent listens to this generation. Before, its messages are for an earlier relay.
    is_heard: bool,
    /// That the agent speaks another version is in the log.
    has_warned: bool,
    open: HashMap<Connection, Program>,
    links: Links,
    out: mpsc::Sender<ToGuest>,
    /// The agent's own connection among them.
    sessions: Option<Connection>,
    pace: Pace,
    connect: Box<dyn Fn(i32, Role) -> io::Result<OwnedFd> + Send + Sync>,
}

impl Programs {
    async fn hear(&mut self, message: ToHost) {
        match message {
            // A guest may send very many.
            ToHost::Hello { version, .. } if version != VERSION && self.has_warned => {}
            ToHost::Hello { version, .. } if version != VERSION => {
                self.has_warned = true;
                warn!(
                    "the agent in a machine speaks version {version}, and this node {VERSION}: install the node's own agent"
                );
            }
            ToHost::Hello { generation, .. } if generation == self.generation => self.is_heard = true,
            ToHost::Hello { .. } => self.welcome().await,
            _ if !self.is_heard => {}
            ToHost::Opened { connection, pid } => self.admit(connection, pid, Role::Verbs).await,
            ToHost::OpenedForSessions { connection, pid } => {
                if let Some(before) = self.sessions.replace(connection) {
                    self.open.remove(&before);
                }
                self.admit(connection, pid, Role::Sessions).await;
            }
            ToHost::Message { connection, bytes } => {
                let Some(program) = self.open.get_mut(&connection) else { return };
                if !program.send(bytes).await {
                    self.open.remove(&connection);
                    self.tell_closed(connection).await;
                }
            }
            ToHost::Closed { connection } => drop(self.open.remove(&connection)),
        }
    }

    /// The agent is new, or listens to another relay: nothing of before counts.
    async fn welcome(&mut self) {
        self.is_heard = false;
        self.open.clear();
        self.links.clear();
        let Self { generation, mac, address, .. } = *self;
        let welcome = ToGuest::Welcome { version: VERSION, generation, mac, address };
        // The writer ends with the port.
        let _ = self.out.send(welcome).await;
    }

    async fn admit(&mut self, connection: Connection, pid: i32, role: Role) {
        while !self.pace.take(Instant::now()) {
            sleep(BETWEEN_CONNECTIONS).await;
        }
        if let Err(error) = self.open(connection, pid, role) {
            debug!("a program in a machine is not connected: {error}");
            self.tell_closed(connection).await;
        }
    }

    fn open(&mut self, connection: Connection, pid: i32, role: Role) -> io::Result<()> {
        if self.open.len() >= MAX_PROGRAMS {
            return Err(io::Error::other(format!("{MAX_PROGRAMS} are connected already")));
        }
        let socket = (self.connect)(pid, role)?;
        let program = Program::start(connection, role, socket, self.links.clone(), self.out.clone())?;
        self.open.insert(connection, program);
        Ok(())
    }

    async fn tell_closed(&self, connection: Connection) {
        let _ = self.out.send(ToGuest::Closed { connection }).await;
    }
}
