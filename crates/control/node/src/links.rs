//! Links between processes on different hosts.
//!
//! * [`linking`]: the decisions about links, without sockets. [`asking`]: opens links for processes of this host; [`answering`]: answers
//!   other nodes.
//! * [`data_port`]: the port at which the connections of links arrive. [`pool`]: TLS connections to other nodes.

mod answering;
mod asking;
mod data_port;
pub mod linking;
mod pool;

pub use self::answering::LinkAnswerer;
pub use self::asking::{BrokerPeers, LinkAsker};
pub use self::data_port::DataPort;
pub use self::pool::Pool;
