//! Connections between the coordinator and the nodes.
//!
//! All traffic between hosts, except RDMA data, uses TCP with TLS 1.3, and both ends present a
//! certificate of the cluster's own authority. A peer is identified by the name in its certificate, not by its address or
//! its messages.
//!
//! * [`pki`]: the authority and its certificates, as files.
//! * [`token`]: join tokens. [`enrol`]: a machine gets its certificate with a token.
//! * [`tls`]: connections to peers that are authenticated by name. `disbelief`: explains rejected certificates.
//! * [`removed`]: revocation of certificates.
//! * [`frame`]: messages on a connection, with a limit on their size.
//! * [`channel`]: a connection for messages in both directions that detects the loss of the peer.
//! * [`datagrams`]: a connection that carries datagrams.
//! * [`lobby`]: limits for unauthenticated connections.
//! * [`call`]: questions and answers over a channel.
//! * [`daemon`]: aborts a daemon that panics.
//! * [`wire`]: the messages. [`net`]: those about the overlay.

pub mod call;
pub mod channel;
pub mod daemon;
pub mod datagrams;
mod disbelief;
pub mod enrol;
pub mod frame;
pub mod lobby;
pub mod net;
mod pinned;
pub mod pki;
pub mod removed;
pub mod telemetry;
pub mod tls;
pub mod token;
pub mod wire;

use std::io::ErrorKind;

pub use call::{CallError, Caller, Pending};
pub use channel::{Closed, Encoded, Inbox, Outbox};
pub use rustls::Error as TlsError;
pub use tls::{Endpoint, Stream};

/// The coordinator's name in its certificate; it is reserved.
pub const COORDINATOR: &str = "coordinator";

/// The remedy for a daemon that cannot listen on its address.
#[must_use]
pub fn listen_remedy(error: &std::io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::AddrNotAvailable => "use an address of this host: `ip address` lists them",
        ErrorKind::AddrInUse => "use another port: `ss -ltnp` shows the program that listens on this one",
        _ => "",
    }
}
