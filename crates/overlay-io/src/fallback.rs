//! The fallback carrier of datagrams, used where UDP is blocked.
//!
//! It carries the same datagrams, sealed and counted, over the TLS connection on which two nodes have agreed on keys.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::forwarder::Forwarder;
use crate::lock::lock;

/// How datagrams get to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// One by one, through the socket.
    Udp,
    /// Over a connection: a [`Fallback`].
    Connection,
}

/// A connection to a node that carries datagrams.
pub trait Fallback: Send + Sync {
    /// Takes `datagrams`, which stand one behind the other, all of `length` bytes but for a shorter last one. They are
    /// [`socket::LONGEST`](crate::socket::LONGEST) bytes together at most. Never waits.
    ///
    /// # Errors
    /// `WouldBlock` if it has no room for them at the moment; others if the connection is lost.
    fn send(&self, datagrams: &[u8], length: usize) -> io::Result<()>;

    /// Whether the connection stands.
    fn stands(&self) -> bool;
}

/// Where a datagram has come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// From this address, through the socket.
    Udp(SocketAddr),
    /// Over the connection of this session.
    Connection(u32),
}

impl Source {
    pub fn carrier(self) -> Carrier {
        match self {
            Self::Udp(_) => Carrier::Udp,
            Self::Connection(_) => Carrier::Connection,
        }
    }
}

/// The receiver of datagrams from all connections, until it is closed.
#[derive(Clone)]
pub(crate) struct Inlets(Arc<Mutex<Option<Forwarder>>>);

impl Inlets {
    pub fn new(forwarder: Forwarder) -> Self {
        Self(Arc::new(Mutex::new(Some(forwarder))))
    }

    pub fn of_session(&self, session: u32) -> Inlet {
        Inlet { all: self.clone(), session }
    }

    pub fn close(&self) {
        *lock(&self.0) = None;
    }
}

/// Takes the datagrams of one session that a connection has carried. It outlives its plane, but takes nothing then.
pub struct Inlet {
    all: Inlets,
    session: u32,
}

impl Inlet {
    /// Takes in `datagrams`, which stand one behind the other, all of `length` bytes but for a shorter last one.
    pub fn take(&self, datagrams: &mut [u8], length: usize) {
        if let Some(forwarder) = &mut *lock(&self.all.0) {
            // A connection spoils nothing.
            let _ = forwarder.take(Source::Connection(self.session), datagrams, length, Duration::ZERO);
        }
    }
}
