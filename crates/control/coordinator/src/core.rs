//! The core: one task owns the state machine of the moves and its journal. All changes of the coordinator's state go through it.
//!
//! ```text
//!   requests, nodes ── command ──▶ owner ── change ──▶ journal
//!          ▲                        │ ▲                   │
//!          │                        │ └───── notice ──────┘
//!          └────── view ◀── state ◀─┘ (changes when a record is durable)
//! ```
//!
//! * [`Cluster`]: the handle that all tasks share. It gives views, and sends commands to the owner.
//! * [`Owner`]: runs one command at a time, to its end. A [`Command`] validates, decides, and changes the state. The consequences
//!   of a record wait until the journal has made the record durable.
//! * [`State`]: the coordinator's knowledge of the cluster: durable instances and moves, the nodes' connections, and the state of
//!   each [`Feature`]. It is locked for moments, never during IO.

mod base;
mod cluster;
mod feature;
mod ledger;
mod links;
mod log;
mod owner;
mod shared;
mod state;

pub use base::Base;
pub use cluster::{AskError, Cluster};
pub use feature::{Feature, Recorded};
pub use links::NodeLink;
pub use log::Log;
pub use owner::{Command, Owner};
pub use state::State;
