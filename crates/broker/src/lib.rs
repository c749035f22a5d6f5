//! The node's side of the attach protocol ([`fabric::attach`]).
//!
//! A [`Broker`] listens in the network namespace of each instance on its host, knows the processes
//! that attached, makes the links between them, and makes them let go before a move. It is never
//! in the data path: it passes descriptors and forgets them.
//!
//! ```text
//!            add                 resume                 suspend
//! (unknown) ─────▶ suspended ─────────────▶ listening ──────────▶ suspending
//!                      ▲                        ▲                     │  │
//!                      │                        └──────── resume ─────┘  │
//!                      └──────────── every process has let go ◀──────────┘
//! ```
//!
//! * `instance`: what is known of an instance and its processes, without IO.
//! * [`Peers`]: how the broker reaches processes on other hosts, and the directories of their fabrics.
//! * [`Observer`]: what the broker tells the node, so that it survives the node's death.
//! * [`local`]: hosts and instances on one machine with no node at all, for tests.

mod broker;
mod connection;
mod instance;
mod link;
pub mod local;
mod namespace;
mod peers;
mod report;

pub use self::instance::MAX_OPENINGS;
pub use broker::{Broker, Config, UnknownInstance};
pub use namespace::Namespace;
pub use peers::{Answer, NoObserver, NoPeers, Observer, Passing, Peers, RemoteLink};
pub use report::{ResumeReport, SuspendError, SuspendReport, SuspendedProcess};
