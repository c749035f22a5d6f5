//! The messages between managers. Each is one datagram, in postcard encoding.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::Service;

/// Raised when a message changes its meaning or layout. Messages of another version are ignored.
pub const VERSION: u8 = 1;

/// The largest message, in bytes.
pub const MAX_MESSAGE: usize = 512;

/// The most that a program may send along with any message, in bytes.
pub const MAX_PRIVATE: usize = 255;

/// One side's queue pair parameters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// Its number.
    pub qpn: u32,
    /// The first packet sequence number; the key for datagrams.
    pub psn: u32,
    /// The queue pair's type (`enum ibv_qp_type`).
    pub kind: u8,
    /// It has a shared receive queue.
    pub shared: bool,
    /// READs and atomics that it can take at a time.
    pub responder_resources: u8,
    /// READs and atomics that it would send at a time.
    pub initiator_depth: u8,
    /// Whether it uses flow control.
    pub flow_control: u8,
    /// Retries of a request that is not acknowledged.
    pub retry_count: u8,
    /// Retries when there is no receive posted.
    pub rnr_retry_count: u8,
    /// The program's own words.
    pub private: Vec<u8>,
}

/// Why a request is rejected: the numbers of InfiniBand's connection manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reason(pub u16);

impl Reason {
    /// The manager has no room.
    pub const NO_RESOURCES: Self = Self(3);
    /// The other side has given up, or ended.
    pub const TIMEOUT: Self = Self(4);
    /// The connection is unknown.
    pub const INVALID_ID: Self = Self(6);
    /// No listener there.
    pub const INVALID_SERVICE: Self = Self(8);
    /// The program does not want it.
    pub const CONSUMER: Self = Self(28);
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// [`VERSION`] of the sender.
    pub version: u8,
    /// The sender's number of the connection; 0 if it has none.
    pub from: u32,
    /// The receiver's number of the connection; 0 if it is not known.
    pub to: u32,
    /// The message.
    pub body: Body,
}

/// The message's content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Body {
    /// Wants a connection, or to know where a datagram service is.
    Request {
        /// To what.
        service: Service,
        /// From where, as the program sees it.
        source: SocketAddr,
        /// The requester.
        offer: Offer,
    },
    /// The program has not decided on the request yet.
    Wait,
    /// The connection is accepted, or the service is there.
    Reply(Offer),
    /// The active side is ready.
    Ready,
    /// There is no such connection, or no longer.
    Reject {
        /// Why.
        reason: Reason,
        /// The program's own words.
        private: Vec<u8>,
    },
    /// The connection ends.
    Disconnect,
    /// It has ended.
    Disconnected,
}

impl Message {
    /// The datagram for the message.
    ///
    /// # Panics
    /// Never for messages of this module: they all encode.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        postcard::to_stdvec(self).expect("messages hold nothing that postcard cannot encode")
    }

    /// The message in a datagram; `None` if it is none.
    #[must_use]
    pub fn decode(datagram: &[u8]) -> Option<Self> {
        if datagram.len() > MAX_MESSAGE {
            return None;
        }
        match postcard::take_from_bytes::<Self>(datagram) {
            Ok((message, [])) => {
                Some(message).filter(|message| message.version == VERSION && message.is_valid())
            }
            _ => None,
        }
    }

    fn is_valid(&self) -> bool {
        match &self.body {
            Body::Request { offer, .. } | Body::Reply(offer) => offer.private.len() <= MAX_PRIVATE,
            Body::Reject { private, .. } => private.len() <= MAX_PRIVATE,
            Body::Wait | Body::Ready | Body::Disconnect | Body::Disconnected => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn largest() -> Message {
        let offer = Offer {
            qpn: u32::MAX,
            psn: u32::MAX,
            private: vec![0xff; MAX_PRIVATE],
            responder_resources: 255,
            ..Offer::default()
        };
        let address = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff".parse().unwrap();
        let service = Service { space: u16::MAX, address, port: u16::MAX };
        let source = SocketAddr::new(address, u16::MAX);
        let body = Body::Request { service, source, offer };
        Message { version: VERSION, from: u32::MAX, to: u32::MAX, body }
    }

    #[test]
    fn the_largest_message_fits() {
        let datagram = largest().encode();
        assert!(datagram.len() <= MAX_MESSAGE, "{}", datagram.len());
        assert_eq!(Message::decode(&datagram), Some(largest()));
    }

    #[test]
    fn malformed_messages_are_refused() {
        let mut datagram = largest().encode();
        datagram.push(0);
        assert_eq!(Message::decode(&datagram), None);
        assert_eq!(Message::decode(&[]), None);
        assert_eq!(Message::decode(&[0xff; 40]), None);
        assert_eq!(Message::decode(&Message { version: 2, ..largest() }.encode()), None);
        for length in 0..datagram.len() - 1 {
            assert_eq!(Message::decode(&datagram[..length]), None);
        }
    }
}
