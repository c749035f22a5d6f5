//! What a user sees of a move.

use std::time::Duration;

use fabric::Vid;
use serde::{Deserialize, Serialize};

use crate::journal::Exit;
use crate::protocol::Suspension;
use crate::{HostName, MoveId};

/// A part of a move. Up to and with [`Phase::Restore`] a move can be rolled back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Phase {
    /// What could hinder is looked for at both ends, and room is made.
    Prepare,
    /// The memory of the instance is sent while it runs.
    Precopy,
    /// The libraries of the instance close their links.
    Suspend,
    /// The instance is dumped and sent.
    Transfer,
    /// It is restored at the destination and held.
    Restore,
    /// Committed: the destination lets it run. Of a checkpoint: the source does.
    Resume,
    /// It runs at the destination; what memory is missing is fetched from the source, or sent by it.
    Fetch,
    /// It runs at the destination; what is left at the source is removed.
    Destroy,
    /// Given up: the source lets it run, the destination cleans up.
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

/// What happened in a move.
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
    /// How much has been sent.
    Progress {
        /// Bytes so far.
        bytes: u64,
        /// Bytes in all, as far as known.
        total: u64,
    },
    /// The move cannot go on before a host answers, which it has not done for a while. Said again as long
    /// as that lasts.
    Waiting {
        /// Which host.
        host: HostName,
        /// What is known of it.
        silence: Silence,
    },
    /// A host cannot yet do what is decided, and tries again.
    Trouble {
        /// Which host.
        host: HostName,
        /// What it cannot do and why.
        reason: String,
    },
    /// The user's part is over: the instance runs, and may be moved again. What is left on a host
    /// that cannot be reached is removed when it comes back.
    Ended {
        /// How it ended.
        outcome: Outcome,
        /// Every phase with its duration, in order.
        phases: Vec<(Phase, Duration)>,
    },
    /// Nothing of the move is left on any host.
    Cleaned,
}

/// Why a host says nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, thiserror::Error)]
pub enum Silence {
    /// Its node is down or cut off.
    #[error("its node is not connected to the coordinator")]
    NotConnected,
    /// Nothing is known.
    #[error("it has not answered yet")]
    NoAnswer,
    /// One is dumped after the other on a machine.
    #[error("another instance may be dumped before this one; it has not answered yet")]
    MayQueue,
    /// It is not asked before it has done this.
    #[error("it still removes what {0} of the same instance left there")]
    CleaningUp(MoveId),
}

/// How a move ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Outcome {
    /// The instance runs at the destination.
    Moved,
    /// The instance ran at the destination, and has ended there, since memory that it needed was lost at its source.
    Bereft {
        /// What is known about it.
        reason: String,
    },
    /// A checkpoint's images are complete, and the instance runs on.
    Saved,
    /// The instance runs at the source as before, or has ended by itself.
    RolledBack {
        /// Why, in words.
        reasons: Vec<String>,
    },
    /// A dry run found nothing that hinders.
    Feasible,
    /// A dry run found what hinders.
    Hindered {
        /// What, in words.
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
