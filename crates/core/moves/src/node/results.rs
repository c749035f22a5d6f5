//! Handles the outcomes of engine operations.

use std::time::Duration;

use fabric::Vid;

use super::cell::{Cell, Decision, Step, failed};
use super::{NodeAgent, Outcome, Output};
use crate::due::Due;
use crate::entry::{Arrival, Entry, Role};
use crate::journal::Exit;
use crate::protocol::{Report, ToCoordinator};
use crate::{HostName, MoveId};

impl NodeAgent {
    pub(super) fn ended(&mut self, vid: Vid, outcome: Outcome, now: Duration, out: &mut Vec<Output>) {
        let Some(cell) = self.cells.get_mut(&vid) else { return };
        let Some(under_way) = cell.volatile.under_way.take() else { return };
        let retry = cell.result(vid, under_way.step, under_way.cancelled, outcome, out);
        if retry {
            cell.volatile.retry_at = Some(Due::after(now, self.config.retry));
        }
        cell.advance(vid, out);
        self.drop_blank(vid);
    }

    pub(super) fn progress(&mut self, vid: Vid, bytes: u64, total: u64, out: &mut Vec<Output>) {
        let Some(cell) = self.cells.get(&vid) else { return };
        if let Some(id) = cell.move_id().or(cell.copies_for()).or(cell.fetches_for()) {
            let report = Report::Progress { bytes, total };
            out.push(Output::Send(ToCoordinator::Move { id, vid, report }));
        }
    }

    pub(super) fn exited(&mut self, vid: Vid, exit: Exit, out: &mut Vec<Output>) {
        if let Some(cell) = self.cells.get_mut(&vid) {
            cell.exited(vid, exit, out);
            cell.advance(vid, out);
        }
    }
}

impl Cell {
    /// Handles the outcome of `step`; returns whether the next operation has to be delayed.
    fn result(
        &mut self,
        vid: Vid,
        step: Step,
        cancelled: bool,
        outcome: Outcome,
        out: &mut Vec<Output>,
    ) -> bool {
        match step {
            Step::Check(id) if !cancelled => self.checked(id, vid, outcome, out),
            Step::Precopy(id) if !cancelled => self.precopied(id, vid, outcome, out),
            Step::Precopy(id) => self.tell_if_stays(id, vid, out),
            Step::Prepare | Step::Receive if !cancelled => self.arrived(vid, step, outcome, out),
            Step::Suspend | Step::Send if !cancelled => self.left(vid, outcome, out),
            Step::Restore if !cancelled => return self.restored(vid, outcome, out),
            // A decision never cancels these; if the instance ended meanwhile, nothing waits for them.
            Step::Release if !cancelled => return self.released(vid, outcome, out),
            Step::Continue if !cancelled => return self.continued(vid, outcome, out),
            Step::Fetch if !cancelled => return self.fetched(vid, outcome, out),
            Step::Abort | Step::Destroy => return self.removed(vid, step, outcome, out),
            _ => {}
        }
        false
    }

    fn checked(&mut self, id: MoveId, vid: Vid, outcome: Outcome, out: &mut Vec<Output>) {
        let report = match outcome {
            Outcome::Checked { facts } => Report::Checked { facts },
            Outcome::Refused { reasons } => Report::Refused { reasons },
            other => Report::Refused { reasons: vec![reason_of(other)] },
        };
        out.push(Output::Send(ToCoordinator::Move { id, vid, report }));
        self.tell_if_stays(id, vid, out);
    }

    fn precopied(&mut self, id: MoveId, vid: Vid, outcome: Outcome, out: &mut Vec<Output>) {
        let report = match outcome {
            Outcome::Copied { bytes } => Report::Copied { bytes },
            other => Report::Failed { reason: reason_of(other) },
        };
        self.volatile.precopied = Some((id, report.clone()));
        out.push(Output::Send(ToCoordinator::Move { id, vid, report }));
    }

    /// Frees resources that an operation has prepared for a move that was already over.
    fn tell_if_stays(&self, id: MoveId, vid: Vid, out: &mut Vec<Output>) {
        let over = |entry: &Entry| matches!(entry.role, Role::Host { last_move, .. } if id <= last_move);
        if self.entry.as_ref().is_some_and(over) {
            out.push(Output::Stays { vid });
        }
    }

    fn left(&mut self, vid: Vid, outcome: Outcome, out: &mut Vec<Output>) {
        match outcome {
            Outcome::Suspended(suspension) => self.volatile.suspended = Some(suspension),
            Outcome::Sent { bytes } => self.volatile.sent = Some(bytes),
            other => self.fail(Report::Failed { reason: reason_of(other) }),
        }
        out.extend(self.waiting_report(vid).map(Output::Send));
    }

    fn arrived(&mut self, vid: Vid, step: Step, outcome: Outcome, out: &mut Vec<Output>) {
        match (step, outcome) {
            (Step::Prepare, Outcome::Done) => self.volatile.prepared = true,
            (Step::Receive, Outcome::Done) => {
                self.write_stage(vid, Arrival::Held, out);
                self.volatile.held = true;
            }
            (_, Outcome::Refused { reasons }) => self.fail(Report::Refused { reasons }),
            (_, other) => self.fail(Report::Failed { reason: reason_of(other) }),
        }
        out.extend(self.waiting_report(vid).map(Output::Send));
    }

    fn restored(&mut self, vid: Vid, outcome: Outcome, out: &mut Vec<Output>) -> bool {
        match outcome {
            Outcome::Done => {
                self.volatile.held = true;
                out.extend(self.waiting_report(vid).map(Output::Send));
                return false;
            }
            // The copy is gone for good, and the move is committed: the release finds how the instance has ended.
            Outcome::Gone { .. } if self.volatile.decision == Some(Decision::Resume) => {
                self.write_stage(vid, Arrival::Resuming, out);
                return false;
            }
            other => self.trouble(vid, other, out),
        }
        true
    }

    fn released(&mut self, vid: Vid, outcome: Outcome, out: &mut Vec<Output>) -> bool {
        match outcome {
            Outcome::Done => self.become_host(vid, None, out),
            Outcome::Incomplete => self.become_host(vid, self.comes_from(), out),
            Outcome::Gone { exit } => self.end(vid, exit, out),
            other => {
                // The copy has executed no instruction, so the stored images are still its state.
                self.trouble(vid, other, out);
                self.volatile.held = false;
                self.volatile.decision = Some(Decision::Resume);
                self.write_stage(vid, Arrival::Held, out);
                return true;
            }
        }
        false
    }

    fn continued(&mut self, vid: Vid, outcome: Outcome, out: &mut Vec<Output>) -> bool {
        match outcome {
            Outcome::Done => {
                self.volatile.running = true;
                let report = |id| ToCoordinator::Move { id, vid, report: Report::RolledBack };
                out.extend(self.volatile.owes.take().map(report).map(Output::Send));
                out.push(Output::Stays { vid });
            }
            Outcome::Gone { exit } => self.end(vid, exit, out),
            other => {
                self.trouble(vid, other, out);
                return true;
            }
        }
        false
    }

    fn fetched(&mut self, vid: Vid, outcome: Outcome, out: &mut Vec<Output>) -> bool {
        let (Some(id), Some(entry)) = (self.fetches_for(), self.entry.clone()) else { return false };
        match outcome {
            Outcome::Done => {
                let role = Role::Host { last_move: id, memory_at: None };
                self.write(vid, Entry { role, ..entry }, out);
                out.push(Output::Send(ToCoordinator::Move { id, vid, report: Report::Running }));
            }
            Outcome::Gone { exit } => self.end(vid, exit, out),
            other => {
                self.trouble(vid, other, out);
                return true;
            }
        }
        false
    }

    fn removed(&mut self, vid: Vid, step: Step, outcome: Outcome, out: &mut Vec<Output>) -> bool {
        if outcome != Outcome::Done {
            self.trouble(vid, outcome, out);
            return true;
        }
        let Some(id) = self.move_id() else { return false };
        self.remove(vid, out);
        let report = if step == Step::Abort { Report::RolledBack } else { Report::Destroyed };
        out.push(Output::Send(ToCoordinator::Move { id, vid, report }));
        false
    }

    fn exited(&mut self, vid: Vid, exit: Exit, out: &mut Vec<Output>) {
        match self.entry.as_ref().map(|entry| &entry.role) {
            Some(Role::Host { .. } | Role::Destination { stage: Arrival::Resuming, .. }) => {
                self.end(vid, exit, out);
                self.cancel(vid, out);
            }
            // The held copy is gone, and is restored from the images again.
            Some(Role::Destination { stage: Arrival::Held, .. }) => self.volatile.held = false,
            // Until the transfer is complete, this fails the move. Afterwards the stopped copy is needed only for a
            // rollback, which detects its absence.
            Some(Role::Source { .. }) if self.volatile.sent.is_none() && self.volatile.decision.is_none() => {
                self.fail(failed("the instance ended while it was being suspended"));
                out.extend(self.waiting_report(vid).map(Output::Send));
            }
            _ => {}
        }
    }

    /// The instance runs here; `memory_at` is the host with the rest of its memory, if any.
    fn become_host(&mut self, vid: Vid, memory_at: Option<HostName>, out: &mut Vec<Output>) {
        let (Some(id), Some(entry)) = (self.move_id(), self.entry.as_ref()) else { return };
        let report = if memory_at.is_some() { Report::Incomplete } else { Report::Running };
        let entry = Entry { epoch: entry.epoch, role: Role::Host { last_move: id, memory_at } };
        self.become_role(vid, entry, out);
        self.volatile.running = true;
        out.push(Output::Send(ToCoordinator::Move { id, vid, report }));
    }

    fn end(&mut self, vid: Vid, exit: Exit, out: &mut Vec<Output>) {
        let Some(entry) = &self.entry else { return };
        let entry = Entry { epoch: entry.epoch, role: Role::Ended { exit } };
        self.become_role(vid, entry, out);
        out.extend(self.waiting_report(vid).map(Output::Send));
    }

    fn write_stage(&mut self, vid: Vid, reached: Arrival, out: &mut Vec<Output>) {
        let Some(mut entry) = self.entry.clone() else { return };
        if let Role::Destination { stage, .. } = &mut entry.role {
            *stage = reached;
        }
        self.write(vid, entry, out);
    }

    /// Records a failure; the first one is reported.
    fn fail(&mut self, report: Report) {
        self.volatile.failure.get_or_insert(report);
    }

    fn trouble(&self, vid: Vid, outcome: Outcome, out: &mut Vec<Output>) {
        if let Some(id) = self.move_id().or(self.volatile.owes).or(self.fetches_for()) {
            let report = Report::Trouble { reason: reason_of(outcome) };
            out.push(Output::Send(ToCoordinator::Move { id, vid, report }));
        }
    }

    /// The move of the pre-copy in progress.
    fn copies_for(&self) -> Option<MoveId> {
        match self.step() {
            Some(Step::Precopy(id)) => Some(id),
            _ => None,
        }
    }

    /// The post-copy move whose memory is being fetched.
    fn fetches_for(&self) -> Option<MoveId> {
        match &self.entry.as_ref()?.role {
            Role::Host { last_move, memory_at: Some(_) } => Some(*last_move),
            _ => None,
        }
    }

    /// The source host of the instance.
    fn comes_from(&self) -> Option<HostName> {
        match &self.entry.as_ref()?.role {
            Role::Destination { source, .. } => source.host().cloned(),
            _ => None,
        }
    }

    fn move_id(&self) -> Option<MoveId> {
        match &self.entry.as_ref()?.role {
            Role::Source { id, .. } | Role::Destination { id, .. } => Some(*id),
            Role::Host { .. } | Role::Ended { .. } => None,
        }
    }
}

fn reason_of(outcome: Outcome) -> String {
    match outcome {
        Outcome::Failed { reason } => reason,
        Outcome::Refused { reasons } => reasons.join("; "),
        Outcome::Gone { exit: Exit::Lost { reason } } => reason,
        Outcome::Gone { exit: Exit::Code(code) } => format!("the instance ended with code {code}"),
        Outcome::Gone { exit: Exit::NotStarted } => "the instance was never started".into(),
        _ => "the engine returned an outcome that does not match the operation".into(),
    }
}
