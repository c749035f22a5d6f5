//! What a node must remember: one entry for each instance that it has to do with.

use fabric::{Epoch, Vid};
use serde::{Deserialize, Serialize};

use crate::journal::Exit;
use crate::{HostName, MoveId, Side};

/// A change of what a node remembers. Durable before the outputs behind it are acted on.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum NodeRecord {
    /// The instance's entry is this from now on.
    Set {
        /// Which instance.
        vid: Vid,
        /// The whole entry.
        entry: Entry,
    },
    /// The node has nothing more to do with the instance.
    Removed {
        /// Which instance.
        vid: Vid,
    },
}

/// An instance, as a node remembers it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Entry {
    /// The instance's epoch; at a destination the one that it has if the move commits.
    pub epoch: Epoch,
    /// What the node is to it.
    pub role: Role,
}

/// What a node is to an instance.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Role {
    /// Its host: the instance runs here, or is to run again.
    Host {
        /// The last move in which it took part; directives up to this number are over.
        last_move: MoveId,
        /// The host where a part of its memory is still, and must be until it has been fetched.
        memory_at: Option<HostName>,
    },
    /// The source of a move that may have suspended it. Only the coordinator's word ends this.
    Source {
        /// Which move.
        id: MoveId,
        /// Where the instance goes.
        destination: Side,
    },
    /// The destination of a move.
    Destination {
        /// Which move.
        id: MoveId,
        /// Where the instance comes from.
        source: Side,
        /// How to make it.
        spec: Vec<u8>,
        /// What the check at the source found.
        facts: Vec<u8>,
        /// Whether it runs before all its memory is there.
        post_copy: bool,
        /// How far it has come.
        stage: Arrival,
    },
    /// It ended here, and the coordinator has not yet recorded it.
    Ended {
        /// How it ended.
        exit: Exit,
    },
}

/// How far an instance has come at its destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Arrival {
    /// Its images are not complete.
    Preparing,
    /// Its images are complete and durable; it has not run here, and must not yet.
    Held,
    /// The move is committed, and the instance may be running here.
    Resuming,
}
