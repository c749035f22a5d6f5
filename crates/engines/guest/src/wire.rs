//! The messages between the agent and the relay.
//!
//! ```text
//! agent                         relay                    the relay may change at any time: the machine has moved, or the node has restarted
//!   │◀──────── Welcome{generation}│                      after the relay has connected, and after a Hello of another generation
//!   │ Hello{generation} ─────────▶│                      earlier messages are of an earlier relay, and ignored
//!   │ Opened{connection, pid} ───▶│                      a program has connected
//!   │ Message{connection} ───────▶│
//!   │◀───────── Message{connection, stream?}
//!   │ Closed{connection} ────────▶│                      either side
//!   │ OpenedForSessions ─────────▶│                      the agent's own connection, over which it serves sessions
//! ```
//!
//! When the generation changes, the agent closes all connections of programs. They connect again, as they do when a node has restarted.

use std::net::SocketAddrV4;

use fabric::attach::MAX_MESSAGE;
use serde::{Deserialize, Serialize};

/// The name of the virtio-serial port.
pub const PORT: &str = "org.transhume.guest.0";

/// The version of these messages.
pub const VERSION: u16 = 1;

/// The most bytes of a message, with its packet.
pub const MAX_FRAME: usize = 2 * MAX_MESSAGE;

/// The number of a relay, drawn at random; 0 for none.
pub type Generation = u64;

/// The number of a program's connection. No agent of the machine gives it twice.
pub type Connection = u64;

/// From the agent to the relay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToHost {
    /// The agent listens to this generation.
    Hello {
        /// [`VERSION`] of the agent.
        version: u16,
        /// The generation of the last `Welcome`.
        generation: Generation,
    },
    /// A program has connected.
    Opened {
        /// The new connection.
        connection: Connection,
        /// The PID of the program.
        pid: i32,
    },
    /// A program's packet.
    Message {
        /// Its connection.
        connection: Connection,
        /// The packet.
        bytes: Vec<u8>,
    },
    /// A program's connection is closed.
    Closed {
        /// The connection.
        connection: Connection,
    },
    /// The agent itself has connected, to serve sessions. There is one such connection at a time.
    OpenedForSessions {
        /// The new connection.
        connection: Connection,
        /// The PID of the agent.
        pid: i32,
    },
}

/// From the relay to the agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToGuest {
    /// A relay is there.
    Welcome {
        /// [`VERSION`] of the relay.
        version: u16,
        /// Its number.
        generation: Generation,
        /// The MAC of the machine's NIC on which the relay can be reached.
        mac: [u8; 6],
        /// The address at which it accepts links.
        address: SocketAddrV4,
    },
    /// A packet for a program.
    Message {
        /// Its connection.
        connection: Connection,
        /// The packet.
        bytes: Vec<u8>,
        /// The link beside it.
        stream: Option<Stream>,
    },
    /// The node has closed a connection.
    Closed {
        /// The connection.
        connection: Connection,
    },
}

/// A link that waits at the relay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stream {
    /// The first bytes that the agent sends over a connection for it.
    pub token: [u8; TOKEN],
    /// The packet for the program if the agent cannot open the connection.
    pub otherwise: Vec<u8>,
}

/// The bytes of a token.
pub const TOKEN: usize = 16;
