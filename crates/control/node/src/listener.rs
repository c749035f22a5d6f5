//! Connections from other nodes.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use moves::HostName;
use pace::Pace;
use rpc::lobby::{Lobby, PAUSE};
use rpc::wire::Opening;
use rpc::{Endpoint, Stream, call, frame};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};

use crate::directory::Directory;
use crate::links::{LinkAnswerer, Pool};
use crate::lock::lock;
use crate::moves::{MemoryServer, Receptions};
use crate::network::Network;

/// How long a node may take to send the purpose of its connection.
const OPENING_LIMIT: Duration = Duration::from_secs(5);

/// Accepts other nodes.
pub struct Listener {
    endpoint: Endpoint,
    directory: Arc<Directory>,
    complaints: Mutex<Pace>,
    doors: Doors,
}

/// The components to which the connections go.
pub struct Doors {
    pub links: Arc<LinkAnswerer>,
    pub pool: Arc<Pool>,
    pub network: Arc<Network>,
    pub memory: MemoryServer,
    pub receptions: Arc<Receptions>,
}

impl Listener {
    pub fn new(endpoint: Endpoint, directory: Arc<Directory>, doors: Doors) -> Self {
        Self { endpoint, directory, complaints: Mutex::new(pace::complaints()), doors }
    }

    /// Accepts other nodes' connections for as long as it is polled.
    pub async fn accept(self: Arc<Self>, listener: TcpListener) {
        let lobby = Lobby::new();
        loop {
            match listener.accept().await {
                Ok((tcp, address)) => {
                    if let Some(permit) = lobby.enter(address.ip(), self.directory.is_host(address.ip())) {
                        tokio::spawn(self.clone().serve(tcp, address, permit));
                        continue;
                    }
                }
                Err(error) => tracing::warn!("accepting a connection failed: {error}"),
            }
            sleep(PAUSE).await;
        }
    }

    async fn serve(self: Arc<Self>, tcp: TcpStream, address: SocketAddr, permit: impl Send) {
        let (stream, name) = match self.endpoint.accept(tcp).await {
            Ok(known) => known,
            Err(error) => {
                if lock(&self.complaints).take(Instant::now()) {
                    tracing::warn!("closing the connection from {address}: {error}");
                }
                return;
            }
        };
        if let Err(error) = self.doors.welcome(stream, &name, permit).await {
            tracing::debug!("closing the connection from {name} at {address}: {error}");
        }
    }
}

impl Doors {
    async fn welcome(&self, mut stream: Stream, name: &str, permit: impl Send) -> io::Result<()> {
        let opening = timeout(OPENING_LIMIT, frame::receive(&mut stream)).await??;
        drop(permit);
        let host = HostName::new(name).map_err(io::Error::other)?;
        match opening {
            Opening::Links => self.answer_links(host, stream).await,
            Opening::Tunnel => self.network.hold_tunnel(&host, stream).await?,
            Opening::Memory { id, vid } => self.memory.serve(vid, id, host, stream).await?,
            Opening::Channel { id, vid, name } => {
                self.receptions.channel((id, vid), host.as_str(), &name, stream)?;
            }
            Opening::Images { id, vid } => self.receptions.arrive(id, vid, host.as_str(), stream),
        }
        Ok(())
    }

    async fn answer_links(&self, host: HostName, stream: Stream) {
        // A host that opens links to processes here will be asked for links, too.
        let (pool, to) = (self.pool.clone(), host.clone());
        tokio::spawn(async move { pool.warm(&to).await });
        let links = self.links.clone();
        let answer = move |question| {
            let (links, host) = (links.clone(), host.clone());
            async move { links.answer(&host, question).await }
        };
        call::serve(stream, answer).await;
    }
}
