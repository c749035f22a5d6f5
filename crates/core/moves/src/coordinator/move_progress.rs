use std::collections::BTreeSet;
use std::time::Duration;

use crate::due::Due;
use crate::journal::{MoveRecord, Stage};
use crate::progress::Phase;
use crate::protocol::Directive;
use crate::{HostName, MoveId};

/// The volatile state of a move, which a restart of the coordinator loses.
#[derive(Clone, Debug, Hash)]
pub(super) struct MoveProgress {
    pub(super) phase: Phase,
    /// The members of the group, including this move; empty after a restart, because uncommitted moves are rolled back.
    pub(super) together: BTreeSet<MoveId>,
    /// The destination is prepared.
    pub(super) is_prepared: bool,
    /// Pre-copy has ended.
    pub(super) is_copied: bool,
    /// The destination holds the restored copy.
    pub(super) is_ready: bool,
    /// When each phase began; the current phase is last.
    pub(super) marks: Vec<(Phase, Due)>,
    /// When the move began, or the coordinator restarted.
    pub(super) began: Due,
    /// The result of the check at the source.
    pub(super) facts: Option<Vec<u8>>,
    /// The deadline of the phase.
    pub(super) deadline: Option<Due>,
    /// The deadline for an unreachable host to reconnect.
    pub(super) unreachable_at: Option<Due>,
    /// When directives are sent again.
    pub(super) repeat_at: Due,
    /// When the source was last heard, or a phase began.
    pub(super) source_heard: Due,
    /// When the destination was last heard, or a phase began.
    pub(super) destination_heard: Due,
    /// The source has no more work.
    pub(super) source_done: bool,
    /// The destination has no more work.
    pub(super) destination_done: bool,
    /// Whether the user knows that the restore has failed.
    pub(super) is_told: bool,
}

impl MoveProgress {
    pub(super) fn new(now: Duration) -> Self {
        Self {
            phase: Phase::Prepare,
            together: BTreeSet::new(),
            is_prepared: false,
            is_copied: false,
            is_ready: false,
            marks: Vec::new(),
            began: Due(now),
            facts: None,
            deadline: None,
            unreachable_at: None,
            repeat_at: Due(now),
            source_heard: Due(now),
            destination_heard: Due(now),
            source_done: false,
            destination_done: false,
            is_told: false,
        }
    }

    pub(super) fn after_restart(record: &MoveRecord, now: Duration) -> Self {
        let phase = match record.stage {
            Stage::Began => Phase::Prepare,
            Stage::Committed | Stage::Saved => Phase::Resume,
            Stage::Confirmed => Phase::Destroy,
            Stage::RolledBack { .. } => Phase::RollBack,
        };
        Self { phase, marks: vec![(phase, Due(now))], ..Self::new(now) }
    }

    /// The current directives for the hosts. `spec` is the instance's specification.
    pub(super) fn directives(&self, record: &MoveRecord, spec: &[u8]) -> Vec<(HostName, Directive)> {
        let (source, destination) = (record.source.host(), record.destination.host());
        let to = |host: Option<&HostName>, directive| host.map(|host| (host.clone(), directive));
        let directives = match &record.stage {
            Stage::Began => [self.before_commit(record, spec), None],
            Stage::Committed => [to(destination, Directive::Resume), None],
            Stage::Confirmed => [to(source, Directive::Destroy), None],
            Stage::RolledBack { .. } | Stage::Saved => [
                to(source.filter(|_| !self.source_done), Directive::RollBack),
                to(destination.filter(|_| !self.destination_done), Directive::RollBack),
            ],
        };
        directives.into_iter().flatten().collect()
    }

    /// The hosts that the instance waits for, with the time when each was last heard.
    pub(super) fn awaited<'a>(
        &self,
        record: &'a MoveRecord,
    ) -> impl Iterator<Item = (&'a HostName, Due)> + use<'a> {
        let (source, destination) = match (&record.stage, self.phase) {
            (Stage::Began, Phase::Prepare) => {
                (self.facts.is_none(), self.facts.is_some() && !self.is_prepared)
            }
            (Stage::Began, Phase::Precopy) => (!self.is_copied, false),
            (Stage::Began, Phase::Suspend) => (true, false),
            (Stage::Began, Phase::Transfer) => (true, true),
            (Stage::Began, _) => (false, !self.is_ready),
            (Stage::Committed, _) => (false, true),
            (Stage::Confirmed, _) => (false, false),
            (Stage::RolledBack { .. } | Stage::Saved, _) => (!self.source_done, false),
        };
        let hosts = [
            (source, &record.source, self.source_heard),
            (destination, &record.destination, self.destination_heard),
        ];
        let awaited = hosts.into_iter().filter(|(awaited, ..)| *awaited);
        awaited.filter_map(|(_, side, heard)| Some((side.host()?, heard)))
    }

    /// Records that the host of the source, or of the destination, was heard.
    pub(super) fn heard(&mut self, record: &MoveRecord, from: &HostName, now: Duration) {
        if record.source.is(from) {
            self.source_heard = Due(now);
        } else if record.destination.is(from) {
            self.destination_heard = Due(now);
        }
    }

    fn before_commit(&self, record: &MoveRecord, spec: &[u8]) -> Option<(HostName, Directive)> {
        let (source, destination) = (record.source.clone(), record.destination.clone());
        match (self.phase, &self.facts) {
            (Phase::Prepare, None) => Some((
                source.host()?.clone(),
                Directive::CheckSource { destination, dry_run: record.dry_run },
            )),
            (Phase::Prepare, Some(facts)) => {
                let (spec, facts) = (spec.to_vec(), facts.clone());
                let (epoch, post_copy) = (record.epoch.next(), record.post_copy);
                let directive = if record.dry_run {
                    Directive::CheckDestination { spec, facts, post_copy }
                } else {
                    Directive::Prepare { epoch, source, spec, facts, post_copy }
                };
                Some((destination.host()?.clone(), directive))
            }
            (Phase::Precopy, _) => Some((
                source.host()?.clone(),
                Directive::Precopy { destination: destination.host()?.clone(), post_copy: record.post_copy },
            )),
            (Phase::Suspend | Phase::Transfer, _) => {
                Some((source.host()?.clone(), Directive::Suspend { epoch: record.epoch, destination }))
            }
            // After the transfer, the destination reports without further directives.
            _ => None,
        }
    }

    pub(super) fn next_due(&self) -> Option<Due> {
        [Some(self.repeat_at), self.deadline, self.unreachable_at].into_iter().flatten().min()
    }

    /// The duration of every phase so far.
    pub(super) fn durations(&self, now: Duration) -> Vec<(Phase, Duration)> {
        let ends = self.marks.iter().skip(1).map(|(_, end)| end.0).chain([now]);
        self.marks
            .iter()
            .zip(ends)
            .map(|((phase, begin), end)| (*phase, end.saturating_sub(begin.0)))
            .collect()
    }
}
