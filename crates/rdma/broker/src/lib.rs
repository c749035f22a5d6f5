//! The node's side of the attach protocol ([`fabric::attach`]).
//!
//! A [`Broker`] listens in the network namespace of each instance on its host, tracks the attached
//! processes, makes the links between them, and suspends them before a move. It is never in the
//! data path: it passes descriptors and closes its own copies.
//!
//! ```text
//!            add                 resume                 suspend
//! (unknown) ─────▶ suspended ─────────────▶ listening ──────────▶ suspending
//!                      ▲                        ▲                     │  │
//!                      │                        └──────── resume ─────┘  │
//!                      └────────── every process is suspended ◀──────────┘
//! ```
//!
//! * `instance`: the state of an instance and its processes, without IO.
//! * [`Peers`]: the interface to processes on other hosts, and to the directories of their fabrics.
//! * `traffic`: counts of payload by pairs of instances.
//! * [`Observer`]: reports changes to the node, which records them to survive a restart.
//! * [`local`]: hosts and instances on one machine without nodes, for tests.

mod broker;
mod connection;
mod instance;
mod link;
pub mod local;
mod lock;
mod namespace;
mod peers;
mod report;
mod traffic;

pub use self::instance::MAX_OPENINGS;
pub use broker::{Broker, Config, UnknownInstance};
pub use namespace::Namespace;
pub use peers::{Answer, NoObserver, NoPeers, Observer, Passing, Peers, RemoteLink};
pub use report::{ResumeReport, SuspendError, SuspendReport, SuspendedProcess};
pub use traffic::Flow;
