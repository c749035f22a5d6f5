//! Connections to the neighbours of this host in the topology.
//!
//! The host with the higher number dials: it joined later, and may be able to dial out only. The other one dials too after a timeout,
//! since it may be the one that can only dial out. Of two connections the one dialled by the higher number stays. A connection serves to
//! agree on keys for datagrams, to carry datagrams where UDP is blocked, and to notice that a node was replaced by another one.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use moves::HostName;
use overlay::topology::NodeId;
use overlay::tunnel::keys::{Direction, Root};
use overlay::tunnel::lane::Limits;
use overlay_io::fallback::Inlet;
use overlay_io::path_limit::path_limit;
use overlay_io::peer::{Agreement, Path, PlainAgreement, Terms};
use rpc::datagrams;
use rpc::net::Hello;
use rpc::removed::{Gate, Peer};
use rpc::wire::Opening;
use rpc::{Stream, frame};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::fallback::{OverTls, take_in};
use crate::node::Node;

/// How long the other end may take for its part of the handshake.
const HELLO_LIMIT: Duration = Duration::from_secs(5);

/// The first and the longest pause before a host is dialled again.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// How long there must be no connection until the host with the lower number dials, too: less than a topology waits for it.
const TURN: Duration = Duration::from_secs(1);

/// The datagram size that every path carries, for when the kernel does not report one.
const SAFE: usize = 1200;

/// The tunnels of a node, by host.
#[derive(Default)]
pub struct Tunnels(HashMap<HostName, Entry>);

/// A neighbour of this host in the topology.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    pub node: NodeId,
    /// Whether datagrams need no encryption.
    pub plain: bool,
}

/// One tunnel.
struct Entry {
    neighbour: Neighbour,
    /// The current connection.
    connection: Option<Connection>,
    /// The node with which keys were last agreed: datagrams keep using these keys without a connection.
    partner: Option<Peer>,
    /// The task that dials when there is no connection.
    dialling: AbortHandle,
}

/// A connection with agreed keys. Dropping it closes the connection, so that the other end notices.
struct Connection {
    session: u32,
    /// Whether the host with the higher number has dialled.
    is_first: bool,
    _closes: oneshot::Sender<()>,
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.dialling.abort();
    }
}

impl Entry {
    /// Records `connection`, in place of an existing one. Returns false if the existing one takes precedence, because both hosts
    /// have dialled.
    fn note(&mut self, connection: Connection) -> bool {
        let is_first = |connection: &Connection| connection.is_first;
        let gives_way = !connection.is_first && self.connection.as_ref().is_some_and(is_first);
        if !gives_way {
            self.connection = Some(connection);
        }
        !gives_way
    }
}

impl Tunnels {
    /// Keeps tunnels to `neighbours` from now on, beside the present ones. Returns the former nodes of hosts that have other nodes
    /// now.
    pub fn keep_also(
        &mut self,
        own: &Arc<Node>,
        me: NodeId,
        neighbours: &HashMap<HostName, Neighbour>,
    ) -> Vec<NodeId> {
        let mut replaced = Vec::new();
        for (host, neighbour) in neighbours {
            if self.0.get(host).is_some_and(|entry| entry.neighbour == *neighbour) {
                continue;
            }
            let patience = if me > neighbour.node { Duration::ZERO } else { TURN };
            let dialling = tokio::spawn(own.clone().keep_dialling(host.clone(), patience)).abort_handle();
            // With the same node, the agreed keys remain valid until the next agreement.
            let same = self.0.get_mut(host).filter(|entry| entry.neighbour.node == neighbour.node);
            let partner = same.and_then(|entry| entry.partner.take());
            let entry = Entry { neighbour: *neighbour, connection: None, partner, dialling };
            let before = self.0.insert(host.clone(), entry).map(|entry| entry.neighbour.node);
            replaced.extend(before.filter(|node| *node != neighbour.node));
        }
        replaced
    }

    /// Closes all tunnels except those to `neighbours`, and returns the nodes of the closed ones.
    pub fn keep_only(&mut self, neighbours: &HashMap<HostName, Neighbour>) -> Vec<NodeId> {
        let gone = self.0.extract_if(|host, _| !neighbours.contains_key(host));
        gone.map(|(_, entry)| entry.neighbour.node).collect()
    }

    /// Ends the connections to hosts that the gate no longer admits, and returns their nodes. It keeps trying to reach these hosts,
    /// since other machines may have taken their names.
    pub fn end_barred(&mut self, gate: &Gate) -> Vec<NodeId> {
        let barred = self.0.values_mut().filter_map(|entry| {
            entry.partner.take_if(|partner| !gate.admits(partner))?;
            entry.connection = None;
            Some(entry.neighbour.node)
        });
        barred.collect()
    }

    /// Hosts and their nodes, and whether the connection is up.
    pub fn iter(&self) -> impl Iterator<Item = (&HostName, NodeId, bool)> {
        self.0.iter().map(|(host, entry)| (host, entry.neighbour.node, entry.connection.is_some()))
    }

    /// Whether the connections to all `neighbours` are up.
    pub fn all_stand(&self, neighbours: &HashMap<HostName, Neighbour>) -> bool {
        neighbours.keys().all(|host| self.stands(host))
    }

    /// Whether the connection to `host` is up.
    pub fn stands(&self, host: &HostName) -> bool {
        self.0.get(host).is_some_and(|entry| entry.connection.is_some())
    }
}

impl Node {
    /// Dials `host` whenever there was no connection for `patience`.
    async fn keep_dialling(self: Arc<Self>, host: HostName, patience: Duration) {
        let mut back_off = BACK_OFF.0;
        let mut complaint = None;
        loop {
            self.await_turn_to_dial(&host, patience).await;
            match self.dial(&host).await {
                // The connection was up.
                Ok(()) => (back_off, complaint) = (BACK_OFF.0, None),
                Err(error) => {
                    let said = error.to_string();
                    // Repeating the same message would hide all others.
                    if complaint.as_ref() != Some(&said) {
                        tracing::info!("the tunnel to {host} is down: {said}");
                        complaint = Some(said);
                    }
                    back_off = (back_off * 2).min(BACK_OFF.1);
                }
            }
            sleep(back_off).await;
        }
    }

    /// Waits until there was no connection to `host` for so long.
    async fn await_turn_to_dial(&self, host: &HostName, patience: Duration) {
        let mut missing_since = None;
        loop {
            let mut changed = std::pin::pin!(self.network.changed.notified());
            changed.as_mut().enable();
            if self.network.lock().await.as_ref().is_some_and(|joined| joined.tunnels.stands(host)) {
                missing_since = None;
                changed.await;
            } else {
                let since = *missing_since.get_or_insert_with(Instant::now);
                if timeout_at(since + patience, changed).await.is_err() {
                    return;
                }
            }
        }
    }

    /// Connects to `host`, and returns when the connection is lost.
    ///
    /// # Errors
    /// If it was never up.
    async fn dial(self: &Arc<Self>, host: &HostName) -> io::Result<()> {
        let address = self.directory.address(host).ok_or(io::ErrorKind::NotFound)?;
        let mut stream = self.endpoint.connect(address, host.as_str()).await?;
        frame::send(&mut stream, &Opening::Tunnel).await?;
        self.hold_tunnel(host, stream, Direction::FromDialer).await
    }

    /// Agrees with `host` on keys, and returns when the connection is lost or has no use any more. Datagrams keep using these keys
    /// until the next agreement.
    ///
    /// # Errors
    /// If the hosts do not agree.
    pub async fn hold_tunnel(
        self: &Arc<Self>,
        host: &HostName,
        mut stream: Stream,
        direction: Direction,
    ) -> io::Result<()> {
        let (plain, kernel) = self.may_leave_out(host).await;
        let (session, port) = (self.network.next_session(), self.network.address.port());
        let own = Hello { session, port, plain, kernel };
        if direction == Direction::FromDialer {
            frame::send(&mut stream, &own).await?;
        }
        let theirs: Hello = timeout(HELLO_LIMIT, frame::receive(&mut stream)).await??;
        let address = SocketAddr::new(stream.peer_address()?.ip(), theirs.port);
        let terms = if own.plain && theirs.plain {
            let kernel = own.kernel && theirs.kernel;
            PlainAgreement { own: own.session, theirs: theirs.session, kernel }.into()
        } else {
            let (secret, limits) = (stream.export_secret(Root::LABEL)?, Limits::default());
            Agreement { secret, direction, own: own.session, theirs: theirs.session, limits }.into()
        };
        let (outbox, outlet) = datagrams::queue();
        let longest = path_limit(address).unwrap_or(SAFE);
        let path = Path { address, longest, fallback: Some(Arc::new(OverTls(outbox))) };
        let (closing, inlet) = self.connected(host, &stream, path, own.session, direction, terms).await?;
        let held = self.network.traffic.carry(async move {
            if direction == Direction::FromListener {
                frame::send(&mut stream, &own).await?;
            }
            take_in(outlet.open(stream)?, &inlet).await
        });
        tokio::select! {
            lost = held => tracing::debug!("the tunnel's connection to {host} is lost: {lost:?}"),
            _ = closing => {}
        }
        self.disconnected(host, own.session).await;
        Ok(())
    }

    /// Whether the coordinator permits unencrypted datagrams to `host`, and whether this host's kernel can carry frames.
    async fn may_leave_out(&self, host: &HostName) -> (bool, bool) {
        let joined = self.network.lock().await;
        let Some(joined) = joined.as_ref() else { return (false, false) };
        let plain = joined.tunnels.0.get(host).is_some_and(|entry| entry.neighbour.plain);
        (plain, joined.offloads.kernel)
    }

    /// Records a connection. The result tells when to close it, and receives its datagrams.
    async fn connected(
        &self,
        host: &HostName,
        stream: &Stream,
        path: Path,
        session: u32,
        direction: Direction,
        terms: Terms,
    ) -> io::Result<(oneshot::Receiver<()>, Inlet)> {
        let mut joined = self.network.lock().await;
        let stranger = || io::Error::other(format!("there is no link to {host}"));
        let joined = joined.as_mut().ok_or_else(stranger)?;
        let entry = joined.tunnels.0.get_mut(host).ok_or_else(stranger)?;
        // A host that is removed from now on is found by this entry.
        stream.check_pass()?;
        let (closes, closing) = oneshot::channel();
        let is_first = (direction == Direction::FromDialer) == (joined.me > entry.neighbour.node);
        if !entry.note(Connection { session, is_first, _closes: closes }) {
            return Err(io::Error::other(format!("a connection to {host} already exists")));
        }
        entry.partner = stream.peer().cloned();
        // The dialling host learns the other's number last, and uses the new keys first.
        let node = entry.neighbour.node;
        match direction {
            Direction::FromDialer => joined.plane.connect(node, path, terms),
            Direction::FromListener => joined.plane.expect(node, path, terms),
        }
        self.network.changed.notify_waiters();
        Ok((closing, joined.plane.inlet(session)))
    }

    /// Deletes the keys agreed with removed hosts.
    pub async fn end_barred_tunnels(&self) {
        let mut joined = self.network.lock().await;
        if let Some(joined) = joined.as_mut() {
            for node in joined.tunnels.end_barred(self.endpoint.gate()) {
                joined.plane.disconnect(node);
            }
        }
        self.network.changed.notify_waiters();
    }

    async fn disconnected(&self, host: &HostName, session: u32) {
        let mut joined = self.network.lock().await;
        let entry = joined.as_mut().and_then(|joined| joined.tunnels.0.get_mut(host));
        if let Some(entry) = entry {
            entry.connection.take_if(|connection| connection.session == session);
        }
        self.network.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot::error::TryRecvError::Closed;

    use super::*;

    #[tokio::test]
    async fn of_two_connections_the_one_dialled_by_the_higher_host_stays() {
        let neighbour = Neighbour { node: NodeId(1), plain: false };
        let dialling = tokio::spawn(async {}).abort_handle();
        let mut entry = Entry { neighbour, connection: None, partner: None, dialling };
        let mut closings = HashMap::new();
        let mut note = |session, is_first| {
            let (closes, closing) = oneshot::channel();
            closings.insert(session, closing);
            entry.note(Connection { session, is_first, _closes: closes })
        };
        let noted = [(1, false), (2, false), (3, true), (4, false), (5, true)];
        assert_eq!(noted.map(|(session, is_first)| note(session, is_first)), [true, true, true, false, true]);
        let closed = |session: u32| closings.get_mut(&session).unwrap().try_recv() == Err(Closed);
        assert_eq!([1, 2, 3, 4, 5].map(closed), [true, true, true, true, false]);
    }
}
