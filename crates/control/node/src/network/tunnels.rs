//! The tunnels of this host: which of them have a connection, and to which node.
//!
//! Of two connections between two hosts, the one dialled by the host with the higher number stays.

use std::collections::HashMap;
use std::io;
use std::time::Duration;

use moves::HostName;
use overlay::topology::NodeId;
use overlay::tunnel::keys::Direction;
use rpc::removed::{Gate, Peer};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

/// How long there must be no connection until the host with the lower number dials, too: less than a topology waits for it.
const TURN: Duration = Duration::from_secs(1);

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
    /// Keeps tunnels to `neighbours` from now on, beside the present ones: `dial` starts the task that dials a host whenever there was no
    /// connection for so long. Returns the former nodes of hosts that have other nodes
    /// now.
    pub fn keep_also(
        &mut self,
        me: NodeId,
        neighbours: &HashMap<HostName, Neighbour>,
        dial: impl Fn(HostName, Duration) -> AbortHandle,
    ) -> Vec<NodeId> {
        let mut replaced = Vec::new();
        for (host, neighbour) in neighbours {
            if self.0.get(host).is_some_and(|entry| entry.neighbour == *neighbour) {
                continue;
            }
            let patience = if me > neighbour.node { Duration::ZERO } else { TURN };
            let dialling = dial(host.clone(), patience);
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

    /// Records a connection to `host`, with which keys are agreed. Returns the host's node, and tells when to close the connection.
    ///
    /// # Errors
    /// If the host is not a neighbour, or another connection takes precedence.
    pub fn connect(
        &mut self,
        host: &HostName,
        me: NodeId,
        session: u32,
        direction: Direction,
        partner: Option<Peer>,
    ) -> io::Result<(NodeId, oneshot::Receiver<()>)> {
        let stranger = || io::Error::other(format!("there is no link to {host}"));
        let entry = self.0.get_mut(host).ok_or_else(stranger)?;
        let (closes, closing) = oneshot::channel();
        let is_first = (direction == Direction::FromDialer) == (me > entry.neighbour.node);
        if !entry.note(Connection { session, is_first, _closes: closes }) {
            return Err(io::Error::other(format!("a connection to {host} already exists")));
        }
        entry.partner = partner;
        Ok((entry.neighbour.node, closing))
    }

    /// Removes the connection with this `session`, which is lost.
    pub fn disconnect(&mut self, host: &HostName, session: u32) {
        if let Some(entry) = self.0.get_mut(host) {
            entry.connection.take_if(|connection| connection.session == session);
        }
    }

    /// Whether datagrams to `host` need no encryption.
    pub fn is_plain(&self, host: &HostName) -> bool {
        self.0.get(host).is_some_and(|entry| entry.neighbour.plain)
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
