//! Connections from other nodes.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use moves::HostName;
use pace::Pace;
use rpc::lobby::{Lobby, PAUSE};
use rpc::wire::Opening;
use rpc::{Stream, call, frame};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};

use crate::lock::lock;
use crate::node::Node;

/// How long a node may take to send the purpose of its connection.
const OPENING_LIMIT: Duration = Duration::from_secs(5);

impl Node {
    /// Accepts other nodes' connections for as long as it is polled.
    pub async fn accept(self: Arc<Self>, listener: TcpListener) {
        let lobby = Lobby::new();
        let complaints = Arc::new(Mutex::new(pace::complaints()));
        loop {
            match listener.accept().await {
                Ok((tcp, address)) => {
                    if let Some(permit) = lobby.enter(address.ip(), self.directory.is_host(address.ip())) {
                        tokio::spawn(self.clone().serve(tcp, address, permit, complaints.clone()));
                        continue;
                    }
                }
                Err(error) => tracing::warn!("accepting a connection failed: {error}"),
            }
            sleep(PAUSE).await;
        }
    }

    async fn serve(
        self: Arc<Self>,
        tcp: TcpStream,
        address: SocketAddr,
        permit: impl Send,
        complaints: Arc<Mutex<Pace>>,
    ) {
        let (stream, name) = match self.endpoint.accept(tcp).await {
            Ok(known) => known,
            Err(error) => {
                if lock(&complaints).take(Instant::now()) {
                    tracing::warn!("closing the connection from {address}: {error}");
                }
                return;
            }
        };
        if let Err(error) = self.welcome(stream, &name, permit).await {
            tracing::debug!("closing the connection from {name} at {address}: {error}");
        }
    }

    async fn welcome(
        self: Arc<Self>,
        mut stream: Stream,
        name: &str,
        permit: impl Send,
    ) -> std::io::Result<()> {
        let opening = timeout(OPENING_LIMIT, frame::receive(&mut stream)).await??;
        drop(permit);
        let host = HostName::new(name).map_err(std::io::Error::other)?;
        match opening {
            Opening::Links => {
                // A host that opens links to processes here will be asked for links, too.
                tokio::spawn(self.clone().warm(host.clone()));
                let answer = move |question| self.clone().answer_link(host.clone(), question);
                call::serve(stream, answer).await;
            }
            Opening::Tunnel => self.network.hold_tunnel(&host, stream).await?,
            Opening::Memory { id, vid } => self.give_memory(vid, id, host, stream).await?,
            Opening::Channel { id, vid, name } => {
                self.receptions.channel((id, vid), host.as_str(), &name, stream)?;
            }
            Opening::Images { id, vid } => self.receptions.arrive(id, vid, host.as_str(), stream),
        }
        Ok(())
    }
}
