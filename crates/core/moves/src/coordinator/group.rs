//! Group moves: all members are committed in one record, or all roll back.
//!
//! Members proceed independently except at three barriers: no member starts pre-copy before all are prepared, none is suspended before the pre-copy of
//! all has ended, so that a blocker of one member stops no other; and none is committed before all are ready. Before the commit, a failure
//! of one member fails all.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use fabric::Vid;

use super::move_progress::MoveProgress;
use super::{AddError, Coordinator, Output, Refusal};
use crate::journal::{Instance, MoveRecord, Record, Stage};
use crate::progress::Phase;
use crate::{MoveId, Side};

/// An instance in a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SavedInstance {
    /// The instance as it was saved; its host is the destination of the restore.
    pub instance: Instance,
    /// The directory of its images, on that host.
    pub images: String,
    /// The result of the check at its source.
    pub facts: Vec<u8>,
}

/// Why a restore is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RestoreRefusal {
    /// Another instance has its name or VID.
    #[error(transparent)]
    NotAddable(#[from] AddError),
    /// As for a move.
    #[error(transparent)]
    NotAdmitted(#[from] Refusal),
}

impl Coordinator {
    /// Begins the moves of several instances as a group. Their numbers are in the order of
    /// VIDs.
    ///
    /// # Errors
    /// If one of them is refused; then none begins.
    pub fn begin_together(
        &mut self,
        destinations: BTreeMap<Vid, Side>,
        now: Duration,
    ) -> Result<(Vec<MoveId>, Vec<Output>), (Vid, Refusal)> {
        let mut records = Vec::new();
        for (vid, destination) in destinations {
            let record = self.admit(vid, destination, false, records.len());
            records.push(record.map_err(|refusal| (vid, refusal))?);
        }
        let mut out = Vec::new();
        let ids = self.start(records, now, &mut out);
        Ok((ids, out))
    }

    /// Begins to restore the instances of a checkpoint, all of them or none. Each is located on its host from now on, like an instance that moves there;
    /// a rollback removes it.
    ///
    /// # Errors
    /// If one of them is refused; then none begins.
    pub fn restore_together(
        &mut self,
        saved: BTreeMap<Vid, SavedInstance>,
        now: Duration,
    ) -> Result<(Vec<MoveId>, Vec<Output>), (Vid, RestoreRefusal)> {
        let (mut instances, mut records, mut facts) = (Vec::new(), Vec::new(), Vec::new());
        for (vid, SavedInstance { mut instance, images, facts: found }) in saved {
            self.check_addable(vid, &instance).map_err(|error| (vid, error.into()))?;
            self.check_settled(vid).map_err(|refusal| (vid, refusal.into()))?;
            // A fresh epoch: messages about the instance's earlier life, such as its end, carry lower epochs and
            // must not apply to the restored one.
            instance.epoch = instance.epoch.max(self.snapshot.last_epoch).next();
            let (source, destination) = (Side::Images(images), instance.host.clone().into());
            let epoch = instance.epoch;
            let (dry_run, post_copy, stage) = (false, false, Stage::Began);
            let record = MoveRecord { vid, source, destination, epoch, dry_run, post_copy, stage };
            records.push(self.admitted(record, records.len()).map_err(|refusal| (vid, refusal.into()))?);
            instances.push((vid, instance));
            facts.push(found);
        }
        let mut out = Vec::new();
        let ids = self.note_begun(records, facts.into_iter().map(Some), now, &mut out);
        // In this order, so that a known instance always has a location or a move that brings it.
        for (vid, instance) in instances {
            self.record(Record::InstanceAdded { vid, instance }, &mut out);
        }
        ids.iter().for_each(|id| self.enter(*id, Phase::Prepare, now, &mut out));
        Ok((ids, out))
    }

    /// Begins the moves of a group.
    pub(super) fn start(
        &mut self,
        records: Vec<MoveRecord>,
        now: Duration,
        out: &mut Vec<Output>,
    ) -> Vec<MoveId> {
        let ids = self.note_begun(records, std::iter::repeat(None), now, out);
        ids.iter().for_each(|id| self.enter(*id, Phase::Prepare, now, out));
        ids
    }

    /// Records the begin of a group's moves, with the results of earlier checks at the sources.
    fn note_begun(
        &mut self,
        records: Vec<MoveRecord>,
        facts: impl Iterator<Item = Option<Vec<u8>>>,
        now: Duration,
        out: &mut Vec<Output>,
    ) -> Vec<MoveId> {
        let first = self.snapshot.last_move.0 + 1;
        let ids: Vec<_> = (first..).map(MoveId).take(records.len()).collect();
        let together: BTreeSet<_> = ids.iter().copied().collect();
        for ((id, record), facts) in ids.iter().zip(records).zip(facts) {
            self.record(Record::MoveBegan { id: *id, record }, out);
            self.progress
                .insert(*id, MoveProgress { together: together.clone(), facts, ..MoveProgress::new(now) });
        }
        ids
    }

    /// The group of move `id`, including `id`.
    pub(super) fn together(&self, id: MoveId) -> BTreeSet<MoveId> {
        let known = self.progress.get(&id).map(|progress| progress.together.clone());
        known.filter(|together| !together.is_empty()).unwrap_or_else(|| [id].into())
    }

    /// Handles a prepared destination, or a checked source if there is no destination. When all are prepared, pre-copy begins; for a
    /// checkpoint, the suspension.
    pub(super) fn prepared(&mut self, id: MoveId, now: Duration, out: &mut Vec<Output>) {
        if self.is_last(id, |progress| &mut progress.is_prepared) {
            let phase = match (self.is_restore(id), self.is_save(id)) {
                (true, _) => Phase::Restore,
                (_, true) => Phase::Suspend,
                _ => Phase::Precopy,
            };
            self.enter_together(id, phase, now, out);
        }
    }

    /// Handles the end of a pre-copy. When all have ended, the members are suspended.
    pub(super) fn copied(&mut self, id: MoveId, now: Duration, out: &mut Vec<Output>) {
        if self.is_last(id, |progress| &mut progress.is_copied) {
            self.enter_together(id, Phase::Suspend, now, out);
        }
    }

    fn enter_together(&mut self, id: MoveId, phase: Phase, now: Duration, out: &mut Vec<Output>) {
        self.together(id).into_iter().for_each(|id| self.enter(id, phase, now, out));
    }

    /// Handles a restored copy that is held, or saved images. When all members are ready, the moves are committed, or the
    /// saved instances resume.
    pub(super) fn ready(&mut self, id: MoveId, now: Duration, out: &mut Vec<Output>) {
        if self.is_last(id, |progress| &mut progress.is_ready) {
            let together = self.together(id);
            if self.is_save(id) { self.saved(together, now, out) } else { self.commit(together, now, out) }
        }
    }

    /// Records that `id` has reached a barrier. Returns true if all members have.
    fn is_last(&mut self, id: MoveId, reached: impl Fn(&mut MoveProgress) -> &mut bool) -> bool {
        if let Some(progress) = self.progress.get_mut(&id) {
            *reached(progress) = true;
            // The other members are still awaited, and they have deadlines of their own.
            progress.deadline = None;
        }
        self.together(id)
            .iter()
            .all(|id| self.progress.get_mut(id).is_some_and(|progress| *reached(progress)))
    }
}
