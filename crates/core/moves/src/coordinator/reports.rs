//! Handles the reports of nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use fabric::{Epoch, Vid};

use super::{Coordinator, Output};
use crate::due::Due;
use crate::journal::{Exit, MoveRecord, Record, Stage};
use crate::progress::{Event, InstanceEnded, Outcome, Phase};
use crate::protocol::{
    Directive, MAX_BLOB, MAX_LOCATED, MAX_REASON, MAX_REASONS, Report, ToCoordinator, ToNode,
};
use crate::{HostName, MoveId, Side};

impl Coordinator {
    pub(super) fn message(
        &mut self,
        from: &HostName,
        message: ToCoordinator,
        now: Duration,
        out: &mut Vec<Output>,
    ) {
        match message {
            ToCoordinator::Move { id, vid, report } => self.report(from, id, vid, report, now, out),
            ToCoordinator::Exited { vid, epoch, exit } => self.exited(from, vid, epoch, exit, now, out),
            ToCoordinator::Locate { vids } => self.located(from, vids, out),
        }
    }

    fn located(&mut self, from: &HostName, vids: BTreeSet<Vid>, out: &mut Vec<Output>) {
        let mut places = BTreeMap::new();
        for vid in vids.into_iter().take(MAX_LOCATED) {
            let location = self.locate(vid);
            if location.as_ref().is_some_and(|location| location.moving) {
                self.waiting.entry(vid).or_default().insert(from.clone());
            }
            places.insert(vid, location);
        }
        out.push(Output::Send { to: from.clone(), message: ToNode::Located { places } });
    }

    /// Handles a node's report. A node speaks for its own part in a move only.
    pub(super) fn report(
        &mut self,
        from: &HostName,
        id: MoveId,
        vid: Vid,
        report: Report,
        now: Duration,
        out: &mut Vec<Output>,
    ) {
        let Some(record) = self.snapshot.moves.get(&id) else {
            return self.report_of_ended(from, id, vid, &report, out);
        };
        if record.vid != vid {
            return;
        }
        let record = record.clone();
        if let Some(progress) = self.progress.get_mut(&id) {
            progress.heard(&record, from, now);
        }
        let report = bounded(report);
        if record.source.is(from) {
            self.source_reports(id, from, &record, report, now, out);
        } else if record.destination.is(from) {
            self.destination_reports(id, from, &record, report, now, out);
        }
    }

    /// Handles a report about a move that has ended: a delayed directive may have made a destination prepare again. A source
    /// cannot be left over, because a move ends only after its source has reported.
    fn report_of_ended(&self, from: &HostName, id: MoveId, vid: Vid, report: &Report, out: &mut Vec<Output>) {
        let waits = matches!(
            report,
            Report::Prepared
                | Report::Ready
                | Report::Refused { .. }
                | Report::Failed { .. }
                | Report::Trouble { .. }
        );
        if waits && id <= self.snapshot.last_move {
            let message = ToNode::Move { id, vid, directive: Directive::RollBack };
            out.push(Output::Send { to: from.clone(), message });
        }
    }

    fn source_reports(
        &mut self,
        id: MoveId,
        from: &HostName,
        record: &MoveRecord,
        report: Report,
        now: Duration,
        out: &mut Vec<Output>,
    ) {
        let Some(phase) = self.progress.get(&id).map(|progress| progress.phase) else { return };
        match (&record.stage, report) {
            (Stage::Began, Report::Checked { facts }) if phase == Phase::Prepare => {
                self.source_checked(id, record, facts, now, out);
            }
            (Stage::Began, Report::Refused { reasons }) if phase == Phase::Prepare => {
                self.give_up(id, reasons, now, out);
            }
            (Stage::Began, Report::Copied { .. }) if phase == Phase::Precopy => self.copied(id, now, out),
            (Stage::Began, Report::Suspended { suspension }) if phase == Phase::Suspend => {
                out.push(Output::Event { id, event: Event::Suspended(suspension) });
                self.enter(id, Phase::Transfer, now, out);
            }
            (Stage::Began, Report::Progress { bytes, total }) => {
                self.goes_on(id, (bytes, total), now, out);
            }
            (Stage::Began, Report::Sent { .. }) if matches!(phase, Phase::Suspend | Phase::Transfer) => {
                match record.destination {
                    Side::Host(_) => self.enter(id, Phase::Restore, now, out),
                    Side::Images(_) => self.ready(id, now, out),
                }
            }
            (Stage::Began, Report::Failed { reason }) => self.give_up(id, vec![reason], now, out),
            (Stage::RolledBack { reasons }, Report::RolledBack) => {
                let outcome = Outcome::RolledBack { reasons: reasons.clone() };
                self.runs_on_at_source(id, record.vid, outcome, now, out);
            }
            (Stage::Saved, Report::RolledBack) => {
                self.runs_on_at_source(id, record.vid, Outcome::Saved, now, out);
            }
            (Stage::Confirmed, Report::Destroyed) => self.end(id, out),
            (_, Report::Trouble { reason }) => trouble(id, from, reason, out),
            _ => {}
        }
    }

    fn source_checked(
        &mut self,
        id: MoveId,
        record: &MoveRecord,
        facts: Vec<u8>,
        now: Duration,
        out: &mut Vec<Output>,
    ) {
        if facts.len() > MAX_BLOB {
            let reason = format!("the result of the check at the source exceeds {MAX_BLOB} bytes");
            return self.give_up(id, vec![reason], now, out);
        }
        if let Some(progress) = self.progress.get_mut(&id).filter(|progress| progress.facts.is_none()) {
            progress.facts = Some(facts);
            match record.destination {
                Side::Host(_) => self.direct(id, now, out),
                Side::Images(_) => self.prepared(id, now, out),
            }
        }
    }

    fn destination_reports(
        &mut self,
        id: MoveId,
        from: &HostName,
        record: &MoveRecord,
        report: Report,
        now: Duration,
        out: &mut Vec<Output>,
    ) {
        let Some(progress) = self.progress.get_mut(&id) else { return };
        match (&record.stage, report) {
            (Stage::Began, Report::Checked { .. }) if record.dry_run => {
                self.end_dry_run(id, Outcome::Feasible, now, out);
            }
            (Stage::Began, Report::Prepared) if progress.phase == Phase::Prepare => {
                self.prepared(id, now, out);
            }
            (Stage::Began, Report::Progress { bytes, total }) => {
                self.goes_on(id, (bytes, total), now, out);
            }
            // A restore waits for no suspension, and may be ready before others are prepared.
            (Stage::Began, Report::Ready)
                if progress.phase == Phase::Prepare && record.source.host().is_none() =>
            {
                self.prepared(id, now, out);
                self.ready(id, now, out);
            }
            (Stage::Began, Report::Ready) if progress.phase != Phase::Prepare => self.ready(id, now, out),
            (Stage::Began, Report::Refused { reasons }) => self.give_up(id, reasons, now, out),
            (Stage::Began, Report::Failed { reason } | Report::Trouble { reason }) => {
                self.give_up(id, vec![reason], now, out);
            }
            (Stage::Committed, Report::Incomplete) if progress.phase == Phase::Resume => {
                self.runs_incomplete(id, record.vid, now, out);
            }
            (Stage::Committed, Report::Progress { bytes, total }) if progress.phase == Phase::Fetch => {
                out.push(Output::Event { id, event: Event::Progress { bytes, total } });
            }
            (Stage::Committed, Report::Running) => self.confirm(id, record.vid, Outcome::Moved, now, out),
            (Stage::RolledBack { .. }, Report::RolledBack) => {
                progress.destination_done = true;
                self.tell_given_up(id, now, out);
                self.end_rollback(id, out);
            }
            (_, Report::Trouble { reason }) => trouble(id, from, reason, out),
            _ => {}
        }
    }

    /// Handles progress of memory or images. Sending the memory of a running instance, and saving or reading a checkpoint, may take any
    /// time as long as there is progress.
    fn goes_on(&mut self, id: MoveId, (bytes, total): (u64, u64), now: Duration, out: &mut Vec<Output>) {
        out.push(Output::Event { id, event: Event::Progress { bytes, total } });
        let Some(phase) = self.progress.get(&id).map(|progress| progress.phase) else { return };
        let may_last = phase == Phase::Precopy || self.is_save(id) || self.is_restore(id);
        let limit = self.limit(id, phase).filter(|_| may_last);
        if let (Some(limit), Some(progress)) = (limit, self.progress.get_mut(&id))
            && progress.deadline.is_some()
        {
            progress.deadline = Some(Due::after(now, limit));
        }
    }

    /// Handles the end of an instance. Only a report from its location with its current epoch counts; an older one is just acknowledged.
    pub(super) fn exited(
        &mut self,
        from: &HostName,
        vid: Vid,
        epoch: Epoch,
        exit: Exit,
        now: Duration,
        out: &mut Vec<Output>,
    ) {
        let instance = self.snapshot.instances.get(&vid);
        let name = instance.map(|instance| instance.name.clone());
        if instance.is_some_and(|instance| instance.host == *from && instance.epoch == epoch) {
            self.record(Record::InstanceEnded { vid, exit: exit.clone() }, out);
            out.push(Output::InstanceEnded(InstanceEnded { vid, exit: exit.clone() }));
        }
        for (id, record) in self.snapshot.moves.clone() {
            if record.vid == vid {
                self.exited_in_move(id, (name.as_deref(), &record), from, (epoch, &exit), now, out);
            }
        }
        self.settled(vid, out);
        out.push(Output::Send { to: from.clone(), message: ToNode::ExitRecorded { vid, epoch } });
    }

    fn exited_in_move(
        &mut self,
        id: MoveId,
        (name, record): (Option<&str>, &MoveRecord),
        from: &HostName,
        (epoch, exit): (Epoch, &Exit),
        now: Duration,
        out: &mut Vec<Output>,
    ) {
        match record.stage {
            Stage::Began if record.source.is(from) && epoch == record.epoch => {
                self.give_up_of(name, id, vec!["the instance has ended".into()], now, out);
            }
            Stage::Committed if record.destination.is(from) && epoch == record.epoch.next() => {
                let outcome = match exit {
                    Exit::Lost { reason } if record.post_copy => Outcome::Bereft { reason: reason.clone() },
                    _ => Outcome::Moved,
                };
                self.confirm(id, record.vid, outcome, now, out);
            }
            _ => {}
        }
    }
}

fn trouble(id: MoveId, host: &HostName, reason: String, out: &mut Vec<Output>) {
    out.push(Output::Event { id, event: Event::Trouble { host: host.clone(), reason } });
}

/// Truncates the texts of a report to their limits.
fn bounded(report: Report) -> Report {
    match report {
        Report::Refused { mut reasons } => {
            reasons.truncate(MAX_REASONS);
            Report::Refused { reasons: reasons.into_iter().map(cut).collect() }
        }
        Report::Failed { reason } => Report::Failed { reason: cut(reason) },
        Report::Trouble { reason } => Report::Trouble { reason: cut(reason) },
        other => other,
    }
}

fn cut(mut reason: String) -> String {
    if reason.len() > MAX_REASON {
        reason.truncate(reason.floor_char_boundary(MAX_REASON));
    }
    reason
}
