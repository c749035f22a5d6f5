//! Handles the coordinator's directives.

use std::collections::BTreeMap;

use fabric::Vid;

use super::cell::{Cell, Decision, RESTARTED, Step, failed};
use super::{NodeAgent, Operation, Output};
use crate::entry::{Arrival, Entry, NodeRecord, Role};
use crate::protocol::{Directive, Location, Report, ToCoordinator, ToNode};
use crate::{MoveId, Side};

impl NodeAgent {
    pub(super) fn message(&mut self, message: ToNode, out: &mut Vec<Output>) {
        match message {
            ToNode::Move { id, vid, directive } => self.directive(id, vid, directive, out),
            ToNode::ExitRecorded { vid, epoch } => {
                let cell = self.cells.entry(vid).or_default();
                let recorded =
                    |entry: &Entry| matches!(entry.role, Role::Ended { .. }) && entry.epoch == epoch;
                if cell.entry.as_ref().is_some_and(recorded) {
                    cell.remove(vid, out);
                    out.push(Output::Farewell { vid });
                }
                self.drop_blank(vid);
            }
            ToNode::Located { places } => self.located(places, out),
        }
    }

    fn located(&mut self, places: BTreeMap<Vid, Option<Location>>, out: &mut Vec<Output>) {
        for (vid, location) in places {
            let moving = location.as_ref().is_some_and(|location| location.moving);
            if self.wanted.is_answered(vid, moving) {
                out.push(Output::Located { vid, location });
            }
        }
        out.extend(self.wanted.next_question().map(Output::Send));
    }

    fn directive(&mut self, id: MoveId, vid: Vid, directive: Directive, out: &mut Vec<Output>) {
        let cell = self.cells.entry(vid).or_default();
        let answer = match directive {
            Directive::CheckSource { destination, dry_run } => {
                cell.check_source(id, vid, Operation::CheckSource { destination, dry_run }, out)
            }
            Directive::CheckDestination { spec, facts, post_copy } => {
                cell.check_destination(id, vid, Operation::CheckDestination { spec, facts, post_copy }, out)
            }
            Directive::Prepare { epoch, source, spec, facts, post_copy } => {
                let stage = Arrival::Preparing;
                let role = Role::Destination { id, source, spec, facts, post_copy, stage };
                cell.prepare(id, vid, Entry { epoch, role }, out)
            }
            Directive::Precopy { destination, post_copy } => {
                let precopy = Operation::Precopy { id, destination, post_copy };
                cell.precopy(id, vid, precopy, out)
            }
            Directive::Suspend { epoch, destination } => {
                let is_copied = cell.is_copied(id, &destination);
                cell.suspend(id, vid, Entry { epoch, role: Role::Source { id, destination } }, is_copied, out)
            }
            Directive::Resume => cell.resume(id, vid, out),
            Directive::Destroy => cell.destroy(id, vid, out),
            Directive::RollBack => cell.roll_back(id, vid, out),
        };
        out.extend(answer.map(|report| Output::Send(ToCoordinator::Move { id, vid, report })));
        self.drop_blank(vid);
    }

    pub(super) fn drop_blank(&mut self, vid: Vid) {
        if self.cells.get(&vid).is_some_and(Cell::is_blank) {
            self.cells.remove(&vid);
        }
    }
}

/// Handles a directive for an instance. Returns the immediate report, if any.
impl Cell {
    fn check_source(
        &mut self,
        id: MoveId,
        vid: Vid,
        check: Operation,
        out: &mut Vec<Output>,
    ) -> Option<Report> {
        match self.entry.as_ref().map(|entry| &entry.role) {
            Some(Role::Host { last_move, .. }) if id > *last_move => {
                self.ask(Step::Check(id), check, vid, out);
                None
            }
            Some(Role::Host { .. } | Role::Source { .. } | Role::Destination { .. }) => None,
            Some(Role::Ended { .. }) => refused("the instance has ended"),
            None => refused("the instance is not on this host"),
        }
    }

    fn check_destination(
        &mut self,
        id: MoveId,
        vid: Vid,
        check: Operation,
        out: &mut Vec<Output>,
    ) -> Option<Report> {
        if self.entry.is_some() {
            return refused(
                "this host has not yet cleaned up after an earlier move of the instance; try again in a moment",
            );
        }
        self.ask(Step::Check(id), check, vid, out);
        None
    }

    /// Starts a check or a pre-copy, or queues it behind the operation in progress; duplicates are ignored.
    fn ask(&mut self, step: Step, operation: Operation, vid: Vid, out: &mut Vec<Output>) {
        if self.step() != Some(step) {
            self.volatile.asked = Some((step, operation));
            self.advance(vid, out);
        }
    }

    fn precopy(&mut self, id: MoveId, vid: Vid, precopy: Operation, out: &mut Vec<Output>) -> Option<Report> {
        match self.entry.as_ref().map(|entry| &entry.role) {
            Some(Role::Host { last_move, .. }) if id <= *last_move => None,
            Some(Role::Host { .. }) => match &self.volatile.precopied {
                Some((of, report)) if *of == id => Some(report.clone()),
                _ => {
                    self.ask(Step::Precopy(id), precopy, vid, out);
                    None
                }
            },
            Some(Role::Source { .. } | Role::Destination { .. }) => None,
            Some(Role::Ended { .. }) => Some(failed("the instance has ended")),
            None => Some(failed("the instance is not on this host")),
        }
    }

    /// Whether pre-copy to a destination host has ended.
    fn is_copied(&self, id: MoveId, destination: &Side) -> bool {
        let copied = |(of, report): &(_, _)| *of == id && matches!(report, Report::Copied { .. });
        destination.host().is_none() || self.volatile.precopied.as_ref().is_some_and(copied)
    }

    fn prepare(&mut self, id: MoveId, vid: Vid, entry: Entry, out: &mut Vec<Output>) -> Option<Report> {
        match self.entry.as_ref().map(|entry| &entry.role) {
            None => {
                self.become_role(vid, entry, out);
                self.cancel(vid, out);
                self.advance(vid, out);
                None
            }
            Some(Role::Destination { id: mine, .. }) if *mine == id => self.report_of(vid),
            Some(Role::Destination { id: mine, .. }) if *mine < id => {
                // A newer move of the instance exists, so this one has been rolled back.
                self.decide_roll_back(vid, out);
                None
            }
            Some(Role::Host { last_move, .. }) if id <= *last_move => None,
            Some(Role::Source { id: mine, .. }) if id <= *mine => None,
            Some(Role::Destination { .. }) => None,
            Some(_) => refused(
                "this host has not yet cleaned up after an earlier move of the instance; try again in a moment",
            ),
        }
    }

    fn suspend(
        &mut self,
        id: MoveId,
        vid: Vid,
        entry: Entry,
        is_copied: bool,
        out: &mut Vec<Output>,
    ) -> Option<Report> {
        let here = self.entry.as_ref();
        match here.map(|here| &here.role) {
            Some(Role::Host { last_move, .. }) if id <= *last_move => None,
            Some(Role::Host { memory_at: Some(_), .. }) => {
                Some(failed("part of the instance's memory is not here yet"))
            }
            Some(Role::Host { .. }) if here.is_some_and(|here| here.epoch != entry.epoch) => {
                Some(failed("the instance is here with another epoch"))
            }
            Some(Role::Host { .. }) if !is_copied => Some(failed(RESTARTED)),
            Some(Role::Host { .. }) if !self.volatile.running => None,
            Some(Role::Host { .. }) => {
                self.become_role(vid, entry, out);
                self.cancel(vid, out);
                self.advance(vid, out);
                None
            }
            Some(Role::Source { id: mine, .. }) if *mine == id => self.report_of(vid),
            Some(Role::Source { .. } | Role::Destination { .. }) => None,
            Some(Role::Ended { .. }) => Some(failed("the instance has ended")),
            None => Some(failed("the instance is not on this host")),
        }
    }

    fn resume(&mut self, id: MoveId, vid: Vid, out: &mut Vec<Output>) -> Option<Report> {
        match self.entry.as_ref().map(|entry| &entry.role) {
            Some(Role::Destination { id: mine, stage, .. }) if *mine == id => {
                if *stage != Arrival::Preparing {
                    self.decide(vid, Decision::Resume, out);
                }
                None
            }
            Some(Role::Host { last_move, memory_at: Some(_) }) if id == *last_move => {
                Some(Report::Incomplete)
            }
            Some(Role::Host { last_move, .. }) if id <= *last_move => Some(Report::Running),
            Some(Role::Source { id: mine, .. }) if id < *mine => Some(Report::Running),
            Some(Role::Ended { .. }) => {
                out.extend(self.waiting_report(vid).map(Output::Send));
                None
            }
            _ => None,
        }
    }

    fn destroy(&mut self, id: MoveId, vid: Vid, out: &mut Vec<Output>) -> Option<Report> {
        match self.entry.as_ref().map(|entry| &entry.role) {
            Some(Role::Source { id: mine, .. }) if *mine == id => {
                self.decide(vid, Decision::Destroy, out);
                None
            }
            _ => Some(Report::Destroyed),
        }
    }

    fn roll_back(&mut self, id: MoveId, vid: Vid, out: &mut Vec<Output>) -> Option<Report> {
        match self.entry.as_ref().map(|entry| &entry.role) {
            Some(Role::Host { last_move, .. }) => {
                if id > *last_move {
                    self.pass_over(id, vid, out);
                }
                self.report_when_running(id)
            }
            Some(Role::Source { id: mine, .. }) if *mine == id => {
                self.decide_roll_back(vid, out);
                None
            }
            Some(Role::Destination { id: mine, .. }) if *mine <= id => {
                // An older move has been rolled back, too, because a newer move of the instance existed.
                self.decide_roll_back(vid, out);
                None
            }
            Some(_) | None => Some(Report::RolledBack),
        }
    }

    fn report_when_running(&mut self, id: MoveId) -> Option<Report> {
        if !self.volatile.running {
            self.volatile.owes = self.volatile.owes.max(Some(id));
        }
        self.volatile.running.then_some(Report::RolledBack)
    }

    /// Marks directives up to `id` as obsolete.
    fn pass_over(&mut self, id: MoveId, vid: Vid, out: &mut Vec<Output>) {
        let Some(entry) = &mut self.entry else { return };
        if let Role::Host { last_move, .. } = &mut entry.role {
            *last_move = id;
        }
        let entry = entry.clone();
        (self.volatile.asked, self.volatile.precopied) = (None, None);
        out.push(Output::Record(NodeRecord::Set { vid, entry }));
        if matches!(self.step(), Some(Step::Precopy(of)) if of <= id) {
            self.cancel(vid, out);
        }
        out.push(Output::Stays { vid });
    }

    fn decide_roll_back(&mut self, vid: Vid, out: &mut Vec<Output>) {
        let resuming =
            |entry: &Entry| matches!(entry.role, Role::Destination { stage: Arrival::Resuming, .. });
        if !self.entry.as_ref().is_some_and(resuming) {
            self.decide(vid, Decision::RollBack, out);
        }
    }

    fn report_of(&self, vid: Vid) -> Option<Report> {
        match self.waiting_report(vid)? {
            ToCoordinator::Move { report, .. } => Some(report),
            _ => None,
        }
    }
}

fn refused(reason: &str) -> Option<Report> {
    Some(Report::Refused { reasons: vec![reason.into()] })
}
