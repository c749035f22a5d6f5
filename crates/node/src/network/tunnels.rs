//! Connections to the hosts to which this one sends directly.
//!
//! The host with the higher number dials: it came later, and may be one that can only dial out. Datagrams go over UDP; the
//! connection is there to agree on their keys, and to notice that the other node is another one.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use moves::HostName;
use overlay::topology::NodeId;
use overlay::tunnel::keys::{Direction, Root};
use overlay::tunnel::lane::Limits;
use overlay_io::path_limit::path_limit;
use overlay_io::peer::Agreement;
use rpc::net::{Hello, Tunnel};
use rpc::wire::Opening;
use rpc::{Stream, channel, frame};
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use crate::node::Node;

/// How long the other end may take to say its part.
const HELLO_LIMIT: Duration = Duration::from_secs(5);

/// Before a host is dialled again: at first, and at most.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// What a datagram may be where the kernel does not say it: what every path carries.
const SAFE: usize = 1200;

/// The tunnels of a node, by host.
#[derive(Default)]
pub struct Tunnels(HashMap<HostName, Entry>);

/// One of them.
struct Entry {
    node: NodeId,
    /// The session whose connection stands.
    connected: Option<u32>,
    /// What dials, if this host does.
    dialling: Option<AbortHandle>,
}

impl Drop for Entry {
    fn drop(&mut self) {
        if let Some(dialling) = &self.dialling {
            dialling.abort();
        }
    }
}

impl Tunnels {
    /// Keeps tunnels to `neighbours` from now on, beside those that there are.
    pub fn keep_also(&mut self, own: &Arc<Node>, me: NodeId, neighbours: &HashMap<HostName, NodeId>) {
        for (host, node) in neighbours {
            if self.0.get(host).is_some_and(|entry| entry.node == *node) {
                continue;
            }
            let dials = me > *node;
            let dialling =
                dials.then(|| tokio::spawn(own.clone().keep_dialling(host.clone())).abort_handle());
            self.0.insert(host.clone(), Entry { node: *node, connected: None, dialling });
        }
    }

    /// Closes all tunnels but those to `neighbours`, and says to which nodes they went.
    pub fn keep_only(&mut self, neighbours: &HashMap<HostName, NodeId>) -> Vec<NodeId> {
        let gone = self.0.extract_if(|host, _| !neighbours.contains_key(host));
        gone.map(|(_, entry)| entry.node).collect()
    }

    /// Hosts and their nodes, and whether the connection stands.
    pub fn iter(&self) -> impl Iterator<Item = (&HostName, NodeId, bool)> {
        self.0.iter().map(|(host, entry)| (host, entry.node, entry.connected.is_some()))
    }
}

impl Node {
    async fn keep_dialling(self: Arc<Self>, host: HostName) {
        let mut back_off = BACK_OFF.0;
        loop {
            match self.dial(&host).await {
                Ok(()) => back_off = BACK_OFF.0,
                Err(error) => {
                    tracing::debug!("no tunnel to {host}: {error}");
                    back_off = (back_off * 2).min(BACK_OFF.1);
                }
            }
            sleep(back_off).await;
        }
    }

    /// Connects to `host`, and returns when the connection is lost.
    async fn dial(self: &Arc<Self>, host: &HostName) -> io::Result<()> {
        let address = self.directory.address(host).ok_or(io::ErrorKind::NotFound)?;
        let mut stream = self.endpoint.connect(address, host.as_str()).await?;
        frame::send(&mut stream, &Opening::Tunnel).await?;
        self.hold_tunnel(host, stream, Direction::FromDialer).await
    }

    /// Agrees with `host` on keys, and returns when the connection is lost. Datagrams go on by these keys until there
    /// are others.
    pub async fn hold_tunnel(
        self: &Arc<Self>,
        host: &HostName,
        mut stream: Stream,
        direction: Direction,
    ) -> io::Result<()> {
        let own = Hello { session: self.network.next_session(), port: self.network.address.port() };
        if direction == Direction::FromDialer {
            frame::send(&mut stream, &own).await?;
        }
        let theirs: Hello = timeout(HELLO_LIMIT, frame::receive(&mut stream)).await??;
        let secret = stream.export_secret(Root::LABEL)?;
        let (limits, address) =
            (Limits::default(), SocketAddr::new(stream.peer_address()?.ip(), theirs.port));
        let agreed = Agreement { secret, direction, own: own.session, theirs: theirs.session, limits };
        self.connected(host, address, agreed).await?;
        if direction == Direction::FromListener {
            frame::send(&mut stream, &own).await?;
        }
        // Without the outbox, no keep-alives would be said.
        let (_outbox, mut inbox) = channel::open::<Tunnel, Tunnel>(stream);
        let lost = inbox.receive().await;
        self.disconnected(host, own.session).await;
        lost.map(|_| ())
    }

    async fn connected(&self, host: &HostName, address: SocketAddr, agreed: Agreement) -> io::Result<()> {
        let mut joined = self.network.lock().await;
        let stranger = || io::Error::other(format!("there is no link to {host}"));
        let joined = joined.as_mut().ok_or_else(stranger)?;
        let entry = joined.tunnels.0.get_mut(host).ok_or_else(stranger)?;
        entry.connected = Some(agreed.own);
        let longest = path_limit(address).unwrap_or(SAFE);
        // Whoever dials hears of the other's number last, and is the first to use the new keys.
        match agreed.direction {
            Direction::FromDialer => joined.plane.connect(entry.node, address, agreed, longest),
            Direction::FromListener => joined.plane.expect(entry.node, address, agreed, longest),
        }
        Ok(())
    }

    async fn disconnected(&self, host: &HostName, session: u32) {
        let mut joined = self.network.lock().await;
        let entry = joined.as_mut().and_then(|joined| joined.tunnels.0.get_mut(host));
        if let Some(entry) = entry.filter(|entry| entry.connected == Some(session)) {
            entry.connected = None;
        }
    }
}
