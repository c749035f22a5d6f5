//! What the coordinator and the nodes say to each other about moves.
//!
//! ```text
//! source                      coordinator                     destination
//!   │◀───────────── CheckSource │                                  │   prepare
//!   │ Checked(facts) ──────────▶│ Prepare{spec, facts} ───────────▶│
//!   │                           │◀──────────────────────── Prepared│
//!   │◀───────────────── Precopy │                                  │   pre-copy
//!   │ ═══ memory, while the instance runs, node to node, over TLS ▶│
//!   │ Copied ──────────────────▶│                                  │
//!   │◀───────────────── Suspend │                                  │   suspend
//!   │ Suspended ───────────────▶│                                  │   transfer
//!   │ ═══ images, node to node, over TLS ═════════════════════════▶│
//!   │ Sent ────────────────────▶│                                  │   restore
//!   │                           │◀─────────────────────────── Ready│   restored, held
//!   │                 ● Committed: location and epoch, one write   │   commit
//!   │                           │ Resume ─────────────────────────▶│   resume
//!   │                           │◀───────────────────────── Running│
//!   │                 ● Confirmed                                  │
//!   │◀───────────────── Destroy │                                  │   destroy
//!   │ Destroyed ───────────────▶│ ● Ended                          │
//!
//! before the commit, on a refusal, a failure, a deadline or a cancel:
//!   │                 ● RolledBack                                 │
//!   │◀──────────────── RollBack │ RollBack ───────────────────────▶│
//!   │ RolledBack ──────────────▶│◀────────────────────── RolledBack│
//!   │                 ● Ended                                      │
//! ```
//!
//! Every directive names its move, and is sent again until the node reports what it asks for. A
//! node answers a directive that it has already fulfilled with the same report. What a node may
//! not act on any more it recognises by the move's number: numbers only rise, and an instance's
//! entry on the node remembers the last one. A node sends its report again, too, as long as it
//! waits for a decision, so that one that restarted, or prepared for a move long ended, is told.
//!
//! A post-copy move lets the instance run before all its memory is there. Between resume and destroy it has one phase more:
//!
//! ```text
//!   │                           │ Resume ─────────────────────────▶│   resume
//!   │                           │◀────────────────────── Incomplete│   fetch
//!   │◀═══ what memory is missing, node to node, over TLS ═════════▶│
//!   │                           │◀───────────────────────── Running│
//!   │                 ● Confirmed                                  │
//! ```
//!
//! In fetch the source is bound to give what is asked for: it keeps its stopped copy until it is told to destroy it, as in any move,
//! and only that `Running`, which means that all is there, brings that about. The destination writes down what it still lacks
//! before it says `Incomplete`, and that it lacks nothing before it says `Running`.
//!
//! In pre-copy the source is still nothing but the instance's host: it writes nothing down, and what it has sent is void when
//! it restarts. So it lets itself be suspended only if it remembers to have sent the memory for that move.
//!
//! A checkpoint is a move without a pre-copy that goes only as far as Sent: its images stay in a directory of the source's host, and when those of
//! all that are saved together do, Saved is written down and the source is told to run on, by RollBack. A restore is a move without a
//! source: the destination takes the images from such a directory.
//!
//! A dry run stops after the checks; its destination is asked by `CheckDestination`, which leaves nothing.
//!
//! Peers of a moving instance lose their links and ask their node where it is (`Locate`). The node
//! asks until the coordinator's answer is a location with nothing in progress, or that it is gone. It asks for many at once:
//! those that are wanted while a question has no answer go in the next one (`node/wanted.rs`).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use fabric::{Epoch, Vid};
use serde::{Deserialize, Serialize};

use crate::journal::Exit;
use crate::{HostName, MoveId, Side};

/// Raised when a message changes its meaning or layout.
pub const VERSION: u16 = 6;

/// The largest specification of an instance, and the largest facts of a check, in bytes.
pub const MAX_BLOB: usize = 256 * 1024;

/// The most reasons for a refusal.
pub const MAX_REASONS: usize = 64;

/// The longest reason, in bytes; a longer one is cut.
pub const MAX_REASON: usize = 1024;

/// The most instances in one question where they are.
pub const MAX_LOCATED: usize = 1024;

/// From the coordinator to a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ToNode {
    /// What to do for a move.
    Move {
        /// Which move.
        id: MoveId,
        /// Which instance.
        vid: Vid,
        /// What to do.
        directive: Directive,
    },
    /// The answer to [`ToCoordinator::Exited`]: the node may forget the instance.
    ExitRecorded {
        /// Which instance.
        vid: Vid,
        /// As reported.
        epoch: Epoch,
    },
    /// The answer to [`ToCoordinator::Locate`].
    Located {
        /// Where each is; `None` if it is gone.
        places: BTreeMap<Vid, Option<Location>>,
    },
}

/// Where an instance is.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Location {
    /// Its host.
    pub host: HostName,
    /// Its moves so far.
    pub epoch: Epoch,
    /// Whether a move holds it suspended, so that it cannot be reached now.
    pub moving: bool,
}

/// What a node is to do for a move.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Directive {
    /// To the source: find what hinders the instance from leaving.
    CheckSource {
        /// Where it would go.
        destination: Side,
        /// Whether it will not go.
        dry_run: bool,
    },
    /// To the destination of a dry run: find what hinders the instance from coming.
    CheckDestination {
        /// The instance's specification, as its node wrote it.
        spec: Vec<u8>,
        /// What the check at the source found.
        facts: Vec<u8>,
        /// Whether it would run there before all its memory is there.
        post_copy: bool,
    },
    /// To the destination: check as in `CheckDestination`, make room, and await the images.
    Prepare {
        /// The instance's epoch if the move commits.
        epoch: Epoch,
        /// Where it comes from.
        source: Side,
        /// The instance's specification, as its node wrote it.
        spec: Vec<u8>,
        /// What the check at the source found.
        facts: Vec<u8>,
        /// Whether it will run before all its memory is there.
        post_copy: bool,
    },
    /// To the source: send the memory of the instance, which runs on.
    Precopy {
        /// Where it goes.
        destination: HostName,
        /// Whether what will have changed since need not be sent before it runs there.
        post_copy: bool,
    },
    /// To the source: suspend the instance, dump it, and send it.
    Suspend {
        /// The instance's epoch before the move.
        epoch: Epoch,
        /// Where it goes.
        destination: Side,
    },
    /// To the destination: the move is committed; let the instance run.
    Resume,
    /// To the source: the instance runs at the destination; remove what is left here.
    Destroy,
    /// To both: the move is rolled back, or was a checkpoint. The source runs on, the destination cleans up.
    RollBack,
}

/// From a node to the coordinator.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ToCoordinator {
    /// How far the node is with a move.
    Move {
        /// Which move.
        id: MoveId,
        /// Which instance.
        vid: Vid,
        /// How far.
        report: Report,
    },
    /// An instance ended by itself, or is lost. Sent until [`ToNode::ExitRecorded`].
    Exited {
        /// Which instance.
        vid: Vid,
        /// Its epoch when it ended.
        epoch: Epoch,
        /// How it ended.
        exit: Exit,
    },
    /// Asks where instances are.
    Locate {
        /// Which: at most [`MAX_LOCATED`], what is past that has no answer.
        vids: BTreeSet<Vid>,
    },
}

/// How far a node is with a move.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Report {
    /// A check found nothing that hinders; facts from the source for the destination.
    Checked {
        /// For [`Directive::Prepare`]; empty from a destination.
        facts: Vec<u8>,
    },
    /// A check or the preparation found what hinders.
    Refused {
        /// Each in words, with the way out.
        reasons: Vec<String>,
    },
    /// The destination has made room and awaits the images.
    Prepared,
    /// The source has sent the memory of the instance, which runs.
    Copied {
        /// Bytes in all.
        bytes: u64,
    },
    /// The source's instance is suspended and is being dumped.
    Suspended {
        /// What it took.
        suspension: Suspension,
    },
    /// How much of the memory or of the images has been sent, or saved, or taken from a checkpoint.
    Progress {
        /// Bytes so far.
        bytes: u64,
        /// Bytes in all, as far as known.
        total: u64,
    },
    /// The images are sent.
    Sent {
        /// Bytes in all.
        bytes: u64,
    },
    /// The destination holds a restored copy that only needs to be let go. The images are kept.
    Ready,
    /// The node cannot go on; it waits for the decision.
    Failed {
        /// Which of its operations failed and why.
        reason: String,
    },
    /// What is decided could not be done; the node tries again.
    Trouble {
        /// Which operation failed and why.
        reason: String,
    },
    /// The destination's copy runs, and a part of its memory is at the source still.
    Incomplete,
    /// The destination's copy runs, with all its memory.
    Running,
    /// The source's copy is gone.
    Destroyed,
    /// The source's instance runs on, or has ended; the destination has cleaned up.
    RolledBack,
}

/// What the suspension of an instance took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Suspension {
    /// From the directive's arrival to the last library's word.
    pub elapsed: Duration,
    /// QPs of all its processes.
    pub queue_pairs: u32,
    /// Memory regions of all its processes.
    pub memory_regions: u32,
}
