//! One connection, from a request to its end.
//!
//! ```text
//!            connect                                   Request came
//!               │                                           │
//!          Requesting ──Reply──▶ Replied              Requested ──accept──▶ Accepted
//!               │                   │establish            │reject             │Ready
//!     Reject,   │                   └──────▶ Established ◀┼───────────────────┘
//!     patience  │                                │        │
//!               ▼                   disconnect   │        ▼
//!             Over ◀───── Lingering ◀──── Disconnecting  Over
//! ```
//!
//! A datagram connection stays in `Replied` or `Accepted`.
//! A program may reject an accepted connection until `Ready` arrives: an active side that has already sent it gets the rejection in `Established`.

use std::net::SocketAddr;
use std::time::Duration;

use crate::wire::{Body, Offer, Reason};
use crate::{ListenerId, Peer, Service};

/// An event of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A peer requests the connection.
    Requested(Incoming),
    /// The peer has accepted, with this offer; the program's queue pair is to be made ready, or, for a datagram
    /// service, this is its address.
    Replied(Offer),
    /// The active side is ready.
    Established,
    /// The peer has rejected the connection, or abandoned it.
    Rejected {
        /// Why.
        reason: Reason,
        /// Its program's own words.
        private: Vec<u8>,
    },
    /// The peer does not answer.
    Unreachable,
    /// The connection has ended.
    Disconnected,
    /// Nothing of the connection is under way any more.
    Over,
}

/// A request of another manager.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Incoming {
    /// The passive side.
    pub listener: ListenerId,
    /// The active side.
    pub peer: Peer,
    /// For what.
    pub service: Service,
    /// From where, as its program sees it.
    pub source: SocketAddr,
    /// Its queue pair.
    pub offer: Offer,
}

/// Where a connection stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Requesting,
    Replied,
    Requested,
    Accepted,
    Established,
    Disconnecting,
    Lingering,
    Over,
}

/// Before a message is sent again for the first time; each later time twice as long, up to [`LONGEST`].
const FIRST: Duration = Duration::from_millis(250);
const LONGEST: Duration = Duration::from_secs(4);

/// How long an answer is waited for in all.
pub(crate) const PATIENCE: Duration = Duration::from_secs(64);

/// How long a request to a service without a listener is repeated: programs that listen again for each connection
/// stop listening in between.
pub const ABSENCE: Duration = Duration::from_secs(1);

/// How long to wait for the answer to a `Disconnect`: a side that ends does not need the answer.
const PATIENCE_AT_END: Duration = Duration::from_secs(10);

/// After a connection has ended, until nothing of it can be under way.
const LINGER: Duration = Duration::from_millis(100);

/// A message that is sent until it is answered.
#[derive(Clone, Debug)]
struct Insisted {
    body: Body,
    again: Duration,
    pause: Duration,
    until: Duration,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Connection {
    pub peer: Peer,
    /// The peer's number of it; 0 as long as it is not known.
    pub remote: u32,
    pub datagram: bool,
    pub listener: Option<ListenerId>,
    pub state: State,
    /// The program has abandoned it: no more events are reported.
    pub orphan: bool,
    /// The peer has disconnected after its reply, before this side was ready.
    left_early: bool,
    /// The last answer of a passive side, for a request that comes again.
    answer: Option<Body>,
    insisted: Option<Insisted>,
    /// Until when a listener may be absent.
    absent_until: Duration,
    linger_until: Option<Duration>,
}

/// An output of a connection.
#[derive(Debug, Default)]
pub(crate) struct Wishes {
    pub say: Vec<Body>,
    pub events: Vec<Event>,
}

impl Wishes {
    fn say(&mut self, body: Body) {
        self.say.push(body);
    }

    fn tell(&mut self, event: Event) {
        self.events.push(event);
    }
}

impl Connection {
    /// One that this side asks for.
    pub fn active(peer: Peer, datagram: bool, request: Body, now: Duration, wishes: &mut Wishes) -> Self {
        let mut connection = Self::new(peer, 0, datagram, None, State::Requesting);
        connection.insist(request, PATIENCE, now, wishes);
        connection.absent_until = now + ABSENCE;
        connection
    }

    /// One that `peer` asks for.
    pub fn passive(peer: Peer, remote: u32, datagram: bool, listener: ListenerId) -> Self {
        Self::new(peer, remote, datagram, Some(listener), State::Requested)
    }

    fn new(peer: Peer, remote: u32, datagram: bool, listener: Option<ListenerId>, state: State) -> Self {
        Self {
            peer,
            remote,
            datagram,
            listener,
            state,
            orphan: false,
            left_early: false,
            answer: None,
            insisted: None,
            absent_until: Duration::ZERO,
            linger_until: None,
        }
    }

    fn insist(&mut self, body: Body, patience: Duration, now: Duration, wishes: &mut Wishes) {
        wishes.say(body.clone());
        self.insisted = Some(Insisted { body, again: now + FIRST, pause: FIRST, until: now + patience });
    }

    pub fn accept(&mut self, offer: Offer, now: Duration, wishes: &mut Wishes) -> bool {
        if self.state != State::Requested {
            return false;
        }
        self.state = State::Accepted;
        let body = Body::Reply(offer);
        self.answer = Some(body.clone());
        if self.datagram {
            wishes.say(body);
        } else {
            self.insist(body, PATIENCE, now, wishes);
        }
        true
    }

    pub fn reject(&mut self, private: Vec<u8>, now: Duration, wishes: &mut Wishes) -> bool {
        let may = matches!(self.state, State::Requested | State::Accepted | State::Replied);
        if may {
            let body = Body::Reject { reason: Reason::CONSUMER, private };
            self.answer = Some(body.clone());
            wishes.say(body);
            self.linger(now);
        }
        may
    }

    /// The active side is ready. A peer that has left meanwhile is reported as ready, too, and then as disconnected.
    pub fn establish(&mut self, wishes: &mut Wishes) -> bool {
        let may = self.state == State::Replied && !self.datagram;
        if may {
            self.state = State::Established;
            wishes.say(Body::Ready);
        }
        may || self.left_early
    }

    /// The passive side has seen that the active one is ready.
    pub fn notice_ready(&mut self, wishes: &mut Wishes) {
        if self.state == State::Accepted && !self.datagram {
            self.state = State::Established;
            self.insisted = None;
            wishes.tell(Event::Established);
        }
    }

    /// `false` if there is nothing to disconnect.
    pub fn disconnect(&mut self, now: Duration, wishes: &mut Wishes) -> bool {
        match self.state {
            State::Established | State::Replied | State::Accepted if !self.datagram => {
                self.state = State::Disconnecting;
                self.insist(Body::Disconnect, PATIENCE_AT_END, now, wishes);
                true
            }
            State::Disconnecting | State::Lingering | State::Over => true,
            _ => false,
        }
    }

    /// The program abandons it.
    pub fn abandon(&mut self, now: Duration, wishes: &mut Wishes) {
        self.orphan = true;
        match self.state {
            State::Requesting => {
                wishes.say(Body::Reject { reason: Reason::TIMEOUT, private: Vec::new() });
                self.state = State::Over;
            }
            State::Requested => drop(self.reject(Vec::new(), now, wishes)),
            State::Replied if self.datagram => self.state = State::Over,
            State::Accepted if self.datagram => self.linger(now),
            State::Replied | State::Accepted | State::Established => {
                self.disconnect(now, wishes);
            }
            State::Disconnecting | State::Lingering | State::Over => {}
        }
    }

    pub fn heard(&mut self, body: Body, now: Duration, wishes: &mut Wishes) {
        match (&self.state, body) {
            (State::Requested, Body::Request { .. }) => wishes.say(Body::Wait),
            (State::Accepted | State::Lingering, Body::Request { .. }) => {
                wishes.say.extend(self.answer.clone())
            }
            (State::Requesting, Body::Wait) => {
                if let Some(insisted) = &mut self.insisted {
                    insisted.until = now + PATIENCE;
                }
            }
            (State::Requesting, Body::Reply(offer)) => {
                self.state = State::Replied;
                self.insisted = None;
                wishes.tell(Event::Replied(offer));
            }
            (State::Established, Body::Reply(_)) if self.listener.is_none() => wishes.say(Body::Ready),
            (State::Accepted, Body::Ready) => self.notice_ready(wishes),
            // It was ready before this side's rejection arrived.
            (State::Lingering | State::Over, Body::Ready) => {
                wishes.say.extend(self.answer.clone().filter(|answer| matches!(answer, Body::Reject { .. })));
            }
            (State::Requesting, Body::Reject { reason: Reason::INVALID_SERVICE, .. })
                if now < self.absent_until => {}
            // Late: another request was accepted since.
            (State::Established, Body::Reject { reason: Reason::INVALID_SERVICE, .. }) => {}
            (
                State::Requesting | State::Replied | State::Requested | State::Accepted | State::Established,
                Body::Reject { reason, private },
            ) => self.end(Event::Rejected { reason, private }, now, wishes),
            (_, Body::Disconnect) => {
                wishes.say(Body::Disconnected);
                self.left_early |= self.state == State::Replied && !self.datagram;
                if !matches!(self.state, State::Lingering | State::Over) {
                    self.end(Event::Disconnected, now, wishes);
                }
            }
            (State::Disconnecting, Body::Disconnected) => self.end(Event::Disconnected, now, wishes),
            (State::Disconnecting, Body::Reject { .. }) => self.end(Event::Disconnected, now, wishes),
            _ => {}
        }
    }

    /// The peer's process has ended.
    pub fn bereave(&mut self, now: Duration, wishes: &mut Wishes) {
        match self.state {
            State::Replied | State::Accepted if self.datagram => self.state = State::Over,
            // As the kernel does for a process that dies: a client that asks again at once may find another process there.
            State::Requesting | State::Replied => self.reject_as(Reason::INVALID_SERVICE, now, wishes),
            State::Requested | State::Accepted => self.reject_as(Reason::TIMEOUT, now, wishes),
            State::Established | State::Disconnecting => self.end(Event::Disconnected, now, wishes),
            State::Lingering | State::Over => {}
        }
    }

    fn reject_as(&mut self, reason: Reason, now: Duration, wishes: &mut Wishes) {
        self.end(Event::Rejected { reason, private: Vec::new() }, now, wishes);
    }

    fn end(&mut self, event: Event, now: Duration, wishes: &mut Wishes) {
        wishes.tell(event);
        self.linger(now);
    }

    fn linger(&mut self, now: Duration) {
        self.state = State::Lingering;
        self.insisted = None;
        self.linger_until = Some(now + LINGER);
    }

    pub fn deadline(&self) -> Option<Duration> {
        let insisted = self.insisted.as_ref().map(|insisted| insisted.again.min(insisted.until));
        insisted.into_iter().chain(self.linger_until).min()
    }

    /// Does what is due.
    pub fn expire(&mut self, now: Duration, wishes: &mut Wishes) {
        if self.linger_until.is_some_and(|until| until <= now) {
            self.linger_until = None;
            self.state = State::Over;
            wishes.tell(Event::Over);
        }
        let Some(insisted) = &mut self.insisted else { return };
        if insisted.until <= now {
            let event =
                if self.state == State::Disconnecting { Event::Disconnected } else { Event::Unreachable };
            return self.end(event, now, wishes);
        }
        if insisted.again <= now {
            insisted.pause = (insisted.pause * 2).min(LONGEST);
            insisted.again = now + insisted.pause;
            wishes.say(insisted.body.clone());
        }
    }
}
