//! All connections of a process.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::connection::{Connection, Event, Incoming, State, Wishes};
use crate::wire::{Body, Message, Offer, Reason, VERSION};
use crate::{Peer, Service};

/// A connection of this process. Never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(pub u32);

/// A listener of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ListenerId(pub u32);

/// An output of a manager.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Send this datagram.
    Send {
        /// To whom.
        to: Peer,
        /// At most [`wire::MAX_MESSAGE`](crate::wire::MAX_MESSAGE) bytes.
        datagram: Vec<u8>,
    },
    /// Tell the program.
    Tell {
        /// Of which connection.
        connection: ConnectionId,
        /// What.
        event: Event,
    },
    /// Find out when this process ends, and say so by [`Manager::peer_ended`].
    Watch(Peer),
}

/// The limits of a manager.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections.
    pub connections: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { connections: 1 << 16 }
    }
}

/// Whom a listener takes requests for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addresses {
    /// This address.
    One(IpAddr),
    /// All of IPv4.
    Ipv4,
    /// All of IPv6.
    Ipv6,
    /// All.
    Any,
}

impl Addresses {
    /// Whether `address` is one of them; none of IPv4 that IPv6 wraps.
    #[must_use]
    pub fn include(&self, address: IpAddr) -> bool {
        match self {
            Self::One(own) => *own == address,
            Self::Ipv4 => address.is_ipv4(),
            Self::Ipv6 => address.is_ipv6(),
            Self::Any => true,
        }
    }
}

#[derive(Debug)]
struct Listener {
    space: u16,
    addresses: Addresses,
    port: u16,
    /// The most requests that wait for the program to decide.
    backlog: usize,
    /// Those on which it has not decided, also if they have ended by themselves: the program has yet to look at each.
    undecided: HashSet<ConnectionId>,
}

impl Listener {
    fn takes(&self, service: &Service) -> bool {
        self.addresses.include(service.address) && self.space == service.space && self.port == service.port
    }

    fn is_full(&self) -> bool {
        self.undecided.len() >= self.backlog
    }
}

/// See the module.
#[derive(Debug, Default)]
pub struct Manager {
    limits: Limits,
    next: u32,
    connections: HashMap<ConnectionId, Connection>,
    /// Connections that peers have asked for, by the peer's number.
    asked: HashMap<(Peer, u32), ConnectionId>,
    listeners: HashMap<ListenerId, Listener>,
    /// When which connection wants to be looked after.
    deadlines: BTreeSet<(Duration, ConnectionId)>,
    /// The entry of a connection in `deadlines`.
    noted: HashMap<ConnectionId, Duration>,
    watched: HashSet<(u16, u8)>,
    outputs: Vec<Output>,
}

impl Manager {
    /// A manager without connections.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// A manager whose connections and listeners are numbered from `first` on: different first numbers
    /// tell managers apart.
    #[must_use]
    pub fn numbering_from(self, first: u32) -> Self {
        Self { next: first.wrapping_sub(1), ..self }
    }

    /// The outputs since the last call, in this order.
    pub fn take_outputs(&mut self) -> Vec<Output> {
        std::mem::take(&mut self.outputs)
    }

    /// When [`Self::expire`] wants to be called next.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// Takes requests for a port of these addresses from now on. Of those which the program has not decided on, `backlog` may wait.
    pub fn listen(&mut self, space: u16, addresses: Addresses, port: u16, backlog: usize) -> ListenerId {
        let id = ListenerId(self.number());
        self.listeners.insert(id, Listener { space, addresses, port, backlog, undecided: HashSet::new() });
        id
    }

    /// Accepts no more requests. Those that wait for the program's decision stay.
    pub fn stop_listening(&mut self, listener: ListenerId) {
        self.listeners.remove(&listener);
    }

    /// Asks `peer` for a connection to `service`; `None` if there are too many.
    pub fn connect(
        &mut self,
        peer: Peer,
        service: Service,
        source: SocketAddr,
        offer: Offer,
        datagram: bool,
        now: Duration,
    ) -> Option<ConnectionId> {
        if self.connections.len() >= self.limits.connections {
            return None;
        }
        let id = ConnectionId(self.number());
        let request = Body::Request { service, source, offer };
        let mut wishes = Wishes::default();
        let connection = Connection::active(peer, datagram, request, now, &mut wishes);
        self.connections.insert(id, connection);
        self.fulfil(id, wishes);
        self.watch(peer);
        Some(id)
    }

    /// Accepts a request; `false` if it is none that waits.
    pub fn accept(&mut self, id: ConnectionId, offer: Offer, now: Duration) -> bool {
        self.decided(id);
        self.with(id, |connection, wishes| connection.accept(offer, now, wishes))
    }

    /// Rejects a request, or a reply; `false` if there is none that waits.
    pub fn reject(&mut self, id: ConnectionId, private: Vec<u8>, now: Duration) -> bool {
        self.decided(id);
        self.with(id, |connection, wishes| connection.reject(private, now, wishes))
    }

    /// The program has decided on a request, perhaps too late.
    fn decided(&mut self, id: ConnectionId) {
        let listener = self.connections.get(&id).and_then(|connection| connection.listener);
        if let Some(listener) = listener.and_then(|listener| self.listeners.get_mut(&listener)) {
            listener.undecided.remove(&id);
        }
    }

    /// Says after a reply that this side is ready; `false` if there was none.
    pub fn establish(&mut self, id: ConnectionId) -> bool {
        self.with(id, |connection, wishes| connection.establish(wishes))
    }

    /// Says that the peer must be ready: something has come from it.
    pub fn notice_ready(&mut self, id: ConnectionId) {
        self.with(id, |connection, wishes| {
            connection.notice_ready(wishes);
            true
        });
    }

    /// Ends a connection; `false` if there is none to be ended.
    pub fn disconnect(&mut self, id: ConnectionId, now: Duration) -> bool {
        self.with(id, |connection, wishes| connection.disconnect(now, wishes))
    }

    /// The program abandons the connection: it is ended in the background, and no more events are reported.
    pub fn abandon(&mut self, id: ConnectionId, now: Duration) {
        self.decided(id);
        self.with(id, |connection, wishes| {
            connection.abandon(now, wishes);
            true
        });
    }

    /// Ends all connections: the process ends.
    pub fn abandon_all(&mut self, now: Duration) {
        let all: Vec<_> = self.connections.keys().copied().collect();
        all.into_iter().for_each(|id| self.abandon(id, now));
    }

    /// A process has ended; nothing more comes from it.
    pub fn peer_ended(&mut self, lid: u16, index: u8, now: Duration) {
        self.watched.remove(&(lid, index));
        let of_peer = |peer: Peer| peer.lid == lid && peer.index() == index;
        let bereaved = self.connections.iter().filter(|(_, connection)| of_peer(connection.peer));
        let bereaved: Vec<_> = bereaved.map(|(id, _)| *id).collect();
        for id in bereaved {
            self.with(id, |connection, wishes| {
                connection.bereave(now, wishes);
                true
            });
        }
    }

    /// Does what is due.
    pub fn expire(&mut self, now: Duration) {
        while let Some((_, id)) = self.deadlines.first().copied().filter(|(at, _)| *at <= now) {
            self.with(id, |connection, wishes| {
                connection.expire(now, wishes);
                true
            });
        }
    }

    /// Handles a datagram. A malformed one is ignored.
    pub fn received(&mut self, from: Peer, datagram: &[u8], now: Duration) {
        let Some(message) = Message::decode(datagram) else { return };
        if let Some(id) = self.connection_of(from, &message) {
            self.with(id, |connection, wishes| {
                if connection.remote == 0 {
                    connection.remote = message.from;
                }
                connection.heard(message.body, now, wishes);
                true
            });
            return;
        }
        match message.body {
            Body::Request { service, source, offer } => {
                self.requested(from, message.from, service, source, offer);
            }
            Body::Reply(_) | Body::Ready => self.refuse(from, message.from, message.to, Reason::INVALID_ID),
            Body::Disconnect => self.say(from, message.to, message.from, Body::Disconnected),
            Body::Wait | Body::Reject { .. } | Body::Disconnected => {}
        }
    }

    /// The connection that a message of `from` is about.
    fn connection_of(&self, from: Peer, message: &Message) -> Option<ConnectionId> {
        let asked = self.asked.get(&(from, message.from)).copied();
        let id = if message.to == 0 { asked? } else { ConnectionId(message.to) };
        let connection = self.connections.get(&id)?;
        let is_its = connection.remote == 0 || message.from == 0 || connection.remote == message.from;
        (connection.peer == from && is_its).then_some(id)
    }

    fn requested(&mut self, from: Peer, remote: u32, service: Service, source: SocketAddr, offer: Offer) {
        let taking = self.listeners.iter().find(|(_, listener)| listener.takes(&service));
        let Some((listener, is_full)) = taking.map(|(id, listener)| (*id, listener.is_full())) else {
            return self.refuse(from, remote, 0, Reason::INVALID_SERVICE);
        };
        if remote == 0 || is_full {
            // It asks again.
            return;
        }
        if self.connections.len() >= self.limits.connections {
            return self.refuse(from, remote, 0, Reason::NO_RESOURCES);
        }
        let id = ConnectionId(self.number());
        if let Some(listener) = self.listeners.get_mut(&listener) {
            listener.undecided.insert(id);
        }
        let datagram = offer.kind == Offer::DATAGRAM;
        self.connections.insert(id, Connection::passive(from, remote, datagram, listener));
        self.asked.insert((from, remote), id);
        let incoming = Incoming { listener, peer: from, service, source, offer };
        self.outputs.push(Output::Tell { connection: id, event: Event::Requested(incoming) });
        self.watch(from);
    }

    fn refuse(&mut self, to: Peer, remote: u32, local: u32, reason: Reason) {
        self.say(to, local, remote, Body::Reject { reason, private: Vec::new() });
    }

    fn say(&mut self, to: Peer, local: u32, remote: u32, body: Body) {
        let message = Message { version: VERSION, from: local, to: remote, body };
        self.outputs.push(Output::Send { to, datagram: message.encode() });
    }

    fn watch(&mut self, peer: Peer) {
        if self.watched.insert((peer.lid, peer.index())) {
            self.outputs.push(Output::Watch(peer));
        }
    }

    fn with(&mut self, id: ConnectionId, work: impl FnOnce(&mut Connection, &mut Wishes) -> bool) -> bool {
        let Some(connection) = self.connections.get_mut(&id) else { return false };
        let mut wishes = Wishes::default();
        let done = work(connection, &mut wishes);
        self.fulfil(id, wishes);
        done
    }

    fn fulfil(&mut self, id: ConnectionId, wishes: Wishes) {
        let Some(connection) = self.connections.get(&id) else { return };
        let (peer, remote, orphan) = (connection.peer, connection.remote, connection.orphan);
        let (deadline, state) = (connection.deadline(), connection.state.clone());
        for body in wishes.say {
            self.say(peer, id.0, remote, body);
        }
        if !orphan {
            let tell = |event| Output::Tell { connection: id, event };
            self.outputs.extend(wishes.events.into_iter().map(tell));
        }
        self.note_deadline(id, deadline);
        if orphan && state == State::Over {
            self.remove(id);
        }
    }

    fn note_deadline(&mut self, id: ConnectionId, deadline: Option<Duration>) {
        let before = match deadline {
            Some(at) => self.noted.insert(id, at),
            None => self.noted.remove(&id),
        };
        if let Some(before) = before {
            self.deadlines.remove(&(before, id));
        }
        if let Some(at) = deadline {
            self.deadlines.insert((at, id));
        }
    }

    fn remove(&mut self, id: ConnectionId) {
        self.note_deadline(id, None);
        if let Some(connection) = self.connections.remove(&id)
            && self.asked.get(&(connection.peer, connection.remote)) == Some(&id)
        {
            self.asked.remove(&(connection.peer, connection.remote));
        }
    }

    /// A number that no connection or listener has had for long.
    fn number(&mut self) -> u32 {
        loop {
            self.next = self.next.wrapping_add(1).max(1);
            let (connection, listener) = (ConnectionId(self.next), ListenerId(self.next));
            if !self.connections.contains_key(&connection) && !self.listeners.contains_key(&listener) {
                return self.next;
            }
        }
    }
}

impl Offer {
    /// [`Offer::kind`] of a queue pair for datagrams (`IBV_QPT_UD`).
    pub const DATAGRAM: u8 = 4;
}
