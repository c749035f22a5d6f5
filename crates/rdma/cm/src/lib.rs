//! The protocol by which two connection managers make and end connections, as state machines without IO.
//!
//! ```text
//! active                                  passive
//!  connect  ── Request{service, offer} ──▶ Event::Requested
//!           ◀─ Wait ─────────────────────  (a second Request, and the program has not decided)
//!  Replied  ◀─ Reply{offer} ─────────────  accept
//!  establish ─ Ready ────────────────────▶ Event::Established
//!
//!  Rejected ◀─ Reject{reason} ───────────  reject, or no listener
//!
//!  disconnect ─ Disconnect ──────────────▶ Event::Disconnected
//!  Disconnected ◀─ Disconnected ─────────
//! ```
//!
//! A datagram service is resolved by `Request` and `Reply` alone. Each side names a connection by its own number;
//! the transport tells the identity of the other side. Messages that need an answer are repeated until it arrives or the patience
//! ends. Patience is long: the peer may be moving.
//!
//! * [`wire`]: the messages. * [`service`]: the services that connections name. * [`Manager`]: all connections of a process.
//! * [`socket`]: the protocol of sockets over such connections.

mod connection;
mod manager;
pub mod service;
pub mod socket;
pub mod wire;

pub use connection::{ABSENCE, Event, Incoming};
pub use manager::{Addresses, ConnectionId, Limits, ListenerId, Manager, Output};
pub use service::Service;
pub use wire::{Offer, Reason};

/// Another process' manager: where its messages come from and go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Peer {
    /// The LID of its instance.
    pub lid: u16,
    /// The number of its queue pair for messages.
    pub qpn: u32,
}

impl Peer {
    /// Which of the instance's processes it is: the upper bits of all its queue pairs' numbers.
    #[must_use]
    pub fn index(self) -> u8 {
        u8::try_from(self.qpn >> 16 & 0xff).unwrap_or(0)
    }
}
