//! The connection beside RDMA on which the two sides agree and compare: one JSON text per line.

use std::io::{self, Read as _, Write as _};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsRawFd as _, RawFd};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use crate::verbs::Address;
use crate::workload::Workload;

/// The longest line: a message about the most queue pairs is far shorter.
const MAX_LINE: usize = 64 << 20;

/// How long a client waits for its server to listen.
const PATIENCE: Duration = Duration::from_secs(10);

/// The messages between the two sides.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message {
    /// The client's workload, and the addresses of its memory and queue pairs.
    Hello(Workload, Peer),
    /// The server's memory and queue pairs, which are ready.
    Welcome(Peer),
    /// The client's queue pairs are ready, too.
    Ready,
    /// The sender stops posting, and so should the receiver.
    Stop,
    /// Everything that the sender posted has completed: so many messages per queue pair.
    Finished(Vec<u64>),
    /// Everything that the sender checks is right.
    Right,
    /// The sender found something wrong.
    Wrong(String),
}

/// Where a side's memory and queue pairs are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    /// Address and key of the shared area.
    pub shared: (u64, u32),
    /// Per queue pair: where it is, and address and key of its block.
    pub pairs: Vec<(Address, u64, u32)>,
}

/// A connection to the other side, open until the end.
pub struct Control {
    stream: TcpStream,
    received: Vec<u8>,
}

impl Control {
    /// Listens on `address`, tells `listening` the address, and takes one connection.
    ///
    /// # Errors
    /// If the address cannot be listened on.
    pub fn accept(address: &str, listening: impl FnOnce(&str)) -> Result<Self> {
        let listener = TcpListener::bind(address).with_context(|| format!("cannot listen on {address}"))?;
        listening(&listener.local_addr()?.to_string());
        let (stream, _) = listener.accept().context("accept")?;
        Self::new(stream)
    }

    /// Connects to `address`. The server may not listen yet.
    ///
    /// # Errors
    /// If it does not within ten seconds.
    pub fn connect(address: &str) -> Result<Self> {
        let started = Instant::now();
        let found = address.to_socket_addrs();
        let found = found.with_context(|| format!("`{address}` is not an address with a port: HOST:PORT"))?;
        let resolved: Vec<_> = found.collect();
        loop {
            match TcpStream::connect(&resolved[..]) {
                Ok(stream) => return Self::new(stream),
                Err(error) if is_too_early(&error) && started.elapsed() < PATIENCE => {
                    std::thread::sleep(Duration::from_millis(50));
                }
                Err(error) => return Err(error).with_context(|| format!("cannot connect to {address}")),
            }
        }
    }

    fn new(stream: TcpStream) -> Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self { stream, received: Vec::new() })
    }

    /// The connection's descriptor.
    #[must_use]
    pub fn descriptor(&self) -> RawFd {
        self.stream.as_raw_fd()
    }

    /// Sends `message`.
    ///
    /// # Errors
    /// If the connection is lost.
    pub fn send(&mut self, message: &Message) -> Result<()> {
        let mut line = serde_json::to_vec(message)?;
        line.push(b'\n');
        self.stream.write_all(&line).context("lost the control connection")
    }

    /// Waits for a message.
    ///
    /// # Errors
    /// If the connection is lost or malformed message from the peer.
    pub fn receive(&mut self) -> Result<Message> {
        loop {
            if let Some(message) = self.take_line()? {
                return Ok(message);
            }
            self.read_more(true)?;
        }
    }

    /// The next message, if it is there.
    ///
    /// # Errors
    /// As [`Self::receive`].
    pub fn try_receive(&mut self) -> Result<Option<Message>> {
        loop {
            if let Some(message) = self.take_line()? {
                return Ok(Some(message));
            }
            if !self.read_more(false)? {
                return Ok(None);
            }
        }
    }

    fn take_line(&mut self) -> Result<Option<Message>> {
        let Some(end) = self.received.iter().position(|byte| *byte == b'\n') else {
            ensure!(self.received.len() < MAX_LINE, "the peer sent a line that is too long");
            return Ok(None);
        };
        let line: Vec<u8> = self.received.drain(..=end).collect();
        let message = serde_json::from_slice(&line).context("malformed message from the peer")?;
        Ok(Some(message))
    }

    /// False if nothing is there, which is possible without `wait` or after a signal.
    fn read_more(&mut self, wait: bool) -> Result<bool> {
        let mut wanted = libc::pollfd { fd: self.descriptor(), events: libc::POLLIN, revents: 0 };
        let timeout = if wait { -1 } else { 0 };
        // SAFETY: one pollfd is passed, and it is valid.
        let ready = unsafe { libc::poll(&raw mut wanted, 1, timeout) };
        if ready <= 0 {
            return Ok(false);
        }
        let mut buffer = [0; 64 << 10];
        match self.stream.read(&mut buffer) {
            Ok(0) => bail!("the peer has closed the control connection"),
            Ok(length) => self.received.extend_from_slice(&buffer[..length]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error).context("lost the control connection"),
        }
        Ok(true)
    }
}

/// The server's host is up but the server does not listen yet.
fn is_too_early(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::ConnectionRefused
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connection() -> (Control, Control) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = Control::connect(&listener.local_addr().unwrap().to_string()).unwrap();
        (near, Control::new(listener.accept().unwrap().0).unwrap())
    }

    #[test]
    fn messages_arrive_one_by_one() {
        let (mut near, mut far) = connection();
        assert_eq!(far.try_receive().unwrap(), None);
        near.send(&Message::Stop).unwrap();
        near.send(&Message::Finished(vec![1; 5000])).unwrap();
        assert_eq!(far.receive().unwrap(), Message::Stop);
        assert_eq!(far.receive().unwrap(), Message::Finished(vec![1; 5000]));
    }

    #[test]
    fn a_closed_or_malformed_control_connection_is_an_error() {
        let (mut near, mut far) = connection();
        near.stream.write_all(b"hello\n").unwrap();
        assert!(far.receive().unwrap_err().to_string().contains("malformed"));
        drop(near);
        assert!(far.receive().unwrap_err().to_string().contains("closed"));
    }
}
