//! Links between processes on different hosts.
//!
//! The node of the opening process asks the other's node over TLS, and sends a nonce. Then it connects to the other node's data
//! port over plain TCP and sends the nonce again; from then on, the connection belongs to the two processes.

use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, TcpStream as StdStream};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use broker::{Passing, Peers, RemoteLink};
use fabric::InstanceId;
use fabric::attach::LinkRefusal;
use fabric::directory::Member;
use fabric::directory::Request;
use fabric::link::LinkRequest;
use fabric::session::Word;
use fabric::{Epoch, Vid};
use moves::HostName;
use rpc::lobby::{Lobby, PAUSE};
use rpc::wire::{FromNode, LinkAnswer, LinkQuestion};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};

use crate::agent::Unanswered;
use crate::directory::{Directory, Place};
use crate::linking::{self, Nonce, Surroundings};
use crate::lock::lock;
use crate::node::Node;
use crate::peers::Unreachable;

/// How long the other end may take to connect to the data port and to send its nonce.
const NONCE_LIMIT: Duration = Duration::from_secs(3);

/// The limit of connections that are awaited at a time.
const MAX_AWAITED: usize = 1 << 16;

/// The plain TCP port for link data, and the connections expected at it.
pub struct DataPort {
    port: u16,
    awaited: Mutex<HashMap<Nonce, (LinkRequest, Instant)>>,
}

impl DataPort {
    pub fn new(port: u16) -> Self {
        Self { port, awaited: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Nonce, (LinkRequest, Instant)>> {
        lock(&self.awaited)
    }

    /// Awaits a connection that sends `nonce`; `false` if too many are awaited.
    fn expect(&self, nonce: Nonce, request: LinkRequest) -> bool {
        let mut awaited = self.lock();
        if awaited.len() >= MAX_AWAITED {
            awaited.retain(|_, (_, since)| since.elapsed() < NONCE_LIMIT);
        }
        let room = awaited.len() < MAX_AWAITED;
        if room {
            awaited.insert(nonce, (request, Instant::now()));
        }
        room
    }

    fn take(&self, nonce: &Nonce) -> Option<LinkRequest> {
        let (request, since) = self.lock().remove(nonce)?;
        (since.elapsed() < NONCE_LIMIT).then_some(request)
    }
}

/// The broker's interface to other hosts: its node.
pub struct NodePeers(pub Weak<Node>);

impl Peers for NodePeers {
    fn open(&self, request: LinkRequest) -> broker::Answer<RemoteLink> {
        let node = self.0.upgrade();
        Box::pin(async move { node.ok_or(LinkRefusal::Unreachable)?.open_link(request).await })
    }

    fn nudge(&self, request: LinkRequest) -> broker::Answer<()> {
        let node = self.0.upgrade();
        Box::pin(async move {
            let node = node.ok_or(LinkRefusal::Unreachable)?;
            linking::nudge(&node, request).await
        })
    }

    fn ask_directory(&self, asker: Member, number: u64, request: Request) {
        if let Some(node) = self.0.upgrade() {
            node.uplink.send(&FromNode::Directory { process: asker.process, number, request });
        }
    }

    fn sessions_say(&self, instance: InstanceId, word: Word) -> Passing {
        let coordinator = self.0.upgrade().and_then(|node| node.uplink.connection());
        Box::pin(async move {
            if let Some(coordinator) = coordinator {
                // After a reconnect, the first process repeats the message.
                let _ = coordinator.send_in_turn(&FromNode::Sessions { vid: instance.vid, word }).await;
            }
        })
    }
}

impl Surroundings for Arc<Node> {
    type Socket = StdStream;

    fn host(&self) -> &HostName {
        &self.host
    }

    fn directory(&self) -> &Directory {
        &self.directory
    }

    async fn ask_where(&self, vid: Vid) -> Result<Option<Place>, Unanswered> {
        self.agent.ask_where(vid).await
    }

    async fn ask_node(&self, host: &HostName, question: LinkQuestion) -> Result<LinkAnswer, Unreachable> {
        Node::ask_node(self, host, question).await
    }

    async fn connect(&self, host: &HostName, data_port: u16, nonce: Nonce) -> Result<StdStream, Unreachable> {
        let address = self.directory.address(host).ok_or(Unreachable)?;
        let connecting = connect(SocketAddr::new(address.ip(), data_port), nonce);
        timeout(NONCE_LIMIT, connecting).await.map_err(|_| Unreachable)?.map_err(|_| Unreachable)
    }

    fn reachable(&self, request: &LinkRequest) -> Option<Result<Epoch, LinkRefusal>> {
        self.broker.reachable(request)
    }

    fn is_in_other_fabric(&self, request: &LinkRequest) -> bool {
        self.live(request.to.vid).is_some_and(|live| live.fabric != request.fabric)
    }

    fn nudge(&self, request: &LinkRequest) -> Result<(), LinkRefusal> {
        self.broker.nudge(request)
    }

    fn expect(&self, nonce: Nonce, request: LinkRequest) -> Option<u16> {
        self.data.expect(nonce, request).then_some(self.data.port)
    }
}

impl Node {
    async fn open_link(self: Arc<Self>, request: LinkRequest) -> Result<RemoteLink, LinkRefusal> {
        let mut nonce = Nonce::default();
        getrandom::fill(&mut nonce).map_err(|_| LinkRefusal::Unreachable)?;
        let (epoch, socket) = linking::open(&self, request, nonce).await?;
        Ok(RemoteLink { epoch, socket })
    }

    /// Answers the node of `from`.
    pub async fn answer_link(self: Arc<Self>, from: HostName, question: LinkQuestion) -> LinkAnswer {
        match question {
            LinkQuestion::Open { request, nonce } => {
                linking::answer(&self, &from, &request, Some(nonce)).await
            }
            LinkQuestion::Nudge(request) => linking::answer(&self, &from, &request, None).await,
            LinkQuestion::Expect { vid, peers } => self.expect_with_peers(&from, vid, peers),
        }
    }

    /// Accepts connections of links for as long as it is polled.
    pub async fn accept_data(self: Arc<Self>, listener: TcpListener) {
        let lobby = Lobby::new();
        loop {
            match listener.accept().await {
                Ok((socket, address)) => {
                    if let Some(permit) = lobby.enter(address.ip(), self.directory.is_host(address.ip())) {
                        tokio::spawn(self.clone().take_data(socket, permit));
                        continue;
                    }
                }
                Err(error) => tracing::warn!("accepting a connection failed: {error}"),
            }
            sleep(PAUSE).await;
        }
    }

    async fn take_data(self: Arc<Self>, mut socket: TcpStream, permit: impl Send) {
        let mut nonce = Nonce::default();
        if !matches!(timeout(NONCE_LIMIT, socket.read_exact(&mut nonce)).await, Ok(Ok(_))) {
            return;
        }
        drop(permit);
        let Some(request) = self.data.take(&nonce) else { return };
        let Ok(socket) = socket.into_std() else { return };
        if let Err(reason) = self.broker.deliver(&request, socket) {
            tracing::debug!("the link from {} to {} failed: {reason:?}", request.from, request.to);
        }
    }
}

async fn connect(address: SocketAddr, nonce: Nonce) -> io::Result<StdStream> {
    let mut socket = TcpStream::connect(address).await?;
    socket.set_nodelay(true)?;
    socket.write_all(&nonce).await?;
    socket.into_std()
}
