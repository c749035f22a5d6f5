//! Links between processes on different hosts.
//!
//! The node of the process that opens asks the other's node, over TLS, and names a nonce. Then it connects to the
//! other's data port over plain TCP and says the nonce; from there on the connection is the processes' own.

use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, TcpStream as StdStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use broker::directory::Member;
use broker::{InstanceId, LinkRequest, Passing, Peers, RemoteLink};
use fabric::attach::LinkRefusal;
use fabric::directory::Request;
use fabric::session::Word;
use moves::HostName;
use rpc::lobby::{Lobby, PAUSE};
use rpc::wire::{FromNode, LinkAnswer, LinkQuestion};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};

use crate::directory::Place;
use crate::node::Node;

/// How long the other end may take to connect to the data port and to say its nonce.
const NONCE_LIMIT: Duration = Duration::from_secs(3);

/// The most connections that are awaited at a time.
const MAX_AWAITED: usize = 1 << 16;

type Nonce = [u8; 16];

/// The plain port for links' data, and what is awaited there.
pub struct DataPort {
    port: u16,
    awaited: Mutex<HashMap<Nonce, (LinkRequest, Instant)>>,
}

impl DataPort {
    pub fn new(port: u16) -> Self {
        Self { port, awaited: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Nonce, (LinkRequest, Instant)>> {
        self.awaited.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Awaits a connection that says `nonce`; `false` if too many are awaited.
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

/// How the broker reaches other hosts: by its node.
pub struct NodePeers(pub Weak<Node>);

impl Peers for NodePeers {
    fn open(&self, request: LinkRequest) -> broker::Answer<RemoteLink> {
        let node = self.0.upgrade();
        Box::pin(async move { node.ok_or(LinkRefusal::Unreachable)?.open_link(request).await })
    }

    fn nudge(&self, request: LinkRequest) -> broker::Answer<()> {
        let node = self.0.upgrade();
        Box::pin(async move {
            match node
                .ok_or(LinkRefusal::Unreachable)?
                .ask_about(request, LinkQuestion::Nudge(request))
                .await?
            {
                (_, LinkAnswer::Nudged) => Ok(()),
                _ => Err(LinkRefusal::Unreachable),
            }
        })
    }

    fn ask_directory(&self, asker: Member, number: u64, request: Request) {
        if let Some(node) = self.0.upgrade() {
            node.tell_coordinator(&FromNode::Directory { process: asker.process, number, request });
        }
    }

    fn sessions_say(&self, instance: InstanceId, word: Word) -> Passing {
        let coordinator = self.0.upgrade().and_then(|node| node.coordinator());
        Box::pin(async move {
            if let Some(coordinator) = coordinator {
                // A connection that is lost is made anew, and then it is said again.
                let _ = coordinator.send_in_turn(&FromNode::Sessions { vid: instance.vid, word }).await;
            }
        })
    }
}

impl Node {
    async fn open_link(self: Arc<Self>, request: LinkRequest) -> Result<RemoteLink, LinkRefusal> {
        let mut nonce = Nonce::default();
        getrandom::fill(&mut nonce).map_err(|_| LinkRefusal::Unreachable)?;
        let (host, answer) = self.ask_about(request, LinkQuestion::Open { request, nonce }).await?;
        let LinkAnswer::Open { epoch, data_port } = answer else { return Err(LinkRefusal::Unreachable) };
        let address = self.directory.address(&host).ok_or(LinkRefusal::Unreachable)?;
        let connecting = connect(SocketAddr::new(address.ip(), data_port), nonce);
        match timeout(NONCE_LIMIT, connecting).await {
            Ok(Ok(socket)) => Ok(RemoteLink { epoch, socket }),
            _ => Err(LinkRefusal::Unreachable),
        }
    }

    /// What the node answers that has the wanted process, and which node that is. A place that proves wrong is
    /// looked up again, once.
    async fn ask_about(
        self: &Arc<Self>,
        request: LinkRequest,
        question: LinkQuestion,
    ) -> Result<(HostName, LinkAnswer), LinkRefusal> {
        let vid = request.to.vid;
        let mut place = self.locate(vid).await;
        for _ in 0..2 {
            let Place { host, .. } = place.map_err(|_| LinkRefusal::Unreachable)?.ok_or(LinkRefusal::Gone)?;
            let answer = if host == self.host {
                LinkAnswer::NotHere
            } else {
                let asked = self.ask_node(&host, question.clone()).await;
                asked.map_err(|_| LinkRefusal::Unreachable)?
            };
            match answer {
                LinkAnswer::Refused(reason) => return Err(reason),
                LinkAnswer::NotHere => place = self.ask_where(vid).await,
                answer => return Ok((host, answer)),
            }
        }
        Err(LinkRefusal::Moving)
    }

    /// Answers the node of `from`, which may speak for the instances that it has.
    pub async fn answer_link(self: Arc<Self>, from: HostName, question: LinkQuestion) -> LinkAnswer {
        let (LinkQuestion::Open { request, .. } | LinkQuestion::Nudge(request)) = question;
        if let Err(reason) = self.check_sender(&from, &request).await {
            return LinkAnswer::Refused(reason);
        }
        let epoch = match self.broker.reachable(&request) {
            Some(Ok(epoch)) => epoch,
            Some(Err(reason)) => return LinkAnswer::Refused(reason),
            None if self.is_in_other_fabric(&request) => return LinkAnswer::Refused(LinkRefusal::Gone),
            None => return LinkAnswer::NotHere,
        };
        match question {
            LinkQuestion::Open { request, nonce } if self.data.expect(nonce, request) => {
                LinkAnswer::Open { epoch, data_port: self.data.port }
            }
            LinkQuestion::Open { .. } => LinkAnswer::Refused(LinkRefusal::Unreachable),
            LinkQuestion::Nudge(request) => match self.broker.nudge(&request) {
                Ok(()) => LinkAnswer::Nudged,
                Err(reason) => LinkAnswer::Refused(reason),
            },
        }
    }

    /// Whether the asking process' instance is on the host that asks.
    async fn check_sender(
        self: &Arc<Self>,
        from: &HostName,
        request: &LinkRequest,
    ) -> Result<(), LinkRefusal> {
        let vid = request.from.vid;
        let is_there = |place: &Option<Place>| place.as_ref().is_some_and(|place| place.host == *from);
        let known = self.directory.place(vid);
        if is_there(&known) {
            return Ok(());
        }
        match self.ask_where(vid).await {
            Ok(place) if is_there(&place) => Ok(()),
            Ok(_) => {
                tracing::warn!("{from} speaks for instance {vid}, which is not there");
                Err(LinkRefusal::Gone)
            }
            Err(_) => Err(LinkRefusal::Unreachable),
        }
    }

    fn is_in_other_fabric(&self, request: &LinkRequest) -> bool {
        self.live(request.to.vid).is_some_and(|live| live.fabric != request.fabric)
    }

    /// Accepts links' connections for as long as it is polled.
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
                Err(error) => tracing::warn!("no connection accepted: {error}"),
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
            tracing::debug!("the link from {} to {} is not delivered: {reason:?}", request.from, request.to);
        }
    }
}

async fn connect(address: SocketAddr, nonce: Nonce) -> io::Result<StdStream> {
    let mut socket = TcpStream::connect(address).await?;
    socket.set_nodelay(true)?;
    socket.write_all(&nonce).await?;
    socket.into_std()
}
