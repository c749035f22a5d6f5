//! Transitions between phases, and the decisions.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use fabric::Vid;

use super::move_progress::MoveProgress;
use super::{Coordinator, Output};
use crate::MoveId;
use crate::due::Due;
use crate::journal::{Exit, Record, Stage};
use crate::progress::{Event, InstanceEnded, Outcome, Phase};
use crate::protocol::ToNode;

impl Coordinator {
    /// Enters a phase: informs the user, sets the deadline, and directs the hosts.
    pub(super) fn enter(&mut self, id: MoveId, phase: Phase, now: Duration, out: &mut Vec<Output>) {
        let limit = self.limit(id, phase);
        let Some(progress) = self.progress.get_mut(&id) else { return };
        progress.phase = phase;
        progress.marks.push((phase, Due(now)));
        progress.deadline = limit.map(|limit| Due::after(now, limit));
        (progress.source_heard, progress.destination_heard) = (Due(now), Due(now));
        if limit.is_none() {
            // The move is committed: an unreachable host is awaited without a limit.
            progress.unreachable_at = None;
        }
        let at = now.saturating_sub(progress.began.0);
        out.push(Output::Event { id, event: Event::Phase { phase, at } });
        // The directive to suspend includes the transfer.
        if phase != Phase::Transfer {
            self.direct(id, now, out);
        }
    }

    pub(super) fn limit(&self, id: MoveId, phase: Phase) -> Option<Duration> {
        match phase {
            Phase::Prepare => Some(self.config.prepare),
            // Dumps on one host may be serialised.
            Phase::Suspend => Some(self.config.suspend * self.together(id).len() as u32),
            Phase::Precopy | Phase::Transfer => Some(self.config.transfer),
            // Reading a checkpoint's images precedes the restore, with nothing else in progress.
            Phase::Restore => Some(if self.is_restore(id) {
                self.config.transfer + self.config.restore
            } else {
                self.config.restore
            }),
            Phase::Resume | Phase::Fetch | Phase::Destroy | Phase::RollBack => None,
        }
    }

    /// Sends the unfulfilled directives.
    pub(super) fn direct(&mut self, id: MoveId, now: Duration, out: &mut Vec<Output>) {
        if let Some(progress) = self.progress.get_mut(&id) {
            progress.repeat_at = Due::after(now, self.config.repeat);
        }
        out.extend(self.directives(id));
    }

    /// Rolls back an uncommitted move with its group.
    pub(super) fn give_up(&mut self, id: MoveId, reasons: Vec<String>, now: Duration, out: &mut Vec<Output>) {
        let vid = self.snapshot.moves.get(&id).map(|record| record.vid);
        let name =
            vid.and_then(|vid| self.snapshot.instances.get(&vid)).map(|instance| instance.name.clone());
        self.give_up_of(name.as_deref(), id, reasons, now, out);
    }

    /// Likewise, for an instance of this name that may have ended already.
    pub(super) fn give_up_of(
        &mut self,
        name: Option<&str>,
        id: MoveId,
        reasons: Vec<String>,
        now: Duration,
        out: &mut Vec<Output>,
    ) {
        let together = self.together(id);
        let mut of_others = reasons.clone();
        // Reported once: what follows concerns the same instance.
        if let Some(first) = of_others.first_mut() {
            *first = self.reason_of_others(name, id, first);
        }
        self.give_up_alone(id, reasons, now, out);
        for other in together.into_iter().filter(|other| *other != id) {
            self.give_up_alone(other, of_others.clone(), now, out);
        }
    }

    /// The reason for the other members of a group, after `id` has failed for `reason`.
    fn reason_of_others(&self, name: Option<&str>, id: MoveId, reason: &str) -> String {
        let (goes, gone) = match (self.is_save(id), self.is_restore(id)) {
            (true, _) => ("is saved", "saved"),
            (_, true) => ("is restored", "restored"),
            _ => ("moves", "moved"),
        };
        let name = name.unwrap_or("another");
        format!("{name}, which {goes} with it, was not {gone}: {reason}")
    }

    fn give_up_alone(&mut self, id: MoveId, reasons: Vec<String>, now: Duration, out: &mut Vec<Output>) {
        let Some(record) = self.snapshot.moves.get(&id) else { return };
        if record.stage != Stage::Began {
            return;
        }
        if record.dry_run {
            return self.end_dry_run(id, Outcome::Hindered { reasons }, now, out);
        }
        let (vid, is_restore) = (record.vid, record.source.host().is_none());
        if is_restore {
            // In this order: a rolled-back restore no longer brings an instance.
            self.never_runs(vid, out);
        }
        self.record(Record::MoveRolledBack { id, reasons }, out);
        if is_restore {
            self.settled(vid, out);
        }
        self.enter(id, Phase::RollBack, now, out);
    }

    /// Reports a failed restore as over when its host has cleaned up, so that it can be restored again there, or when the host
    /// does not answer.
    pub(super) fn tell_given_up(&mut self, id: MoveId, now: Duration, out: &mut Vec<Output>) {
        let (Some(progress), Some(record)) = (self.progress.get_mut(&id), self.snapshot.moves.get(&id))
        else {
            return;
        };
        let Stage::RolledBack { reasons } = &record.stage else { return };
        if record.source.host().is_none() && !progress.is_told {
            progress.is_told = true;
            let outcome = Outcome::RolledBack { reasons: reasons.clone() };
            self.tell_end(id, outcome, now, out);
        }
    }

    /// Ends the instance of a failed restore, which never ran.
    fn never_runs(&mut self, vid: Vid, out: &mut Vec<Output>) {
        if self.snapshot.instances.contains_key(&vid) {
            let exit = Exit::NotStarted;
            self.record(Record::InstanceEnded { vid, exit: exit.clone() }, out);
            out.push(Output::InstanceEnded(InstanceEnded { vid, exit }));
        }
    }

    pub(super) fn end_dry_run(&mut self, id: MoveId, outcome: Outcome, now: Duration, out: &mut Vec<Output>) {
        self.tell_end(id, outcome, now, out);
        self.end(id, out);
    }

    /// Records that the images of a checkpoint are complete: the instances may resume.
    pub(super) fn saved(&mut self, ids: BTreeSet<MoveId>, now: Duration, out: &mut Vec<Output>) {
        self.record(Record::MovesSaved { ids: ids.clone() }, out);
        ids.into_iter().for_each(|id| self.enter(id, Phase::Resume, now, out));
    }

    /// The commit point. From this record on, the destinations are the instances' locations.
    pub(super) fn commit(&mut self, ids: BTreeSet<MoveId>, now: Duration, out: &mut Vec<Output>) {
        self.record(Record::MovesCommitted { ids: ids.clone() }, out);
        ids.into_iter().for_each(|id| self.enter(id, Phase::Resume, now, out));
    }

    /// The destination's copy runs, but needs memory from the source: others reach it, and it cannot move.
    pub(super) fn runs_incomplete(&mut self, id: MoveId, vid: Vid, now: Duration, out: &mut Vec<Output>) {
        self.enter(id, Phase::Fetch, now, out);
        self.settled(vid, out);
    }

    /// The destination's copy runs with all its memory, or has run: the source's copy can be destroyed.
    pub(super) fn confirm(
        &mut self,
        id: MoveId,
        vid: Vid,
        outcome: Outcome,
        now: Duration,
        out: &mut Vec<Output>,
    ) {
        self.record(Record::MoveConfirmed { id }, out);
        self.tell_end(id, outcome, now, out);
        self.settled(vid, out);
        if self.is_restore(id) {
            self.end(id, out);
        } else {
            self.enter(id, Phase::Destroy, now, out);
        }
    }

    /// The source has reported that the instance runs there again.
    pub(super) fn runs_on_at_source(
        &mut self,
        id: MoveId,
        vid: Vid,
        outcome: Outcome,
        now: Duration,
        out: &mut Vec<Output>,
    ) {
        let Some(progress) = self.progress.get_mut(&id).filter(|progress| !progress.source_done) else {
            return;
        };
        progress.source_done = true;
        self.tell_end(id, outcome, now, out);
        self.settled(vid, out);
        self.end_rollback(id, out);
    }

    pub(super) fn end_rollback(&mut self, id: MoveId, out: &mut Vec<Output>) {
        let Some(record) = self.snapshot.moves.get(&id) else { return };
        let is_over = |progress: &MoveProgress| {
            (progress.source_done || record.source.host().is_none())
                && (progress.destination_done || record.destination.host().is_none())
        };
        if self.progress.get(&id).is_some_and(is_over) {
            self.end(id, out);
        }
    }

    /// Ends a move. A later move of the instance may have waited for this.
    pub(super) fn end(&mut self, id: MoveId, out: &mut Vec<Output>) {
        let vid = self.snapshot.moves.get(&id).map(|record| record.vid);
        self.record(Record::MoveEnded { id }, out);
        self.progress.remove(&id);
        out.push(Output::Event { id, event: Event::Cleaned });
        let later =
            vid.into_iter().flat_map(|vid| self.moves_of(vid)).filter(|(later, _)| self.begins(*later));
        out.extend(later.flat_map(|(later, _)| self.directives(later)));
    }

    /// Whether the move saves a checkpoint.
    pub(super) fn is_save(&self, id: MoveId) -> bool {
        self.snapshot.moves.get(&id).is_some_and(|record| record.destination.host().is_none())
    }

    /// Whether the move restores a checkpoint.
    pub(super) fn is_restore(&self, id: MoveId) -> bool {
        self.snapshot.moves.get(&id).is_some_and(|record| record.source.host().is_none())
    }

    pub(super) fn begins(&self, id: MoveId) -> bool {
        self.progress.get(&id).is_some_and(|progress| progress.phase == Phase::Prepare)
    }

    fn tell_end(&self, id: MoveId, outcome: Outcome, now: Duration, out: &mut Vec<Output>) {
        let phases = self.progress.get(&id).map(|progress| progress.durations(now)).unwrap_or_default();
        out.push(Output::Event { id, event: Event::Ended { outcome, phases } });
    }

    /// Answers the nodes that asked for an instance's location while it was moving.
    pub(super) fn settled(&mut self, vid: Vid, out: &mut Vec<Output>) {
        if self.is_moving(vid) {
            return;
        }
        let places = BTreeMap::from([(vid, self.locate(vid))]);
        for to in self.waiting.remove(&vid).unwrap_or_default() {
            out.push(Output::Send { to, message: ToNode::Located { places: places.clone() } });
        }
    }

    /// The unfulfilled directives of a move.
    pub(super) fn directives(&self, id: MoveId) -> Vec<Output> {
        let (Some(progress), Some(record)) = (self.progress.get(&id), self.snapshot.moves.get(&id)) else {
            return Vec::new();
        };
        let vid = record.vid;
        let spec = self.snapshot.instances.get(&vid).map(|instance| instance.spec.as_slice());
        let owing = self.debt(id, record).and_then(|_| record.destination.host());
        let directives = progress.directives(record, spec.unwrap_or_default()).into_iter();
        let directives = directives.filter(|(to, _)| owing != Some(to));
        let send = |(to, directive)| Output::Send { to, message: ToNode::Move { id, vid, directive } };
        directives.map(send).collect()
    }
}
