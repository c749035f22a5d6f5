//! The part of a node: its instances, and what it does for their moves.
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
//! A copy of a post-copy move that is released becomes a Host that knows where a part of its memory is, and it fetches that before
//! anything else is done with it.
//!
//! Each box is an [`Entry`], written down before the operation that it stands for begins. So a
//! node that restarts knows the worst that may have happened: it takes up what is decided,
//! reports the rest as failed, and waits for the coordinator. It never decides by itself: there
//! is no time-out on the way from Source to Host, nor from Held to Resuming.
//!
//! While it is checked, and its memory is sent in pre-copy, the instance runs on: its source is a Host still, and writes nothing down.
//!
//! An instance has at most one engine operation under way. When a directive makes it pointless,
//! it is cancelled, and the next one starts when its result is in.

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

/// How long a node waits before it says or tries something again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// Before a report that has no answer is sent again.
    pub repeat: Duration,
    /// Before an operation that must succeed is tried again.
    pub retry: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self { repeat: Duration::from_millis(500), retry: Duration::from_secs(1) }
    }
}

/// What happened to a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Input {
    /// The connection to the coordinator is there (again).
    LinkUp,
    /// The connection to the coordinator is lost.
    LinkDown,
    /// A message from the coordinator.
    Message(ToNode),
    /// The operation of this instance ended. Exactly one for each [`Output::Operate`].
    Ended {
        /// Which instance.
        vid: Vid,
        /// How it ended.
        outcome: Outcome,
    },
    /// [`Operation::Precopy`] or [`Operation::Send`] has sent or saved some more, [`Operation::Receive`] has taken more from a
    /// checkpoint, or [`Operation::Fetch`] from the source.
    Progress {
        /// Which instance.
        vid: Vid,
        /// Bytes so far.
        bytes: u64,
        /// Bytes in all, as far as known.
        total: u64,
    },
    /// The processes of an instance, or of a held copy, are gone, and no operation asked for it.
    Exited {
        /// Which instance.
        vid: Vid,
        /// How it ended.
        exit: Exit,
    },
    /// The time of [`NodeAgent::wake_at`] has come.
    Tick,
}

/// What a node is to do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Output {
    /// Make this durable before going on to the outputs behind it.
    Record(NodeRecord),
    /// Send this to the coordinator; drop it if there is no connection.
    Send(ToCoordinator),
    /// Start an operation of the engine. [`Input::Ended`] tells how it went.
    Operate {
        /// On which instance.
        vid: Vid,
        /// What to do.
        operation: Operation,
    },
    /// End this instance's operation soon, undone or done; its [`Input::Ended`] still comes.
    Cancel {
        /// Which instance.
        vid: Vid,
    },
    /// The answer to [`NodeAgent::locate`]. While `moving`, another one follows.
    Located {
        /// Which instance.
        vid: Vid,
        /// Where it is; `None` if it is gone.
        location: Option<Location>,
    },
    /// A move that the instance has not left for is over: what the check and the pre-copy have got ready for it may go.
    Stays {
        /// Which instance.
        vid: Vid,
    },
    /// The coordinator knows that the instance ended: what is left of it may go.
    Farewell {
        /// Which instance.
        vid: Vid,
    },
}

/// What the engine can do. Every operation can be asked for again after it was interrupted at any
/// point, and then brings about the same.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Find what hinders the instance from leaving. Ends in `Checked` or `Refused`.
    CheckSource {
        /// Where it would go.
        destination: Side,
        /// Whether it will not go, so that nothing is to be got ready for that.
        dry_run: bool,
    },
    /// Find what hinders the instance from coming; leave nothing. Ends in `Checked` or `Refused`.
    CheckDestination {
        /// How to make it.
        spec: Vec<u8>,
        /// What the check at the source found.
        facts: Vec<u8>,
        /// Whether it would run here before all its memory is here.
        post_copy: bool,
    },
    /// Check, make room, and be ready for the images. Ends in `Done` or `Refused`.
    Prepare {
        /// Which move.
        id: MoveId,
        /// The instance's epoch if the move commits.
        epoch: Epoch,
        /// Where it comes from.
        source: Side,
        /// How to make it.
        spec: Vec<u8>,
        /// What the check at the source found.
        facts: Vec<u8>,
        /// Whether it will run before all its memory is here.
        post_copy: bool,
    },
    /// Take the images from the source, or from the directory where they were saved, make them durable, restore them and hold the copy before
    /// it executes anything. Ends in `Done` or `Failed`.
    Receive {
        /// Which move.
        id: MoveId,
    },
    /// Hold a copy, restored from the kept images unless it is held already. Only asked for while
    /// the copy has not been released. Ends in `Done` or `Failed`.
    Restore {
        /// Which move.
        id: MoveId,
    },
    /// Let the held copy run. `Done` if it runs (also if it did before), `Incomplete` if a part of its memory is not here,
    /// `Failed` if it is certain that it has executed nothing, `Gone` if it may have run and is no more.
    Release {
        /// Which move.
        id: MoveId,
        /// The instance's epoch from now on.
        epoch: Epoch,
    },
    /// Send the memory of the instance, which runs on, to the destination, which awaits it. Nothing of it outlives the node.
    /// Ends in `Copied` or `Failed`.
    Precopy {
        /// Which move.
        id: MoveId,
        /// Where it goes.
        destination: HostName,
        /// Whether it is enough to send it once.
        post_copy: bool,
    },
    /// Have every library of the instance close its links. Ends in `Suspended` or `Failed`.
    Suspend,
    /// Dump the instance, leave it stopped, and send the images, or save them. Ends in `Sent` or `Failed`.
    Send {
        /// Which move.
        id: MoveId,
        /// Where it goes.
        destination: Side,
    },
    /// Make the instance run here, whatever a suspension or dump, or the node's restart, has left
    /// of it. `Done` if it runs; `Gone` if there is nothing to run, also if it was never started;
    /// `Failed` to try again.
    Continue {
        /// The instance's epoch.
        epoch: Epoch,
    },
    /// Fetch what memory the instance, which runs, lacks still. `Done` if it has all; `Gone` if that cannot be had any more, and the
    /// instance has been ended; `Failed` to try again.
    Fetch {
        /// Which move has left it behind.
        id: MoveId,
        /// Where it is.
        source: HostName,
    },
    /// Remove the destination's copy, its images and its room. Ends in `Done` or `Failed`.
    Abort {
        /// Which move.
        id: MoveId,
    },
    /// Remove the source's stopped copy and what belongs to it. Ends in `Done` or `Failed`.
    Destroy {
        /// Which move.
        id: MoveId,
    },
}

/// How an operation ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// It is done.
    Done,
    /// It is done, and a part of the instance's memory is at the source still.
    Incomplete,
    /// The check found nothing that hinders.
    Checked {
        /// For the check at the destination; empty there.
        facts: Vec<u8>,
    },
    /// The check found what hinders.
    Refused {
        /// Each in words, with the way out.
        reasons: Vec<String>,
    },
    /// The memory is sent.
    Copied {
        /// Bytes in all.
        bytes: u64,
    },
    /// The instance's libraries have closed their links.
    Suspended(Suspension),
    /// The images are sent.
    Sent {
        /// Bytes in all.
        bytes: u64,
    },
    /// It could not be done, or was cancelled.
    Failed {
        /// Why, in words.
        reason: String,
    },
    /// There is nothing left that could run.
    Gone {
        /// How the instance ended.
        exit: Exit,
    },
}

/// A node's view of its instances and their moves.
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
    /// The agent of `host` with what its records amount to. Its outputs take up what was under way.
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

    /// Enters an instance that is about to be started here. Its end comes as [`Input::Exited`],
    /// also if it could not be started.
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

    /// Asks where `vid` is, for a library that needs a link to it. [`Output::Located`] follows at
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

    /// Takes what happened at `now`, a time on any clock that does not go back.
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

    /// When [`Input::Tick`] is due, if nothing else happens before.
    #[must_use]
    pub fn wake_at(&self) -> Option<Duration> {
        let retries = self.cells.values().filter_map(|cell| cell.live.retry_at);
        retries.chain(self.repeat_at).min().map(|due| due.0)
    }

    /// What the node remembers of `vid`.
    #[must_use]
    pub fn entry(&self, vid: Vid) -> Option<&Entry> {
        self.cells.get(&vid)?.entry.as_ref()
    }

    /// Every entry: what the records so far amount to.
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
        (cell.live.running && matches!(entry.role, Role::Host { .. })).then_some(entry.epoch)
    }

    fn tick(&mut self, now: Duration, out: &mut Vec<Output>) {
        if self.repeat_at.is_some_and(|due| due.reached(now)) {
            self.repeat_at = None;
            self.repeat_all(out);
        }
        for (vid, cell) in &mut self.cells {
            if cell.live.retry_at.is_some_and(|due| due.reached(now)) {
                cell.live.retry_at = None;
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

/// An instance that is to be started where it already is, or is being moved to or from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("instance {vid} is already on this host")]
pub struct AlreadyHere {
    vid: Vid,
}
