//! The coordinator: the locations of all instances, all moves, and all decisions.
//!
//! ```text
//!            Ready from the destination         Running            Destroyed
//!   Began ───────────────────────────▶ Committed ──────▶ Confirmed ─────────▶ (ended)
//!     │
//!     │ refusal, failure, deadline, cancel, restart            both RolledBack
//!     └──────────────────────────────▶ RolledBack ──────────────────────────▶ (ended)
//! ```
//!
//! The destination of a post-copy move reports Incomplete before Running; until then the move is Committed, in [`Phase::Fetch`].
//!
//! A checkpoint takes another path: Began, Sent from all sources, Saved, RolledBack from the source, (ended).
//!
//! The boxes are [`Stage`]s, which are recorded before they are announced. The [`Phase`] within a
//! stage is volatile: after a restart an uncommitted move is
//! rolled back, and a committed one is directed again.
//!
//! A move blocks other moves of its instance until the instance runs with all its memory: until it is Confirmed, or the
//! source has reported the rollback. Remaining work on the other host is a debt: the directive
//! is repeated when that host reconnects. A new move of the instance to that host may begin, but its
//! destination gets no directive before the debt is settled, or the phase's deadline has passed.

mod group;
mod lost;
mod move_progress;
mod reports;
mod silence;
mod stages;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use fabric::Vid;

use crate::due::Due;
use crate::journal::{Instance, MoveRecord, Record, Snapshot, Stage};
use crate::progress::{Event, InstanceEnded, Phase};
use crate::protocol::{Location, MAX_BLOB, ToCoordinator, ToNode};
use crate::{HostName, MoveId, Side};
pub use group::{RestoreRefusal, SavedInstance};
use move_progress::MoveProgress;

/// Time limits and capacities of the coordinator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// Interval before an unfulfilled directive is sent again.
    pub repeat: Duration,
    /// Deadline of the checks and the preparation.
    pub prepare: Duration,
    /// Deadline for other dumps on the source's machine, and for all libraries of the instance to close their links.
    pub suspend: Duration,
    /// Deadline of the dump and the transfer; in pre-copy, the longest time without progress.
    pub transfer: Duration,
    /// Deadline of the restore, after the transfer.
    pub restore: Duration,
    /// How long an unreachable host may take to reconnect, before the commit.
    pub unreachable: Duration,
    /// The limit of moves in progress, of all instances.
    pub max_moves: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            repeat: Duration::from_secs(1),
            prepare: Duration::from_secs(30),
            suspend: Duration::from_secs(70),
            transfer: Duration::from_secs(300),
            restore: Duration::from_secs(120),
            unreachable: Duration::from_secs(2),
            max_moves: 1024,
        }
    }
}

/// An input of the coordinator.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Input {
    /// A node has connected.
    LinkUp(HostName),
    /// A node has disconnected.
    LinkDown(HostName),
    /// A message from the node of `from`, authenticated by the connection.
    Message {
        /// Its host.
        from: HostName,
        /// The message.
        message: ToCoordinator,
    },
    /// The time of [`Coordinator::wake_at`] has come.
    Tick,
}

/// An output of the coordinator.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Output {
    /// Make this durable before performing the outputs after it.
    Record(Record),
    /// Send this to the node of `to`; drop it if the node is not connected.
    Send {
        /// Its host.
        to: HostName,
        /// The message.
        message: ToNode,
    },
    /// Tell the user of the move.
    Event {
        /// Which move.
        id: MoveId,
        /// The event.
        event: Event,
    },
    /// Tell the waiters of the instance.
    InstanceEnded(InstanceEnded),
}

/// A request for a move.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MoveRequest {
    /// Which instance.
    pub vid: Vid,
    /// The destination.
    pub destination: HostName,
    /// Only check for blockers.
    pub dry_run: bool,
    /// Run the instance on the destination before all its memory is there.
    pub post_copy: bool,
}

/// Why a move is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// There is no such instance.
    #[error("there is no instance {0}")]
    UnknownInstance(Vid),
    /// The instance is already on the destination.
    #[error("the instance is already on host {0}")]
    SameHost(HostName),
    /// A node of the move is not connected.
    #[error(
        "host {0} is not connected to the coordinator: check that its node runs and can reach the coordinator"
    )]
    NotConnected(HostName),
    /// Another move of the instance is in progress.
    #[error("{0} of the same instance is in progress: wait for it or cancel it")]
    InProgress(MoveId),
    /// Memory of the instance is still on its source, so it cannot move.
    #[error(
        "{id} of the same instance is in progress: part of its memory is still on {host}; wait until it has been fetched"
    )]
    Fetching {
        /// The move.
        id: MoveId,
        /// The host with the rest of the memory.
        host: Side,
    },
    /// The limit on moves is reached.
    #[error("too many moves are in progress ({0}): wait until some of them have ended")]
    TooMany(usize),
}

/// Why a move cannot be cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TooLate {
    /// It is committed.
    #[error("{0} is committed and cannot be cancelled")]
    Committed(MoveId),
    /// It is a complete checkpoint.
    #[error("{0} is a complete checkpoint")]
    Saved(MoveId),
    /// It is over, or never existed.
    #[error("{0} is over")]
    Over(MoveId),
}

/// Why an instance cannot be added.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddError {
    /// The VID belongs to another instance.
    #[error("VID {0} is in use")]
    VidTaken(Vid),
    /// The name belongs to another instance.
    #[error("the name {0:?} is in use: choose another with --name")]
    NameTaken(String),
    /// The specification is too large.
    #[error("the instance's command, environment and settings exceed {MAX_BLOB} bytes")]
    SpecTooLarge,
}

/// A move in progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MoveView<'a> {
    /// Its number.
    pub id: MoveId,
    /// Its durable record.
    pub record: &'a MoveRecord,
    /// Its phase.
    pub phase: Phase,
    /// Whether it blocks other moves of the instance.
    pub is_under_way: bool,
}

/// The locations of all instances and all moves.
#[derive(Clone, Debug, Hash)]
pub struct Coordinator {
    config: Config,
    snapshot: Snapshot,
    progress: BTreeMap<MoveId, MoveProgress>,
    linked: BTreeSet<HostName>,
    /// Nodes that asked for the location of an instance while it was moving.
    waiting: BTreeMap<Vid, BTreeSet<HostName>>,
}

impl Coordinator {
    /// Creates the coordinator from its snapshot. Uncommitted moves are rolled back.
    #[must_use]
    pub fn new(config: Config, snapshot: Snapshot, now: Duration) -> (Self, Vec<Output>) {
        let progress = snapshot
            .moves
            .iter()
            .map(|(id, record)| (*id, MoveProgress::after_restart(record, now)))
            .collect();
        let mut coordinator =
            Self { config, snapshot, progress, linked: BTreeSet::new(), waiting: BTreeMap::new() };
        let mut out = Vec::new();
        for id in coordinator.undecided().collect::<Vec<_>>() {
            coordinator.give_up(id, vec!["the coordinator restarted".into()], now, &mut out);
        }
        for id in coordinator.without_source().collect::<Vec<_>>() {
            coordinator.end(id, &mut out);
        }
        (coordinator, out)
    }

    /// Adds an instance, which its host's node starts once the record is durable.
    ///
    /// # Errors
    /// If its VID or name is taken, or its specification is too large.
    pub fn add_instance(&mut self, vid: Vid, instance: Instance) -> Result<Vec<Output>, AddError> {
        self.check_addable(vid, &instance)?;
        let mut out = Vec::new();
        self.record(Record::InstanceAdded { vid, instance }, &mut out);
        Ok(out)
    }

    fn check_addable(&self, vid: Vid, instance: &Instance) -> Result<(), AddError> {
        if self.snapshot.instances.contains_key(&vid) {
            return Err(AddError::VidTaken(vid));
        }
        if self.snapshot.instances.values().any(|other| other.name == instance.name) {
            return Err(AddError::NameTaken(instance.name.clone()));
        }
        if instance.spec.len() > MAX_BLOB {
            return Err(AddError::SpecTooLarge);
        }
        Ok(())
    }

    /// Begins a move, or a dry run of one.
    ///
    /// # Errors
    /// If it is refused.
    pub fn begin(&mut self, request: MoveRequest, now: Duration) -> Result<(MoveId, Vec<Output>), Refusal> {
        let MoveRequest { vid, destination, dry_run, post_copy } = request;
        let record = MoveRecord { post_copy, ..self.admit(vid, destination.into(), dry_run, 0)? };
        let mut out = Vec::new();
        self.start(vec![record], now, &mut out);
        Ok((self.snapshot.last_move, out))
    }

    /// Cancels a move with `reason`, if it is not committed.
    ///
    /// # Errors
    /// If it is committed, saved or over.
    pub fn cancel(&mut self, id: MoveId, reason: String, now: Duration) -> Result<Vec<Output>, TooLate> {
        let mut out = Vec::new();
        match self.snapshot.moves.get(&id).map(|record| &record.stage) {
            None => return Err(TooLate::Over(id)),
            Some(Stage::Committed | Stage::Confirmed) => return Err(TooLate::Committed(id)),
            Some(Stage::Saved) => return Err(TooLate::Saved(id)),
            Some(Stage::RolledBack { .. }) => {}
            Some(Stage::Began) => self.give_up(id, vec![reason], now, &mut out),
        }
        Ok(out)
    }

    /// Handles an input at `now`, a time on a monotonic clock.
    pub fn handle(&mut self, input: Input, now: Duration) -> Vec<Output> {
        let mut out = Vec::new();
        match input {
            Input::LinkUp(host) => self.link_up(host, &mut out),
            Input::LinkDown(host) => self.link_down(&host, now),
            Input::Message { from, message } => self.message(&from, message, now, &mut out),
            Input::Tick => self.tick(now, &mut out),
        }
        out
    }

    /// When [`Input::Tick`] is due, unless another input comes first.
    #[must_use]
    pub fn wake_at(&self) -> Option<Duration> {
        self.progress.values().filter_map(MoveProgress::next_due).min().map(|due| due.0)
    }

    /// The snapshot that results from the records so far.
    #[must_use]
    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// The result of the check at the move's source, if it is available in this coordinator's lifetime.
    #[must_use]
    pub fn facts(&self, id: MoveId) -> Option<&[u8]> {
        self.progress.get(&id)?.facts.as_deref()
    }

    /// Whether the node of `host` is connected.
    #[must_use]
    pub fn is_connected(&self, host: &HostName) -> bool {
        self.linked.contains(host)
    }

    /// All moves in progress.
    pub fn moves(&self) -> impl Iterator<Item = MoveView<'_>> {
        self.snapshot.moves.iter().filter_map(|(id, record)| {
            let is_under_way = self.blocks(*id, record);
            Some(MoveView { id: *id, record, phase: self.progress.get(id)?.phase, is_under_way })
        })
    }

    /// The location of `vid`; `None` if the instance is gone.
    #[must_use]
    pub fn locate(&self, vid: Vid) -> Option<Location> {
        let instance = self.snapshot.instances.get(&vid)?;
        Some(Location { host: instance.host.clone(), epoch: instance.epoch, moving: self.is_moving(vid) })
    }

    /// Admits a move, as the last of `others` further moves, and returns its record.
    fn admit(
        &self,
        vid: Vid,
        destination: Side,
        dry_run: bool,
        others: usize,
    ) -> Result<MoveRecord, Refusal> {
        let instance = self.snapshot.instances.get(&vid).ok_or(Refusal::UnknownInstance(vid))?;
        if destination.is(&instance.host) {
            return Err(Refusal::SameHost(instance.host.clone()));
        }
        let source = instance.host.clone().into();
        self.check_settled(vid)?;
        let epoch = instance.epoch;
        let (post_copy, stage) = (false, Stage::Began);
        self.admitted(MoveRecord { vid, source, destination, epoch, dry_run, post_copy, stage }, others)
    }

    /// Checks that no other move of `vid` blocks a new one.
    ///
    /// # Errors
    /// If one does.
    pub fn check_settled(&self, vid: Vid) -> Result<(), Refusal> {
        let unsettled = self.moves_of(vid).find(|(id, record)| self.blocks(*id, record));
        let Some((id, record)) = unsettled else { return Ok(()) };
        Err(match self.progress.get(&id).map(|progress| progress.phase) {
            Some(Phase::Fetch) => Refusal::Fetching { id, host: record.source.clone() },
            _ => Refusal::InProgress(id),
        })
    }

    /// Admits `record` if the limit on moves allows it after `others` further moves, and its hosts are connected.
    fn admitted(&self, record: MoveRecord, others: usize) -> Result<MoveRecord, Refusal> {
        if self.snapshot.moves.len() + others >= self.config.max_moves {
            return Err(Refusal::TooMany(self.snapshot.moves.len() + others));
        }
        let away = record.hosts().find(|host| !self.linked.contains(*host)).cloned();
        away.map_or(Ok(record), |host| Err(Refusal::NotConnected(host)))
    }

    fn link_up(&mut self, host: HostName, out: &mut Vec<Output>) {
        self.linked.insert(host.clone());
        for (id, record) in &self.snapshot.moves {
            let all = record.hosts().all(|host| self.linked.contains(host));
            if let Some(progress) = self.progress.get_mut(id).filter(|_| all) {
                progress.unreachable_at = None;
            }
        }
        let directives = self.progress.keys().flat_map(|id| self.directives(*id));
        out.extend(directives.filter(|output| matches!(output, Output::Send { to, .. } if *to == host)));
    }

    fn link_down(&mut self, host: &HostName, now: Duration) {
        self.linked.remove(host);
        for (id, record) in &self.snapshot.moves {
            let takes_part = record.hosts().any(|part| part == host);
            if let Some(progress) =
                self.progress.get_mut(id).filter(|_| takes_part && record.stage == Stage::Began)
            {
                progress.unreachable_at.get_or_insert(Due::after(now, self.config.unreachable));
            }
        }
    }

    fn tick(&mut self, now: Duration, out: &mut Vec<Output>) {
        for id in self.progress.keys().copied().collect::<Vec<_>>() {
            if let Some(reason) = self.overdue(id, now) {
                self.give_up(id, vec![reason], now, out);
            } else if self.progress.get(&id).is_some_and(|progress| progress.repeat_at.reached(now)) {
                self.tell_silence(id, now, out);
                self.tell_unanswered_restore(id, now, out);
                self.direct(id, now, out);
            }
        }
    }

    /// Why an uncommitted move is overdue, if it is.
    fn overdue(&self, id: MoveId, now: Duration) -> Option<String> {
        let (progress, record) = (self.progress.get(&id)?, self.snapshot.moves.get(&id)?);
        if record.stage != Stage::Began {
            return None;
        }
        if progress.unreachable_at.is_some_and(|due| due.reached(now)) {
            let away = record.hosts().find(|host| !self.linked.contains(*host));
            return away.map(|host| format!("host {host} is unreachable"));
        }
        progress.deadline.filter(|due| due.reached(now))?;
        Some(match self.debt(id, record) {
            Some(debt) => {
                let host = &record.destination;
                format!("host {host} has not yet cleaned up after {debt} of the same instance")
            }
            None => format!("the {} phase exceeded its time limit", progress.phase.name()),
        })
    }

    fn undecided(&self) -> impl Iterator<Item = MoveId> {
        self.snapshot.moves.iter().filter(|(_, record)| record.stage == Stage::Began).map(|(id, _)| *id)
    }

    /// Confirmed restores, which have no source to clean up.
    fn without_source(&self) -> impl Iterator<Item = MoveId> {
        let confirmed = self.snapshot.moves.iter().filter(|(_, record)| record.stage == Stage::Confirmed);
        confirmed.filter(|(_, record)| record.source.host().is_none()).map(|(id, _)| *id)
    }

    fn moves_of(&self, vid: Vid) -> impl Iterator<Item = (MoveId, &MoveRecord)> {
        self.snapshot
            .moves
            .iter()
            .filter(move |(_, record)| record.vid == vid)
            .map(|(id, record)| (*id, record))
    }

    /// Whether the move blocks other moves of its instance.
    fn blocks(&self, id: MoveId, record: &MoveRecord) -> bool {
        match record.stage {
            Stage::Began | Stage::Committed => true,
            Stage::Confirmed => false,
            Stage::RolledBack { .. } | Stage::Saved => {
                record.source.host().is_some()
                    && self.progress.get(&id).is_some_and(|progress| !progress.source_done)
            }
        }
    }

    /// The earlier move whose remains on the destination must be removed before it is prepared.
    fn debt(&self, id: MoveId, record: &MoveRecord) -> Option<MoveId> {
        let mut earlier = self.moves_of(record.vid).filter(|(other, _)| self.begins(id) && *other < id);
        let left = |(_, other): &(MoveId, &MoveRecord)| match other.stage {
            Stage::Began | Stage::Committed | Stage::Saved => false,
            Stage::Confirmed => other.source == record.destination,
            Stage::RolledBack { .. } => other.destination == record.destination,
        };
        earlier.find(left).map(|(other, _)| other)
    }

    fn is_moving(&self, vid: Vid) -> bool {
        let runs = |progress: &MoveProgress| {
            matches!(progress.phase, Phase::Prepare | Phase::Precopy | Phase::Fetch)
        };
        let suspended = |id| self.progress.get(&id).is_some_and(|progress| !runs(progress));
        self.moves_of(vid).any(|(id, record)| self.blocks(id, record) && suspended(id))
    }

    /// Applies a record, and outputs it.
    fn record(&mut self, record: Record, out: &mut Vec<Output>) {
        self.snapshot.apply(&record);
        out.push(Output::Record(record));
    }
}
