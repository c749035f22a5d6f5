//! Another way for datagrams, where those of a socket do not arrive.
//!
//! It carries the very same datagrams, sealed and counted, over the connection on which two nodes have agreed on keys.

use std::io;
use std::sync::{Arc, Mutex};

use waiting::lock;

use crate::forwarder::Forwarder;

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

/// Where datagrams come in that connections have carried, those of each in their order. It outlives its plane, but takes nothing
/// then.
#[derive(Clone)]
pub struct Inlet(Arc<Mutex<Option<Forwarder>>>);

impl Inlet {
    pub(crate) fn new(forwarder: Forwarder) -> Self {
        Self(Arc::new(Mutex::new(Some(forwarder))))
    }

    pub(crate) fn close(&self) {
        *lock(&self.0) = None;
    }

    /// Takes in `datagrams`, which stand one behind the other, all of `length` bytes but for a shorter last one.
    pub fn take(&self, datagrams: &mut [u8], length: usize) {
        if let Some(forwarder) = &mut *lock(&self.0) {
            forwarder.take(None, datagrams, length);
        }
    }
}
