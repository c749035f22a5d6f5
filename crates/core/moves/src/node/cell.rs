//! One instance on a node: its durable entry, its volatile state, and the next step.

use fabric::Vid;

use super::{Operation, Output};
use crate::MoveId;
use crate::due::Due;
use crate::entry::{Arrival, Entry, NodeRecord, Role};
use crate::protocol::{Report, Suspension, ToCoordinator};

/// The failure of a move whose volatile state a restart of the node has lost.
pub(super) const RESTARTED: &str = "the node restarted during the move";

#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Cell {
    pub(super) entry: Option<Entry>,
    pub(super) volatile: VolatileState,
}

/// A node's volatile state of an instance.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct VolatileState {
    /// The operation in progress.
    pub(super) under_way: Option<UnderWay>,
    /// A requested check or pre-copy.
    pub(super) asked: Option<(Step, Operation)>,
    /// On the host: the instance runs.
    pub(super) running: bool,
    /// On the host: the move whose rollback is reported when the instance runs.
    pub(super) owes: Option<MoveId>,
    /// On the host: the result of the pre-copy of a move.
    pub(super) precopied: Option<(MoveId, Report)>,
    /// On the source.
    pub(super) suspended: Option<Suspension>,
    /// On the source: bytes.
    pub(super) sent: Option<u64>,
    /// On the destination: it awaits the images.
    pub(super) prepared: bool,
    /// On the destination: a restored copy is held.
    pub(super) held: bool,
    /// The failure of the move, reported until the coordinator has decided.
    pub(super) failure: Option<Report>,
    /// The coordinator's decision.
    pub(super) decision: Option<Decision>,
    /// No operation starts before this time.
    pub(super) retry_at: Option<Due>,
}

#[derive(Clone, Debug, Hash)]
pub(super) struct UnderWay {
    pub(super) step: Step,
    pub(super) cancelled: bool,
}

/// The kind of the operation in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Step {
    Check(MoveId),
    Precopy(MoveId),
    Prepare,
    Receive,
    Restore,
    Release,
    Suspend,
    Send,
    Continue,
    Fetch,
    Abort,
    Destroy,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Decision {
    RollBack,
    Resume,
    Destroy,
}

impl Cell {
    /// A cell whose instance runs.
    pub(super) fn running(entry: Entry) -> Self {
        Self { entry: Some(entry), volatile: VolatileState { running: true, ..VolatileState::default() } }
    }

    /// A cell with only its durable entry: operations of the previous process may or may not have completed.
    pub(super) fn after_restart(entry: Entry) -> Self {
        let undecided = match entry.role {
            Role::Source { .. } => true,
            Role::Destination { stage, .. } => stage == Arrival::Preparing,
            Role::Host { .. } | Role::Ended { .. } => false,
        };
        let failure = undecided.then(|| failed(RESTARTED));
        Self { entry: Some(entry), volatile: VolatileState { failure, ..VolatileState::default() } }
    }

    /// Whether the cell is empty.
    pub(super) fn is_blank(&self) -> bool {
        self.entry.is_none() && self.volatile.under_way.is_none() && self.volatile.asked.is_none()
    }

    /// Whether the node waits for the coordinator's decision, so that reports are repeated.
    pub(super) fn waits(&self) -> bool {
        self.entry.as_ref().is_some_and(|entry| !matches!(entry.role, Role::Host { .. }))
    }

    /// The report of the instance's progress, while the node waits for the coordinator's decision.
    pub(super) fn waiting_report(&self, vid: Vid) -> Option<ToCoordinator> {
        let entry = self.entry.as_ref()?;
        let (id, report) = match &entry.role {
            Role::Host { .. } => return None,
            Role::Source { id, .. } => (*id, self.source_report()?),
            Role::Destination { id, stage, .. } => (*id, self.destination_report(*stage)?),
            Role::Ended { exit } => {
                return Some(ToCoordinator::Exited { vid, epoch: entry.epoch, exit: exit.clone() });
            }
        };
        Some(ToCoordinator::Move { id, vid, report })
    }

    fn source_report(&self) -> Option<Report> {
        if self.volatile.failure.is_some() {
            return self.volatile.failure.clone();
        }
        let sent = self.volatile.sent.map(|bytes| Report::Sent { bytes });
        sent.or_else(|| self.volatile.suspended.map(|suspension| Report::Suspended { suspension }))
    }

    fn destination_report(&self, stage: Arrival) -> Option<Report> {
        if self.volatile.failure.is_some() {
            return self.volatile.failure.clone();
        }
        match stage {
            Arrival::Preparing => self.volatile.prepared.then_some(Report::Prepared),
            Arrival::Held => self.volatile.held.then_some(Report::Ready),
            Arrival::Resuming => None,
        }
    }

    /// Writes a new entry and resets the volatile state, except the operation in progress.
    pub(super) fn become_role(&mut self, vid: Vid, entry: Entry, out: &mut Vec<Output>) {
        let under_way = self.volatile.under_way.take();
        self.volatile = VolatileState { under_way, ..VolatileState::default() };
        self.write(vid, entry, out);
    }

    /// Writes an entry that advances within the same role.
    pub(super) fn write(&mut self, vid: Vid, entry: Entry, out: &mut Vec<Output>) {
        self.entry = Some(entry.clone());
        out.push(Output::Record(NodeRecord::Set { vid, entry }));
    }

    /// Removes the entry.
    pub(super) fn remove(&mut self, vid: Vid, out: &mut Vec<Output>) {
        self.entry = None;
        self.volatile =
            VolatileState { under_way: self.volatile.under_way.take(), ..VolatileState::default() };
        out.push(Output::Record(NodeRecord::Removed { vid }));
    }

    /// Records the coordinator's decision; the first one stands.
    pub(super) fn decide(&mut self, vid: Vid, decision: Decision, out: &mut Vec<Output>) {
        if self.volatile.decision.is_some() {
            return;
        }
        self.volatile.decision = Some(decision);
        if decision != Decision::Resume {
            self.volatile.retry_at = None;
            self.cancel(vid, out);
        }
        self.advance(vid, out);
    }

    /// The kind of the operation in progress.
    pub(super) fn step(&self) -> Option<Step> {
        self.volatile.under_way.as_ref().map(|under_way| under_way.step)
    }

    /// Cancels the operation in progress, if any.
    pub(super) fn cancel(&mut self, vid: Vid, out: &mut Vec<Output>) {
        if let Some(under_way) = self.volatile.under_way.as_mut().filter(|under_way| !under_way.cancelled) {
            under_way.cancelled = true;
            out.push(Output::Cancel { vid });
        }
    }

    /// Starts the next operation, unless one is in progress or a retry is delayed.
    pub(super) fn advance(&mut self, vid: Vid, out: &mut Vec<Output>) {
        if self.volatile.under_way.is_some() || self.volatile.retry_at.is_some() {
            return;
        }
        let next = match self.entry.clone() {
            None => self.volatile.asked.take(),
            Some(entry) => match entry.role {
                Role::Host { .. } if !self.volatile.running => {
                    Some((Step::Continue, Operation::Continue { epoch: entry.epoch }))
                }
                Role::Host { last_move: id, memory_at: Some(source) } => {
                    Some((Step::Fetch, Operation::Fetch { id, source }))
                }
                Role::Host { memory_at: None, .. } => self.volatile.asked.take(),
                Role::Source { .. } => self.next_at_source(vid, entry, out),
                Role::Destination { .. } => self.next_at_destination(vid, entry, out),
                Role::Ended { .. } => None,
            },
        };
        if let Some((step, operation)) = next {
            self.volatile.under_way = Some(UnderWay { step, cancelled: false });
            out.push(Output::Operate { vid, operation });
        }
    }

    fn next_at_source(&mut self, vid: Vid, entry: Entry, out: &mut Vec<Output>) -> Option<(Step, Operation)> {
        let Role::Source { id, destination } = entry.role else { return None };
        match self.volatile.decision {
            Some(Decision::RollBack) => {
                let role = Role::Host { last_move: id, memory_at: None };
                self.become_role(vid, Entry { epoch: entry.epoch, role }, out);
                self.volatile.owes = Some(id);
                Some((Step::Continue, Operation::Continue { epoch: entry.epoch }))
            }
            Some(Decision::Destroy) => Some((Step::Destroy, Operation::Destroy { id })),
            _ if self.volatile.failure.is_some() || self.volatile.sent.is_some() => None,
            _ if self.volatile.suspended.is_none() => Some((Step::Suspend, Operation::Suspend)),
            _ => Some((Step::Send, Operation::Send { id, destination })),
        }
    }

    fn next_at_destination(
        &mut self,
        vid: Vid,
        mut entry: Entry,
        out: &mut Vec<Output>,
    ) -> Option<(Step, Operation)> {
        let epoch = entry.epoch;
        let Role::Destination { id, source, spec, facts, post_copy, stage } = &mut entry.role else {
            return None;
        };
        let (id, post_copy) = (*id, *post_copy);
        if self.volatile.decision == Some(Decision::RollBack) {
            return Some((Step::Abort, Operation::Abort { id }));
        }
        match *stage {
            Arrival::Preparing if self.volatile.failure.is_some() => None,
            Arrival::Preparing if self.volatile.prepared => Some((Step::Receive, Operation::Receive { id })),
            Arrival::Preparing => {
                let (source, spec, facts) = (source.clone(), spec.clone(), facts.clone());
                Some((Step::Prepare, Operation::Prepare { id, epoch, source, spec, facts, post_copy }))
            }
            Arrival::Held if !self.volatile.held => Some((Step::Restore, Operation::Restore { id })),
            Arrival::Held if self.volatile.decision == Some(Decision::Resume) => {
                *stage = Arrival::Resuming;
                self.write(vid, entry, out);
                Some((Step::Release, Operation::Release { id, epoch }))
            }
            Arrival::Held => None,
            Arrival::Resuming => Some((Step::Release, Operation::Release { id, epoch })),
        }
    }
}

/// A report that the move has failed.
pub(super) fn failed(reason: &str) -> Report {
    Report::Failed { reason: reason.into() }
}
