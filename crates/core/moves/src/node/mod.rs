//! A node's part in the protocol: its instances, and its operations for their moves.
//!
//! ```text
//!            Suspend (newer than last_move)            Destroy
//!   Host ────────────────────────────────▶ Source ─────────────────▶ (removed)
//!    ▲ ▲ ◀────────────────────────────────┘
//!    │ │               RollBack
//!    │ └ started here
//!    │                                         RollBack
//!    │   Prepare ▶ Destination{Preparing} ──────────────────┐
//!    │                     │ images complete, copy held     ├──▶ (removed)
//!    │             Destination{Held} ───────────────────────┘
//!    │                     │ Resume
//!    └─── released ─ Destination{Resuming}
//!
//!   Host, Resuming ── the instance ends ──▶ Ended ── ExitRecorded ──▶ (removed)
//! ```
//!
//! A copy of a post-copy move that is released becomes a Host that records which host has the rest of its memory, and fetches that before
//! any other operation.
//!
//! Each box is an [`Entry`], written before the corresponding operation begins. So a
//! restarted node knows the worst case: it continues committed moves,
//! reports others as failed, and waits for the coordinator. It never decides itself: there
//! is no timeout from Source to Host, nor from Held to Resuming.
//!
//! The instance runs during its check and pre-copy: its source is still a Host, and writes no record.
//!
//! An instance has at most one engine operation in progress. When a directive makes it obsolete,
//! it is cancelled, and the next operation starts after its result.

mod cell;
mod directives;
mod results;
mod wanted;

use std::collections::BTreeMap;
use std::time::Duration;

use fabric::{Epoch, Vid};

use crate::due::Due;
use crate::entry::{Entry, NodeRecord, Role};
use crate::journal::Exit;
use crate::protocol::{Location, Suspension, ToCoordinator, ToNode};
use crate::{HostName, MoveId, Side};
use cell::Cell;
use wanted::Wanted;

/// Intervals of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// Interval before an unanswered report is sent again.
    pub repeat: Duration,
    /// Interval before an operation that must succeed is retried.
    pub retry: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self { repeat: Duration::from_millis(500), retry: Duration::from_secs(1) }
    }
}

/// An input of a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Input {
    /// The node has connected to the coordinator.
    LinkUp,
    /// The connection to the coordinator is lost.
    LinkDown,
    /// A message from the coordinator.
    Message(ToNode),
    /// The operation of this instance has ended. There is exactly one for each [`Output::Operate`].
    Ended {
        /// Which instance.
        vid: Vid,
        /// Its outcome.
        outcome: Outcome,
    },
    /// Progress of [`Operation::Precopy`] or [`Operation::Send`], of [`Operation::Receive`] from a
    /// checkpoint, or of [`Operation::Fetch`].
    Progress {
        /// Which instance.
        vid: Vid,
        /// Bytes so far.
        bytes: u64,
        /// Total bytes, as far as known.
        total: u64,
    },
    /// The processes of an instance, or of a held copy, are gone without an operation that ends them.
    Exited {
        /// Which instance.
        vid: Vid,
        /// How it ended.
        exit: Exit,
    },
    /// The time of [`NodeAgent::wake_at`] has come.
    Tick,
}

/// An output of a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Output {
    /// Make this durable before performing the outputs after it.
    Record(NodeRecord),
    /// Send this to the coordinator; drop it if there is no connection.
    Send(ToCoordinator),
    /// Start an engine operation. [`Input::Ended`] reports its outcome.
    Operate {
        /// On which instance.
        vid: Vid,
        /// The operation.
        operation: Operation,
    },
    /// Cancel this instance's operation; its [`Input::Ended`] still follows.
    Cancel {
        /// Which instance.
        vid: Vid,
    },
    /// The answer to [`NodeAgent::locate`]. While `moving`, another answer follows.
    Located {
        /// Which instance.
        vid: Vid,
        /// Its location; `None` if it is gone.
        location: Option<Location>,
    },
    /// A move is over without suspending the instance: resources that the check and the pre-copy have prepared can be freed.
    Stays {
        /// Which instance.
        vid: Vid,
    },
    /// The coordinator has recorded the instance's end: its remains can be removed.
    Farewell {
        /// Which instance.
        vid: Vid,
    },
}

/// An engine operation. Every operation can be repeated after an interruption at any
/// point, with the same result.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Check for blockers on the source. Ends in `Checked` or `Refused`.
    CheckSource {
        /// The destination.
        destination: Side,
        /// Whether it is a dry run, which prepares nothing.
        dry_run: bool,
    },
    /// Check for blockers on the destination, without side effects. Ends in `Checked` or `Refused`.
    CheckDestination {
        /// The specification.
        spec: Vec<u8>,
        /// The result of the check at the source.
        facts: Vec<u8>,
        /// Whether it would be a post-copy move.
        post_copy: bool,
    },
    /// Check, reserve resources, and get ready for the images. Ends in `Done` or `Refused`.
    Prepare {
        /// Which move.
        id: MoveId,
        /// The instance's epoch after the commit.
        epoch: Epoch,
        /// The source.
        source: Side,
        /// The specification.
        spec: Vec<u8>,
        /// The result of the check at the source.
        facts: Vec<u8>,
        /// Whether it is a post-copy move.
        post_copy: bool,
    },
    /// Receive the images from the source, or read them from a checkpoint, make them durable, restore them and hold the copy before
    /// it executes any instruction. Ends in `Done` or `Failed`.
    Receive {
        /// Which move.
        id: MoveId,
    },
    /// Hold a copy, restored from the stored images unless it is held already. Only requested while
    /// the copy has not been released. Ends in `Done` or `Failed`.
    Restore {
        /// Which move.
        id: MoveId,
    },
    /// Release the held copy. `Done` if it runs (or ran already), `Incomplete` if part of its memory is missing,
    /// `Failed` if it has certainly executed no instruction, `Gone` if it may have run and no longer exists.
    Release {
        /// Which move.
        id: MoveId,
        /// The instance's new epoch.
        epoch: Epoch,
    },
    /// Pre-copy: send the memory of the running instance to the destination. The result does not outlive the node's process.
    /// Ends in `Copied` or `Failed`.
    Precopy {
        /// Which move.
        id: MoveId,
        /// The destination.
        destination: HostName,
        /// Whether a single round is enough.
        post_copy: bool,
    },
    /// Make every library of the instance close its links. Ends in `Suspended` or `Failed`.
    Suspend,
    /// Dump the instance, leave it stopped, and send or save the images. Ends in `Sent` or `Failed`.
    Send {
        /// Which move.
        id: MoveId,
        /// The destination.
        destination: Side,
    },
    /// Make the instance run here after a suspension, a dump, or a restart of the
    /// node. `Done` if it runs; `Gone` if there is nothing to run, even if it was never started;
    /// `Failed` to retry.
    Continue {
        /// The instance's epoch.
        epoch: Epoch,
    },
    /// Fetch the missing memory of the running instance. `Done` if it is complete; `Gone` if the memory is lost, and the
    /// instance has been ended; `Failed` to retry.
    Fetch {
        /// The post-copy move.
        id: MoveId,
        /// The host with the memory.
        source: HostName,
    },
    /// Remove the destination's copy, its images and its reserved resources. Ends in `Done` or `Failed`.
    Abort {
        /// Which move.
        id: MoveId,
    },
    /// Remove the source's stopped copy and its resources. Ends in `Done` or `Failed`.
    Destroy {
        /// Which move.
        id: MoveId,
    },
}

/// The outcome of an operation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// It succeeded.
    Done,
    /// It succeeded, but part of the instance's memory is still on the source.
    Incomplete,
    /// The check found no blockers.
    Checked {
        /// For the check at the destination; empty from there.
        facts: Vec<u8>,
    },
    /// The check found blockers.
    Refused {
        /// Each blocker with its remedy.
        reasons: Vec<String>,
    },
    /// Pre-copy has ended.
    Copied {
        /// Total bytes.
        bytes: u64,
    },
    /// The instance's libraries have closed their links.
    Suspended(Suspension),
    /// The images were sent.
    Sent {
        /// Total bytes.
        bytes: u64,
    },
    /// It failed, or was cancelled.
    Failed {
        /// The reason.
        reason: String,
    },
    /// Nothing is left that could run.
    Gone {
        /// How the instance ended.
        exit: Exit,
    },
}

/// A node's state: its instances and their moves.
#[derive(Clone, Debug, Hash)]
pub struct NodeAgent {
    host: HostName,
    config: Config,
    cells: BTreeMap<Vid, Cell>,
    wanted: Wanted,
    linked: bool,
    repeat_at: Option<Due>,
}

impl NodeAgent {
    /// Creates the agent of `host` from its durable entries. Its outputs resume interrupted operations.
    #[must_use]
    pub fn new(
        host: HostName,
        config: Config,
        entries: BTreeMap<Vid, Entry>,
        now: Duration,
    ) -> (Self, Vec<Output>) {
        let cells = entries.into_iter().map(|(vid, entry)| (vid, Cell::after_restart(entry))).collect();
        let mut agent =
            Self { host, config, cells, wanted: Wanted::default(), linked: false, repeat_at: None };
        let mut out = Vec::new();
        for (vid, cell) in &mut agent.cells {
            cell.advance(*vid, &mut out);
        }
        agent.arm_repeat(now);
        (agent, out)
    }

    /// Adds an instance that is about to be started here. Its end is reported as [`Input::Exited`],
    /// even if it could not be started.
    ///
    /// # Errors
    /// If the node has an entry for `vid` already.
    pub fn host_instance(&mut self, vid: Vid, epoch: Epoch) -> Result<Vec<Output>, AlreadyHere> {
        if self.cells.get(&vid).is_some_and(|cell| cell.entry.is_some()) {
            return Err(AlreadyHere { vid });
        }
        let entry = Entry { epoch, role: Role::Host { last_move: MoveId::default(), memory_at: None } };
        self.cells.insert(vid, Cell::running(entry.clone()));
        Ok(vec![Output::Record(NodeRecord::Set { vid, entry })])
    }

    /// Asks for the location of `vid`, for a library that needs a link to it. [`Output::Located`] follows at
    /// once or later, until it names a location that is not moving.
    pub fn locate(&mut self, vid: Vid, now: Duration) -> Vec<Output> {
        if let Some(epoch) = self.epoch_of_running(vid) {
            let location = Location { host: self.host.clone(), epoch, moving: false };
            return vec![Output::Located { vid, location: Some(location) }];
        }
        self.wanted.insert(vid);
        self.arm_repeat(now);
        self.wanted.next_question().map(Output::Send).into_iter().collect()
    }

    /// Handles an input at `now`, a time on a monotonic clock.
    pub fn handle(&mut self, input: Input, now: Duration) -> Vec<Output> {
        let mut out = Vec::new();
        match input {
            Input::LinkUp => {
                self.linked = true;
                self.repeat_all(&mut out);
            }
            Input::LinkDown => self.linked = false,
            Input::Message(message) => self.message(message, &mut out),
            Input::Ended { vid, outcome } => self.ended(vid, outcome, now, &mut out),
            Input::Progress { vid, bytes, total } => self.progress(vid, bytes, total, &mut out),
            Input::Exited { vid, exit } => self.exited(vid, exit, &mut out),
            Input::Tick => self.tick(now, &mut out),
        }
        self.arm_repeat(now);
        out
    }

    /// When [`Input::Tick`] is due, unless another input comes first.
    #[must_use]
    pub fn wake_at(&self) -> Option<Duration> {
        let retries = self.cells.values().filter_map(|cell| cell.volatile.retry_at);
        retries.chain(self.repeat_at).min().map(|due| due.0)
    }

    /// The entry of `vid`.
    #[must_use]
    pub fn entry(&self, vid: Vid) -> Option<&Entry> {
        self.cells.get(&vid)?.entry.as_ref()
    }

    /// All entries: the result of the records so far.
    pub fn entries(&self) -> impl Iterator<Item = (Vid, &Entry)> {
        self.cells.iter().filter_map(|(vid, cell)| Some((*vid, cell.entry.as_ref()?)))
    }

    /// Whether `vid` runs here, as far as the node knows.
    #[must_use]
    pub fn runs(&self, vid: Vid) -> bool {
        self.epoch_of_running(vid).is_some()
    }

    fn epoch_of_running(&self, vid: Vid) -> Option<Epoch> {
        let cell = self.cells.get(&vid)?;
        let entry = cell.entry.as_ref()?;
        (cell.volatile.running && matches!(entry.role, Role::Host { .. })).then_some(entry.epoch)
    }

    fn tick(&mut self, now: Duration, out: &mut Vec<Output>) {
        if self.repeat_at.is_some_and(|due| due.reached(now)) {
            self.repeat_at = None;
            self.repeat_all(out);
        }
        for (vid, cell) in &mut self.cells {
            if cell.volatile.retry_at.is_some_and(|due| due.reached(now)) {
                cell.volatile.retry_at = None;
                cell.advance(*vid, out);
            }
        }
    }

    fn repeat_all(&mut self, out: &mut Vec<Output>) {
        if !self.linked {
            return;
        }
        for (vid, cell) in &self.cells {
            out.extend(cell.waiting_report(*vid).map(Output::Send));
        }
        out.extend(self.wanted.ask_again().map(Output::Send));
    }

    fn arm_repeat(&mut self, now: Duration) {
        let waits = !self.wanted.is_empty() || self.cells.values().any(Cell::waits);
        match (waits, self.repeat_at) {
            (true, None) => self.repeat_at = Some(Due::after(now, self.config.repeat)),
            (false, _) => self.repeat_at = None,
            (true, Some(_)) => {}
        }
    }
}

/// The instance is already on this host, or moving to or from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("instance {vid} is already on this host")]
pub struct AlreadyHere {
    vid: Vid,
}
