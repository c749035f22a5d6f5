//! Messages between the coordinator and the nodes about moves.
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
//! Every directive names its move, and is sent again until the node reports its fulfilment. A
//! node answers a fulfilled directive with the same report again. It recognises
//! obsolete directives by the move's number: numbers only increase, and an instance's
//! entry on the node stores the last one. A node repeats its report while it
//! waits for a decision, so that a node that restarted, or prepared for a move that has ended, gets the decision.
//!
//! A post-copy move runs the instance before all its memory is there. It has one more phase, between resume and destroy:
//!
//! ```text
//!   │                           │ Resume ─────────────────────────▶│   resume
//!   │                           │◀────────────────────── Incomplete│   fetch
//!   │◀═══ what memory is missing, node to node, over TLS ═════════▶│
//!   │                           │◀───────────────────────── Running│
//!   │                 ● Confirmed                                  │
//! ```
//!
//! In this phase the source must provide the missing memory: it keeps its stopped copy until it is told to destroy it, as in any move,
//! and only `Running`, which means that the memory is complete, causes that. The destination records what is missing
//! before it sends `Incomplete`, and that nothing is missing before it sends `Running`.
//!
//! In pre-copy the source is still the instance's host: it writes no record, and a restart voids the memory that it has
//! sent. So it accepts `Suspend` only if it has sent the memory for that move in its present process.
//!
//! A checkpoint is a move without pre-copy that ends at Sent: its images stay in a directory of the source's host. When the images of
//! the whole group are complete, Saved is recorded, and RollBack makes the sources resume. A restore is a move without a
//! source: the destination reads the images from such a directory.
//!
//! A dry run stops after the checks; its destination gets `CheckDestination`, which has no side effects.
//!
//! Peers of a moving instance lose their links and ask their node for its location (`Locate`). The node
//! asks until the coordinator answers with a location that is not moving, or that the instance is gone. Questions are batched:
//! instances wanted while a question is in flight go into the next one (`node/wanted.rs`).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use fabric::{Epoch, Vid};
use serde::{Deserialize, Serialize};

use crate::journal::Exit;
use crate::{HostName, MoveId, Side};

/// Incremented when a message changes its meaning or layout.
pub const VERSION: u16 = 6;

/// The largest specification of an instance, and the largest result of a check, in bytes.
pub const MAX_BLOB: usize = 256 * 1024;

/// The limit of reasons of a refusal.
pub const MAX_REASONS: usize = 64;

/// The longest reason in bytes; longer ones are truncated.
pub const MAX_REASON: usize = 1024;

/// The limit of instances in one `Locate`.
pub const MAX_LOCATED: usize = 1024;

/// A message from the coordinator to a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ToNode {
    /// A directive for a move.
    Move {
        /// Which move.
        id: MoveId,
        /// Which instance.
        vid: Vid,
        /// The directive.
        directive: Directive,
    },
    /// The answer to [`ToCoordinator::Exited`]: the node may remove the instance's entry.
    ExitRecorded {
        /// Which instance.
        vid: Vid,
        /// As reported.
        epoch: Epoch,
    },
    /// The answer to [`ToCoordinator::Locate`].
    Located {
        /// The location of each; `None` if it is gone.
        places: BTreeMap<Vid, Option<Location>>,
    },
}

/// The location of an instance.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Location {
    /// Its host.
    pub host: HostName,
    /// Its epoch.
    pub epoch: Epoch,
    /// Whether a move has it suspended, so that it is unreachable now.
    pub moving: bool,
}

/// A directive to a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Directive {
    /// To the source: check for blockers.
    CheckSource {
        /// The destination.
        destination: Side,
        /// Whether it is a dry run.
        dry_run: bool,
    },
    /// To the destination of a dry run: check for blockers.
    CheckDestination {
        /// The instance's blueprint.
        spec: Vec<u8>,
        /// The result of the check at the source.
        facts: Vec<u8>,
        /// Whether it would be a post-copy move.
        post_copy: bool,
    },
    /// To the destination: check as in `CheckDestination`, reserve resources, and await the images.
    Prepare {
        /// The instance's epoch after the commit.
        epoch: Epoch,
        /// The source.
        source: Side,
        /// The instance's blueprint.
        spec: Vec<u8>,
        /// The result of the check at the source.
        facts: Vec<u8>,
        /// Whether it is a post-copy move.
        post_copy: bool,
    },
    /// To the source: send the memory of the running instance.
    Precopy {
        /// The destination.
        destination: HostName,
        /// Whether a single round is enough, because later changes are fetched after the resume.
        post_copy: bool,
    },
    /// To the source: suspend, dump and send the instance.
    Suspend {
        /// The instance's epoch before the move.
        epoch: Epoch,
        /// The destination.
        destination: Side,
    },
    /// To the destination: the move is committed; resume the instance.
    Resume,
    /// To the source: the instance runs at the destination; destroy the stopped copy.
    Destroy,
    /// To both: the move was rolled back, or was a checkpoint. The source resumes the instance, and the destination cleans up.
    RollBack,
}

/// A message from a node to the coordinator.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ToCoordinator {
    /// A report about a move.
    Move {
        /// Which move.
        id: MoveId,
        /// Which instance.
        vid: Vid,
        /// The report.
        report: Report,
    },
    /// An instance ended by itself, or is lost. Repeated until [`ToNode::ExitRecorded`].
    Exited {
        /// Which instance.
        vid: Vid,
        /// Its epoch when it ended.
        epoch: Epoch,
        /// How it ended.
        exit: Exit,
    },
    /// Asks for locations.
    Locate {
        /// The instances, at most [`MAX_LOCATED`]; further ones get no answer.
        vids: BTreeSet<Vid>,
    },
}

/// A report of a node about a move.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Report {
    /// A check found no blockers; the source returns facts for the destination.
    Checked {
        /// For [`Directive::Prepare`]; empty from a destination.
        facts: Vec<u8>,
    },
    /// A check or the preparation found blockers.
    Refused {
        /// Each blocker with its remedy.
        reasons: Vec<String>,
    },
    /// The destination has reserved resources and awaits the images.
    Prepared,
    /// The source has sent the memory of the running instance.
    Copied {
        /// Total bytes.
        bytes: u64,
    },
    /// The source has suspended the instance and is dumping it.
    Suspended {
        /// The figures of the suspension.
        suspension: Suspension,
    },
    /// Progress of sending, saving or reading memory or images.
    Progress {
        /// Bytes so far.
        bytes: u64,
        /// Total bytes, as far as known.
        total: u64,
    },
    /// The images were sent.
    Sent {
        /// Total bytes.
        bytes: u64,
    },
    /// The destination holds a restored copy that can be released. The images are kept.
    Ready,
    /// The node cannot proceed, and waits for the decision.
    Failed {
        /// The failed operation and the reason.
        reason: String,
    },
    /// A decision could not be carried out; the node retries.
    Trouble {
        /// The failed operation and the reason.
        reason: String,
    },
    /// The destination's copy runs, but part of its memory is still on the source.
    Incomplete,
    /// The destination's copy runs with all its memory.
    Running,
    /// The source's copy is destroyed.
    Destroyed,
    /// The source's instance runs again, or has ended; the destination has cleaned up.
    RolledBack,
}

/// Figures of a suspension.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Suspension {
    /// From the directive's arrival to the last library's confirmation.
    pub elapsed: Duration,
    /// QPs of all its processes.
    pub queue_pairs: u32,
    /// Memory regions of all its processes.
    pub memory_regions: u32,
}
