//! The carriers of datagrams between two nodes: the socket, or a connection where UDP is blocked.

use std::io;
use std::net::SocketAddr;

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
