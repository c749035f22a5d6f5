//! The embedded stores: one file each, and one durable transaction per record.
//!
//! * [`Store`]: the coordinator's durable state: instances, moves, allocated VIDs, members of the network.
//! * [`Journal`]: makes the coordinator's changes durable in order; [`StoreJournal`] writes them into its store.
//! * [`EventLog`]: the coordinator's event log, in a file of its own.
//! * [`NodeStore`]: a node's durable state: an entry for each instance that it hosts or moves, and the revocation
//!   list.
//!
//! A record that was applied survives a crash of the process or the machine. A
//! record whose application was interrupted is either complete or absent.

mod coordinator;
mod error;
mod events;
mod file;
mod journal;
mod members;
mod node;
mod reserve;

pub use coordinator::{DeviceKey, EndedInstance, EndedMove, MAX_ENDED_INSTANCES, MAX_ENDED_MOVES, Store};
pub use error::StoreError;
pub use events::{EventLog, MAX_EVENTS, MAX_EVENTS_BYTES};
pub use journal::{Change, Journal, Notice, StoreJournal, Value};
pub use members::Members;
pub use node::NodeStore;
