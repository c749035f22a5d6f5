//! The events of a move for its user.

use std::time::Duration;

use fabric::Vid;
use serde::{Deserialize, Serialize};

use crate::journal::Exit;
use crate::protocol::Suspension;
use crate::{HostName, MoveId};

/// A phase of a move. Up to and including [`Phase::Restore`] a move can be rolled back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Phase {
    /// Both hosts check for blockers, and the destination reserves resources.
    Prepare,
    /// The memory of the running instance is sent.
    Precopy,
    /// The libraries of the instance close their links.
    Suspend,
    /// The instance is dumped and sent.
    Transfer,
    /// It is restored at the destination and held.
    Restore,
    /// Committed: the destination resumes the instance. Of a checkpoint: the source does.
    Resume,
    /// The instance runs at the destination; missing memory is fetched from the source, or pushed by it.
    Fetch,
    /// The instance runs at the destination; the source is cleaned up.
    Destroy,
    /// Rolled back: the source resumes the instance, and the destination cleans up.
    RollBack,
}

impl Phase {
    /// The phase's name, as users see it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Prepare => "prepare",
            Self::Precopy => "pre-copy",
            Self::Suspend => "suspend",
            Self::Transfer => "transfer",
            Self::Restore => "restore",
            Self::Resume => "resume",
            Self::Fetch => "fetch",
            Self::Destroy => "destroy",
            Self::RollBack => "roll back",
        }
    }
}

/// An event of a move.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Event {
    /// A phase begins.
    Phase {
        /// Which phase.
        phase: Phase,
        /// Since the move began (or the coordinator restarted).
        at: Duration,
    },
    /// The instance is suspended.
    Suspended(Suspension),
    /// Progress of the transfer.
    Progress {
        /// Bytes so far.
        bytes: u64,
        /// Total bytes, as far as known.
        total: u64,
    },
    /// The move waits for a host that has not answered for a while. Repeated as long
    /// as that lasts.
    Waiting {
        /// Which host.
        host: HostName,
        /// The known cause.
        silence: Silence,
    },
    /// A host could not yet carry out a decision, and retries.
    Trouble {
        /// Which host.
        host: HostName,
        /// The failed operation and the reason.
        reason: String,
    },
    /// The move is over for the user: the instance runs, and may move again. An unreachable host
    /// cleans up when it reconnects.
    Ended {
        /// The outcome.
        outcome: Outcome,
        /// Every phase with its duration, in order.
        phases: Vec<(Phase, Duration)>,
    },
    /// All hosts have cleaned up.
    Cleaned,
}

/// Why a host is silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, thiserror::Error)]
pub enum Silence {
    /// Its node is down or unreachable.
    #[error("its node is not connected to the coordinator")]
    NotConnected,
    /// The cause is unknown.
    #[error("it has not answered yet")]
    NoAnswer,
    /// Dumps on one machine are serialised.
    #[error("it has not answered yet; it may be dumping another instance first")]
    MayQueue,
    /// It gets no directive before it has cleaned up.
    #[error("it is still cleaning up after {0} of the same instance")]
    CleaningUp(MoveId),
}

/// The outcome of a move.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Outcome {
    /// The instance runs at the destination.
    Moved,
    /// The instance ran on the destination, and has ended there, because memory that it needed was lost on its source.
    Bereft {
        /// The known cause.
        reason: String,
    },
    /// The checkpoint is complete, and the instance continues to run.
    Saved,
    /// The instance runs on the source again, or has ended by itself.
    RolledBack {
        /// The reasons.
        reasons: Vec<String>,
    },
    /// A dry run found no blockers.
    Feasible,
    /// A dry run found blockers.
    Hindered {
        /// The blockers.
        reasons: Vec<String>,
    },
}

/// An instance ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct InstanceEnded {
    /// Which instance.
    pub vid: Vid,
    /// How it ended.
    pub exit: Exit,
}
