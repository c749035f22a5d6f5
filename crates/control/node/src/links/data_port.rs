//! The port at which the connections of links arrive.
//!
//! The node of the opening process asks the other's node over TLS, and sends a nonce. Then it connects to the other node's data
//! port over plain TCP and sends the nonce again; from then on, the connection belongs to the two processes.

use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, TcpStream as StdStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use broker::Broker;
use fabric::link::LinkRequest;
use rpc::lobby::{Lobby, PAUSE};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};

use super::linking::Nonce;
use crate::directory::Directory;
use crate::lock::lock;

/// How long the other end may take to connect to the data port and to send its nonce.
const NONCE_LIMIT: Duration = Duration::from_secs(3);

/// The limit of connections that are awaited at a time.
const MAX_AWAITED: usize = 1 << 16;

/// The plain TCP port for link data, and the connections expected at it.
pub struct DataPort {
    port: u16,
    directory: Arc<Directory>,
    broker: Broker,
    awaited: Mutex<HashMap<Nonce, (LinkRequest, Instant)>>,
}

impl DataPort {
    pub fn new(port: u16, directory: Arc<Directory>, broker: Broker) -> Self {
        Self { port, directory, broker, awaited: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Nonce, (LinkRequest, Instant)>> {
        lock(&self.awaited)
    }

    /// Awaits a connection that sends `nonce`, and returns the port; `None` if too many are awaited.
    pub fn expect(&self, nonce: Nonce, request: LinkRequest) -> Option<u16> {
        let mut awaited = self.lock();
        if awaited.len() >= MAX_AWAITED {
            awaited.retain(|_, (_, since)| since.elapsed() < NONCE_LIMIT);
        }
        let room = awaited.len() < MAX_AWAITED;
        if room {
            awaited.insert(nonce, (request, Instant::now()));
        }
        room.then_some(self.port)
    }

    fn take(&self, nonce: &Nonce) -> Option<LinkRequest> {
        let (request, since) = self.lock().remove(nonce)?;
        (since.elapsed() < NONCE_LIMIT).then_some(request)
    }

    /// Accepts connections of links for as long as it is polled.
    pub async fn accept(self: Arc<Self>, listener: TcpListener) {
        let lobby = Lobby::new();
        loop {
            match listener.accept().await {
                Ok((socket, address)) => {
                    if let Some(permit) = lobby.enter(address.ip(), self.directory.is_host(address.ip())) {
                        tokio::spawn(self.clone().receive(socket, permit));
                        continue;
                    }
                }
                Err(error) => tracing::warn!("accepting a connection failed: {error}"),
            }
            sleep(PAUSE).await;
        }
    }

    async fn receive(self: Arc<Self>, mut socket: TcpStream, permit: impl Send) {
        let mut nonce = Nonce::default();
        if !matches!(timeout(NONCE_LIMIT, socket.read_exact(&mut nonce)).await, Ok(Ok(_))) {
            return;
        }
        drop(permit);
        let Some(request) = self.take(&nonce) else { return };
        let Ok(socket) = socket.into_std() else { return };
        if let Err(reason) = self.broker.deliver(&request, socket) {
            tracing::debug!("the link from {} to {} failed: {reason:?}", request.from, request.to);
        }
    }
}

/// A connection to the data port of another node, on which `nonce` is sent.
pub async fn connect(address: SocketAddr, nonce: Nonce) -> io::Result<StdStream> {
    timeout(NONCE_LIMIT, begin(address, nonce)).await?
}

async fn begin(address: SocketAddr, nonce: Nonce) -> io::Result<StdStream> {
    let mut socket = TcpStream::connect(address).await?;
    socket.set_nodelay(true)?;
    socket.write_all(&nonce).await?;
    socket.into_std()
}
