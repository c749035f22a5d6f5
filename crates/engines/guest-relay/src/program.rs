//! One program's connection to the broker, or the agent's own.

use std::io;
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};

use fabric::attach::{self, LinkRefusal, Role, ToNode, ToProcess};
use fabric::seqpacket;
use guest::wire::{Connection, Stream, ToGuest};
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc;

use crate::links::Links;

/// Packets that may wait for the broker, which reads at once.
const QUEUE: usize = 256;

/// A program, or the agent. Dropping it closes its connection.
pub struct Program {
    queue: mpsc::Sender<Vec<u8>>,
    role: Role,
    has_greeted: bool,
}

impl Program {
    /// Serves the connection `number` in `role` over `socket`, which leads to the broker. `out` gets the frames for the agent.
    ///
    /// # Errors
    /// If the socket cannot be watched.
    pub fn start(
        number: Connection,
        role: Role,
        socket: OwnedFd,
        links: Links,
        out: mpsc::Sender<ToGuest>,
    ) -> io::Result<Self> {
        // SAFETY: an `OwnedFd` refers to the same open file until it is dropped, which the `AsyncFd` does last.
        let socket = unsafe { AsyncFd::register(socket) }?;
        let (queue, waiting) = mpsc::channel(QUEUE);
        tokio::spawn(async move {
            tokio::select! {
                // The agent may be gone too.
                _ended = from_broker(&socket, number, &links, &out) => {
                    let _ = out.send(ToGuest::Closed { connection: number }).await;
                }
                // The agent has closed it, or is told so.
                _ended = to_broker(&socket, waiting) => {}
            }
        });
        Ok(Self { queue, role, has_greeted: false })
    }

    /// Passes a packet of the program on. `false` if the program has broken the rules, or the broker has closed. Waits for room for a packet
    /// of the agent, whose sessions may have much output: meanwhile the machine's port is not read.
    pub async fn send(&mut self, bytes: Vec<u8>) -> bool {
        if !self.has_greeted {
            // Only the node's own processes may speak for the machine itself.
            let hello = attach::decode::<ToNode>(&bytes);
            self.has_greeted = matches!(hello, Ok(ToNode::Hello { role, .. }) if role == self.role);
        }
        self.has_greeted
            && match self.role {
                Role::Sessions => self.queue.send(bytes).await.is_ok(),
                _ => self.queue.try_send(bytes).is_ok(),
            }
    }
}

async fn to_broker(socket: &AsyncFd<OwnedFd>, mut waiting: mpsc::Receiver<Vec<u8>>) -> io::Result<()> {
    while let Some(bytes) = waiting.recv().await {
        loop {
            let mut ready = socket.writable().await?;
            if let Ok(sent) = ready.try_io(|socket| seqpacket::send(socket.get_ref().as_fd(), &bytes, &[])) {
                sent?;
                break;
            }
        }
    }
    Ok(())
}

async fn from_broker(
    socket: &AsyncFd<OwnedFd>,
    number: Connection,
    links: &Links,
    out: &mpsc::Sender<ToGuest>,
) -> io::Result<()> {
    loop {
        let mut ready = socket.readable().await?;
        let Ok(packet) = ready.try_io(|socket| seqpacket::receive(socket.get_ref().as_fd())) else {
            continue;
        };
        let mut packet = packet?;
        if packet.bytes.is_empty() {
            return Ok(());
        }
        let message = match packet.descriptors.pop() {
            None => ToGuest::Message { connection: number, bytes: packet.bytes, stream: None },
            Some(stream) => with_link(number, packet.bytes, stream.into(), links)?,
        };
        out.send(message).await.map_err(io::Error::other)?;
    }
}

/// The message for the agent in the place of a packet with a link.
fn with_link(number: Connection, bytes: Vec<u8>, stream: TcpStream, links: &Links) -> io::Result<ToGuest> {
    let ToProcess::LinkUp { peer, .. } = attach::decode(&bytes).map_err(io::Error::other)? else {
        return Err(io::Error::other("unexpected descriptor with a message other than a link"));
    };
    let refused = ToProcess::LinkRefused { peer, reason: LinkRefusal::Unreachable };
    let otherwise = attach::encode(&refused);
    Ok(match links.keep(stream) {
        Some(token) => {
            ToGuest::Message { connection: number, bytes, stream: Some(Stream { token, otherwise }) }
        }
        None => ToGuest::Message { connection: number, bytes: otherwise, stream: None },
    })
}
