//! How the coordinator and the nodes reach each other.
//!
//! Everything between hosts, except the RDMA data itself, goes over TCP with TLS 1.3, and both ends show a
//! certificate of the cluster's own authority. Who speaks is the name in the certificate, not an address, and
//! not what a message says.
//!
//! * [`pki`]: the authority and its certificates, as files.
//! * [`token`]: what a machine joins with. [`enrol`]: how it gets its certificate by that.
//! * [`tls`]: connections whose other end is known by name. `disbelief`: why one is not believed.
//! * [`removed`]: hosts that take no part any more, whatever certificate they show.
//! * [`frame`]: messages on a connection, with a limit on their size.
//! * [`channel`]: a connection that carries messages both ways and notices when the other end is lost.
//! * [`datagrams`]: a connection that carries datagrams.
//! * [`lobby`]: room for connections that have not yet said who they are.
//! * [`call`]: questions and their answers over a channel.
//! * [`daemon`]: what both daemons do when they panic.
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
pub mod tls;
pub mod token;
pub mod wire;

use std::io::ErrorKind;

pub use call::{CallError, Caller, Pending};
pub use channel::{Closed, Encoded, Inbox, Outbox};
pub use rustls::Error as TlsError;
pub use tls::{Endpoint, Stream};

/// The coordinator's name in its certificate. No host may have it.
pub const COORDINATOR: &str = "coordinator";

/// What helps a daemon that cannot listen where it was told to.
#[must_use]
pub fn listen_remedy(error: &std::io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::AddrNotAvailable => "take an address of this host: `ip address` lists them",
        ErrorKind::AddrInUse => "take another port: `ss -ltnp` says who listens there",
        _ => "",
    }
}
