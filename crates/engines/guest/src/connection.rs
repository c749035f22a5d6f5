//! One program's connection.

use std::io;
use std::net::SocketAddrV4;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;

use fabric::seqpacket;
use rustix::net::{Shutdown, shutdown};

use crate::stream;
use crate::wire::Stream;

/// Packets that may wait for a program. A program with more does not read, and is disconnected.
const MAX_WAITING: usize = 1024;

/// A packet for a program, with the link beside it.
pub struct Packet {
    /// The packet.
    pub bytes: Vec<u8>,
    /// The link, and the address of the relay that has it.
    pub stream: Option<(Stream, SocketAddrV4)>,
}

/// A program's connection. Dropping it closes the connection.
pub struct Connection {
    socket: Arc<OwnedFd>,
    queue: SyncSender<Packet>,
}

impl Connection {
    /// Serves the program at the other end of `socket`, which blocks: `received` gets its packets, and `None` when it has closed.
    ///
    /// # Errors
    /// If threads cannot be started.
    pub fn start(socket: OwnedFd, received: impl Fn(Option<Vec<u8>>) + Send + 'static) -> io::Result<Self> {
        let socket = Arc::new(socket);
        let (queue, waiting) = sync_channel(MAX_WAITING);
        let (to, from) = (socket.clone(), socket.clone());
        thread::Builder::new().name("to-program".into()).spawn(move || write(&to, &waiting))?;
        thread::Builder::new().name("from-program".into()).spawn(move || read(&from, &received))?;
        Ok(Self { socket, queue })
    }

    /// Sends a packet to the program, in order. `false` if it reads nothing, or has ended.
    pub fn send(&self, packet: Packet) -> bool {
        !matches!(self.queue.try_send(packet), Err(TrySendError::Full(_) | TrySendError::Disconnected(_)))
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // Its threads end; a socket that is closed already is fine.
        let _ = shutdown(&self.socket, Shutdown::Both);
    }
}

fn read(socket: &OwnedFd, received: &impl Fn(Option<Vec<u8>>)) {
    while let Ok(packet) = seqpacket::receive(socket.as_fd()) {
        if packet.bytes.is_empty() {
            break;
        }
        received(Some(packet.bytes));
    }
    received(None);
}

fn write(socket: &OwnedFd, waiting: &Receiver<Packet>) {
    for packet in waiting {
        if deliver(socket, &packet).is_err() {
            let _ = shutdown(socket, Shutdown::Both);
            return;
        }
    }
}

fn deliver(socket: &OwnedFd, packet: &Packet) -> io::Result<()> {
    let Some((link, relay)) = &packet.stream else {
        return seqpacket::send(socket.as_fd(), &packet.bytes, &[]);
    };
    match stream::open(*relay, &link.token) {
        Ok(stream) => seqpacket::send(socket.as_fd(), &packet.bytes, &[stream.as_fd()]),
        Err(error) => {
            eprintln!("transhume-guest: a link could not be opened at {relay}: {error}");
            seqpacket::send(socket.as_fd(), &link.otherwise, &[])
        }
    }
}
