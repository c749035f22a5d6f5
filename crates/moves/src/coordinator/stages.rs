//! From phase to phase, and the decisions.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use fabric::Vid;

use super::live::Live;
use super::{Coordinator, Output};
use crate::MoveId;
use crate::due::Due;
use crate::journal::{Exit, Record, Stage};
use crate::progress::{Event, InstanceEnded, Outcome, Phase};
use crate::protocol::ToNode;

impl Coordinator {
    /// Begins a phase: tells the user, sets its deadline, and directs the hosts.
    pub(super) fn enter(&mut self, id: MoveId, phase: Phase, now: Duration, out: &mut Vec<Output>) {
        let limit = self.limit(id, phase);
        let Some(live) = self.lives.get_mut(&id) else { return };
        live.phase = phase;
        live.marks.push((phase, Due(now)));
        live.deadline = limit.map(|limit| Due::after(now, limit));
        (live.source_heard, live.destination_heard) = (Due(now), Due(now));
        if limit.is_none() {
            // Decided: a host that is away is waited for, however long.
            live.unreachable_at = None;
        }
        let at = now.saturating_sub(live.began.0);
        out.push(Output::Event { id, event: Event::Phase { phase, at } });
        // The transfer follows from the directive to suspend.
        if phase != Phase::Transfer {
            self.direct(id, now, out);
        }
    }

    pub(super) fn limit(&self, id: MoveId, phase: Phase) -> Option<Duration> {
        match phase {
            Phase::Prepare => Some(self.config.prepare),
            // Those on one host may be dumped one after the other.
            Phase::Suspend => Some(self.config.suspend * self.together(id).len() as u32),
            Phase::Precopy | Phase::Transfer => Some(self.config.transfer),
            // Images of a checkpoint are read before that, while nothing else goes on.
            Phase::Restore => Some(if self.is_restore(id) {
                self.config.transfer + self.config.restore
            } else {
                self.config.restore
            }),
            Phase::Resume | Phase::Fetch | Phase::Destroy | Phase::RollBack => None,
        }
    }

    /// Sends the directives that are not yet fulfilled.
    pub(super) fn direct(&mut self, id: MoveId, now: Duration, out: &mut Vec<Output>) {
        if let Some(live) = self.lives.get_mut(&id) {
            live.repeat_at = Due::after(now, self.config.repeat);
        }
        out.extend(self.directives(id));
    }

    /// Gives a move up that is not committed, and those that are made together with it.
    pub(super) fn give_up(&mut self, id: MoveId, reasons: Vec<String>, now: Duration, out: &mut Vec<Output>) {
        let vid = self.image.moves.get(&id).map(|record| record.vid);
        let name = vid.and_then(|vid| self.image.instances.get(&vid)).map(|instance| instance.name.clone());
        self.give_up_of(name.as_deref(), id, reasons, now, out);
    }

    /// The same for the instance of this name, which may be no more.
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
        // Said once: what follows is of the same instance.
        if let Some(first) = of_others.first_mut() {
            *first = self.reason_of_others(name, id, first);
        }
        self.give_up_alone(id, reasons, now, out);
        for other in together.into_iter().filter(|other| *other != id) {
            self.give_up_alone(other, of_others.clone(), now, out);
        }
    }

    /// Why those are given up that are made together with `id`, which is given up for `reason`.
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
        let Some(record) = self.image.moves.get(&id) else { return };
        if record.stage != Stage::Began {
            return;
        }
        if record.dry_run {
            return self.end_dry_run(id, Outcome::Hindered { reasons }, now, out);
        }
        let (vid, is_restore) = (record.vid, record.source.host().is_none());
        if is_restore {
            // In this order: what is given up brings no instance any more.
            self.never_runs(vid, out);
        }
        self.record(Record::MoveRolledBack { id, reasons }, out);
        if is_restore {
            self.settled(vid, out);
        }
        self.enter(id, Phase::RollBack, now, out);
    }

    /// A restore that is given up is over for its user when nothing is left of it on its host, where it can be made again then, or when
    /// that does not answer.
    pub(super) fn tell_given_up(&mut self, id: MoveId, now: Duration, out: &mut Vec<Output>) {
        let (Some(live), Some(record)) = (self.lives.get_mut(&id), self.image.moves.get(&id)) else { return };
        let Stage::RolledBack { reasons } = &record.stage else { return };
        if record.source.host().is_none() && !live.is_told {
            live.is_told = true;
            let outcome = Outcome::RolledBack { reasons: reasons.clone() };
            self.tell_end(id, outcome, now, out);
        }
    }

    /// What is restored runs nowhere before the commit.
    fn never_runs(&mut self, vid: Vid, out: &mut Vec<Output>) {
        if self.image.instances.contains_key(&vid) {
            let exit = Exit::NotStarted;
            self.record(Record::InstanceEnded { vid, exit: exit.clone() }, out);
            out.push(Output::InstanceEnded(InstanceEnded { vid, exit }));
        }
    }

    pub(super) fn end_dry_run(&mut self, id: MoveId, outcome: Outcome, now: Duration, out: &mut Vec<Output>) {
        self.tell_end(id, outcome, now, out);
        self.end(id, out);
    }

    /// The images of a checkpoint are complete: the instances may run on.
    pub(super) fn saved(&mut self, ids: BTreeSet<MoveId>, now: Duration, out: &mut Vec<Output>) {
        self.record(Record::MovesSaved { ids: ids.clone() }, out);
        ids.into_iter().for_each(|id| self.enter(id, Phase::Resume, now, out));
    }

    /// The commit point. From the record on, the instances' places are their destinations.
    pub(super) fn commit(&mut self, ids: BTreeSet<MoveId>, now: Duration, out: &mut Vec<Output>) {
        self.record(Record::MovesCommitted { ids: ids.clone() }, out);
        ids.into_iter().for_each(|id| self.enter(id, Phase::Resume, now, out));
    }

    /// The destination's copy runs, and needs the source's: others reach it, and it cannot leave.
    pub(super) fn runs_incomplete(&mut self, id: MoveId, vid: Vid, now: Duration, out: &mut Vec<Output>) {
        self.enter(id, Phase::Fetch, now, out);
        self.settled(vid, out);
    }

    /// The destination's copy runs with all its memory, or ran: the source's can go.
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

    /// The source has reported that the instance runs there, as it did before.
    pub(super) fn runs_on_at_source(
        &mut self,
        id: MoveId,
        vid: Vid,
        outcome: Outcome,
        now: Duration,
        out: &mut Vec<Output>,
    ) {
        let Some(live) = self.lives.get_mut(&id).filter(|live| !live.source_done) else { return };
        live.source_done = true;
        self.tell_end(id, outcome, now, out);
        self.settled(vid, out);
        self.end_rollback(id, out);
    }

    pub(super) fn end_rollback(&mut self, id: MoveId, out: &mut Vec<Output>) {
        let Some(record) = self.image.moves.get(&id) else { return };
        let is_over = |live: &Live| {
            (live.source_done || record.source.host().is_none())
                && (live.destination_done || record.destination.host().is_none())
        };
        if self.lives.get(&id).is_some_and(is_over) {
            self.end(id, out);
        }
    }

    /// Nothing is left to do. A later move of the instance may have waited for that.
    pub(super) fn end(&mut self, id: MoveId, out: &mut Vec<Output>) {
        let vid = self.image.moves.get(&id).map(|record| record.vid);
        self.record(Record::MoveEnded { id }, out);
        self.lives.remove(&id);
        out.push(Output::Event { id, event: Event::Cleaned });
        let later =
            vid.into_iter().flat_map(|vid| self.moves_of(vid)).filter(|(later, _)| self.begins(*later));
        out.extend(later.flat_map(|(later, _)| self.directives(later)));
    }

    /// Whether the instance is saved in a checkpoint.
    pub(super) fn is_save(&self, id: MoveId) -> bool {
        self.image.moves.get(&id).is_some_and(|record| record.destination.host().is_none())
    }

    /// Whether the instance comes from a checkpoint.
    pub(super) fn is_restore(&self, id: MoveId) -> bool {
        self.image.moves.get(&id).is_some_and(|record| record.source.host().is_none())
    }

    pub(super) fn begins(&self, id: MoveId) -> bool {
        self.lives.get(&id).is_some_and(|live| live.phase == Phase::Prepare)
    }

    fn tell_end(&self, id: MoveId, outcome: Outcome, now: Duration, out: &mut Vec<Output>) {
        let phases = self.lives.get(&id).map(|live| live.durations(now)).unwrap_or_default();
        out.push(Output::Event { id, event: Event::Ended { outcome, phases } });
    }

    /// Answers those who asked where an instance is while it was on its way.
    pub(super) fn settled(&mut self, vid: Vid, out: &mut Vec<Output>) {
        if self.is_moving(vid) {
            return;
        }
        let places = BTreeMap::from([(vid, self.locate(vid))]);
        for to in self.waiting.remove(&vid).unwrap_or_default() {
            out.push(Output::Send { to, message: ToNode::Located { places: places.clone() } });
        }
    }

    /// The directives of a move that are not yet fulfilled.
    pub(super) fn directives(&self, id: MoveId) -> Vec<Output> {
        let (Some(live), Some(record)) = (self.lives.get(&id), self.image.moves.get(&id)) else {
            return Vec::new();
        };
        let vid = record.vid;
        let spec = self.image.instances.get(&vid).map(|instance| instance.spec.as_slice());
        let owing = self.debt(id, record).and_then(|_| record.destination.host());
        let directives = live.directives(record, spec.unwrap_or_default()).into_iter();
        let directives = directives.filter(|(to, _)| owing != Some(to));
        let send = |(to, directive)| Output::Send { to, message: ToNode::Move { id, vid, directive } };
        directives.map(send).collect()
    }
}
