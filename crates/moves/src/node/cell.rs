//! One instance on a node: its durable entry, what is known beside it, and what comes next.

use fabric::Vid;

use super::{Operation, Output};
use crate::MoveId;
use crate::due::Due;
use crate::entry::{Arrival, Entry, NodeRecord, Role};
use crate::protocol::{Report, Suspension, ToCoordinator};

/// Why a move does not go on of which a node remembers too little.
pub(super) const RESTARTED: &str = "the node restarted in the middle of the move";

#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Cell {
    pub(super) entry: Option<Entry>,
    pub(super) live: Live,
}

/// What a node knows of an instance until it restarts.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Live {
    /// The operation under way.
    pub(super) under_way: Option<UnderWay>,
    /// What was asked for besides: a check, or a pre-copy.
    pub(super) asked: Option<(Step, Operation)>,
    /// At the host: the instance runs.
    pub(super) running: bool,
    /// At the host: the move whose rollback is to be reported when the instance runs.
    pub(super) owes: Option<MoveId>,
    /// At the host: how the pre-copy for a move ended.
    pub(super) precopied: Option<(MoveId, Report)>,
    /// At the source.
    pub(super) suspended: Option<Suspension>,
    /// At the source: bytes.
    pub(super) sent: Option<u64>,
    /// At the destination: it awaits the images.
    pub(super) prepared: bool,
    /// At the destination: a restored copy is held.
    pub(super) held: bool,
    /// Why the move cannot go on, to be reported until the coordinator has decided.
    pub(super) failure: Option<Report>,
    /// What the coordinator has decided.
    pub(super) decision: Option<Decision>,
    /// Nothing starts before this.
    pub(super) retry_at: Option<Due>,
}

#[derive(Clone, Debug, Hash)]
pub(super) struct UnderWay {
    pub(super) step: Step,
    pub(super) cancelled: bool,
}

/// Which operation is under way.
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
        Self { entry: Some(entry), live: Live { running: true, ..Live::default() } }
    }

    /// A cell of which only the entry is known: operations that had begun may or may not have ended.
    pub(super) fn after_restart(entry: Entry) -> Self {
        let undecided = match entry.role {
            Role::Source { .. } => true,
            Role::Destination { stage, .. } => stage == Arrival::Preparing,
            Role::Host { .. } | Role::Ended { .. } => false,
        };
        let failure = undecided.then(|| failed(RESTARTED));
        Self { entry: Some(entry), live: Live { failure, ..Live::default() } }
    }

    /// Whether there is nothing to remember.
    pub(super) fn is_blank(&self) -> bool {
        self.entry.is_none() && self.live.under_way.is_none() && self.live.asked.is_none()
    }

    /// Whether the coordinator's word is awaited, so that reports are to be repeated.
    pub(super) fn waits(&self) -> bool {
        self.entry.as_ref().is_some_and(|entry| !matches!(entry.role, Role::Host { .. }))
    }

    /// The report that says how far the instance is, while the coordinator's word is awaited.
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
        if self.live.failure.is_some() {
            return self.live.failure.clone();
        }
        let sent = self.live.sent.map(|bytes| Report::Sent { bytes });
        sent.or_else(|| self.live.suspended.map(|suspension| Report::Suspended { suspension }))
    }

    fn destination_report(&self, stage: Arrival) -> Option<Report> {
        if self.live.failure.is_some() {
            return self.live.failure.clone();
        }
        match stage {
            Arrival::Preparing => self.live.prepared.then_some(Report::Prepared),
            Arrival::Held => self.live.held.then_some(Report::Ready),
            Arrival::Resuming => None,
        }
    }

    /// Writes a new entry and forgets what went with the one before, except the operation under way.
    pub(super) fn become_role(&mut self, vid: Vid, entry: Entry, out: &mut Vec<Output>) {
        let under_way = self.live.under_way.take();
        self.live = Live { under_way, ..Live::default() };
        self.write(vid, entry, out);
    }

    /// Writes an entry that is a step further in the same role.
    pub(super) fn write(&mut self, vid: Vid, entry: Entry, out: &mut Vec<Output>) {
        self.entry = Some(entry.clone());
        out.push(Output::Record(NodeRecord::Set { vid, entry }));
    }

    /// Removes the entry.
    pub(super) fn remove(&mut self, vid: Vid, out: &mut Vec<Output>) {
        self.entry = None;
        self.live = Live { under_way: self.live.under_way.take(), ..Live::default() };
        out.push(Output::Record(NodeRecord::Removed { vid }));
    }

    /// Notes the coordinator's decision; the first one stands.
    pub(super) fn decide(&mut self, vid: Vid, decision: Decision, out: &mut Vec<Output>) {
        if self.live.decision.is_some() {
            return;
        }
        self.live.decision = Some(decision);
        if decision != Decision::Resume {
            self.live.retry_at = None;
            self.cancel(vid, out);
        }
        self.advance(vid, out);
    }

    /// The step of the operation under way.
    pub(super) fn step(&self) -> Option<Step> {
        self.live.under_way.as_ref().map(|under_way| under_way.step)
    }

    /// Cancels the operation under way, if there is one.
    pub(super) fn cancel(&mut self, vid: Vid, out: &mut Vec<Output>) {
        if let Some(under_way) = self.live.under_way.as_mut().filter(|under_way| !under_way.cancelled) {
            under_way.cancelled = true;
            out.push(Output::Cancel { vid });
        }
    }

    /// Starts what comes next, unless something is under way or a retry is to be awaited.
    pub(super) fn advance(&mut self, vid: Vid, out: &mut Vec<Output>) {
        if self.live.under_way.is_some() || self.live.retry_at.is_some() {
            return;
        }
        let next = match self.entry.clone() {
            None => self.live.asked.take(),
            Some(entry) => match entry.role {
                Role::Host { .. } if !self.live.running => {
                    Some((Step::Continue, Operation::Continue { epoch: entry.epoch }))
                }
                Role::Host { last_move: id, memory_at: Some(source) } => {
                    Some((Step::Fetch, Operation::Fetch { id, source }))
                }
                Role::Host { memory_at: None, .. } => self.live.asked.take(),
                Role::Source { .. } => self.next_at_source(vid, entry, out),
                Role::Destination { .. } => self.next_at_destination(vid, entry, out),
                Role::Ended { .. } => None,
            },
        };
        if let Some((step, operation)) = next {
            self.live.under_way = Some(UnderWay { step, cancelled: false });
            out.push(Output::Operate { vid, operation });
        }
    }

    fn next_at_source(&mut self, vid: Vid, entry: Entry, out: &mut Vec<Output>) -> Option<(Step, Operation)> {
        let Role::Source { id, destination } = entry.role else { return None };
        match self.live.decision {
            Some(Decision::RollBack) => {
                let role = Role::Host { last_move: id, memory_at: None };
                self.become_role(vid, Entry { epoch: entry.epoch, role }, out);
                self.live.owes = Some(id);
                Some((Step::Continue, Operation::Continue { epoch: entry.epoch }))
            }
            Some(Decision::Destroy) => Some((Step::Destroy, Operation::Destroy { id })),
            _ if self.live.failure.is_some() || self.live.sent.is_some() => None,
            _ if self.live.suspended.is_none() => Some((Step::Suspend, Operation::Suspend)),
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
        if self.live.decision == Some(Decision::RollBack) {
            return Some((Step::Abort, Operation::Abort { id }));
        }
        match *stage {
            Arrival::Preparing if self.live.failure.is_some() => None,
            Arrival::Preparing if self.live.prepared => Some((Step::Receive, Operation::Receive { id })),
            Arrival::Preparing => {
                let (source, spec, facts) = (source.clone(), spec.clone(), facts.clone());
                Some((Step::Prepare, Operation::Prepare { id, epoch, source, spec, facts, post_copy }))
            }
            Arrival::Held if !self.live.held => Some((Step::Restore, Operation::Restore { id })),
            Arrival::Held if self.live.decision == Some(Decision::Resume) => {
                *stage = Arrival::Resuming;
                self.write(vid, entry, out);
                Some((Step::Release, Operation::Release { id, epoch }))
            }
            Arrival::Held => None,
            Arrival::Resuming => Some((Step::Release, Operation::Release { id, epoch })),
        }
    }
}

/// A report that the move cannot go on.
pub(super) fn failed(reason: &str) -> Report {
    Report::Failed { reason: reason.into() }
}
