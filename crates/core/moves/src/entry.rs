//! A node's durable state: one entry for each instance that it hosts or moves.

use fabric::{Epoch, Vid};
use serde::{Deserialize, Serialize};

use crate::journal::Exit;
use crate::{HostName, MoveId, Side};

/// A change of a node's durable state. It must be durable before the outputs after it are performed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum NodeRecord {
    /// Replaces the instance's entry.
    Set {
        /// Which instance.
        vid: Vid,
        /// The whole entry.
        entry: Entry,
    },
    /// Removes the instance's entry.
    Removed {
        /// Which instance.
        vid: Vid,
    },
}

/// The entry of an instance.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Entry {
    /// The instance's epoch; on a destination, its epoch after the commit.
    pub epoch: Epoch,
    /// The node's role for it.
    pub role: Role,
}

/// A node's role for an instance.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Role {
    /// Its host: the instance runs here, or will run again.
    Host {
        /// The last move in which it took part; directives up to this number are obsolete.
        last_move: MoveId,
        /// The host that still has part of its memory, until it has been fetched.
        memory_at: Option<HostName>,
    },
    /// The source of a move that may have suspended it. Only a directive of the coordinator ends this role.
    Source {
        /// Which move.
        id: MoveId,
        /// The destination.
        destination: Side,
    },
    /// The destination of a move.
    Destination {
        /// Which move.
        id: MoveId,
        /// The source.
        source: Side,
        /// The specification.
        spec: Vec<u8>,
        /// The result of the check at the source.
        facts: Vec<u8>,
        /// Whether it is a post-copy move.
        post_copy: bool,
        /// The progress of its arrival.
        stage: Arrival,
    },
    /// It ended here, and the coordinator has not yet recorded that.
    Ended {
        /// How it ended.
        exit: Exit,
    },
}

/// The progress of an arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Arrival {
    /// The image files are incomplete.
    Preparing,
    /// The image files are complete and durable; the copy has not run here, and must not yet.
    Held,
    /// The move is committed, and the copy may be running here.
    Resuming,
}
