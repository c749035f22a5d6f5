//! Moves that are made together: all of them are committed in one record, or all are rolled back.
//!
//! Each goes its own way but for three points: no memory is sent before all are prepared, and none is suspended before the memory of
//! all is sent, so that what stands in the way of one stops no other; and none is committed before all are ready. What happens to one
//! before that happens to all.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use fabric::Vid;

use super::live::Live;
use super::{AddError, Coordinator, Output, Refusal};
use crate::journal::{Instance, MoveRecord, Record, Stage};
use crate::progress::Phase;
use crate::{MoveId, Side};

/// An instance in a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SavedInstance {
    /// As it was; its host is where it is to be restored.
    pub instance: Instance,
    /// The directory of its images, on that host.
    pub images: String,
    /// What the check at its source had found.
    pub facts: Vec<u8>,
}

/// Why a restore does not begin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RestoreRefusal {
    /// There is something else by its name or VID.
    #[error(transparent)]
    NotAddable(#[from] AddError),
    /// As for a move.
    #[error(transparent)]
    NotAdmitted(#[from] Refusal),
}

impl Coordinator {
    /// Begins the moves of several instances, each to its host, that are made together. Their numbers are in the order of
    /// VIDs.
    ///
    /// # Errors
    /// If one of them cannot even begin; then none has.
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

    /// Begins to restore instances of a checkpoint, all of them or none. Each is on its host from now on, as one that moves there;
    /// it is no more if that is rolled back.
    ///
    /// # Errors
    /// If one of them cannot even begin; then none has.
    pub fn restore_together(
        &mut self,
        saved: BTreeMap<Vid, SavedInstance>,
        now: Duration,
    ) -> Result<(Vec<MoveId>, Vec<Output>), (Vid, RestoreRefusal)> {
        let (mut instances, mut records, mut facts) = (Vec::new(), Vec::new(), Vec::new());
        for (vid, SavedInstance { mut instance, images, facts: found }) in saved {
            self.check_addable(vid, &instance).map_err(|error| (vid, error.into()))?;
            self.check_settled(vid).map_err(|refusal| (vid, refusal.into()))?;
            // Nobody may know it by this epoch or a later one, from before it was ended: what is still said of it then, as its end,
            // is not about this one.
            instance.epoch = instance.epoch.max(self.image.last_epoch).next();
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
        // In this order: an instance is never known that is nowhere, and that no move brings.
        for (vid, instance) in instances {
            self.record(Record::InstanceAdded { vid, instance }, &mut out);
        }
        ids.iter().for_each(|id| self.enter(*id, Phase::Prepare, now, &mut out));
        Ok((ids, out))
    }

    /// Begins moves that are made together.
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

    /// Writes moves down that are made together, with what is known of each from an earlier check at its source.
    fn note_begun(
        &mut self,
        records: Vec<MoveRecord>,
        facts: impl Iterator<Item = Option<Vec<u8>>>,
        now: Duration,
        out: &mut Vec<Output>,
    ) -> Vec<MoveId> {
        let first = self.image.last_move.0 + 1;
        let ids: Vec<_> = (first..).map(MoveId).take(records.len()).collect();
        let together: BTreeSet<_> = ids.iter().copied().collect();
        for ((id, record), facts) in ids.iter().zip(records).zip(facts) {
            self.record(Record::MoveBegan { id: *id, record }, out);
            self.lives.insert(*id, Live { together: together.clone(), facts, ..Live::new(now) });
        }
        ids
    }

    /// The moves that are made together with `id`, this one among them.
    pub(super) fn together(&self, id: MoveId) -> BTreeSet<MoveId> {
        let known = self.lives.get(&id).map(|live| live.together.clone());
        known.filter(|together| !together.is_empty()).unwrap_or_else(|| [id].into())
    }

    /// The destination is prepared, or the source checked if there is none. When all are, the memory of their instances is sent; those
    /// that are saved are suspended.
    pub(super) fn prepared(&mut self, id: MoveId, now: Duration, out: &mut Vec<Output>) {
        if self.is_last(id, |live| &mut live.is_prepared) {
            let phase = match (self.is_restore(id), self.is_save(id)) {
                (true, _) => Phase::Restore,
                (_, true) => Phase::Suspend,
                _ => Phase::Precopy,
            };
            self.enter_together(id, phase, now, out);
        }
    }

    /// The memory is sent. When that of all is, they are suspended.
    pub(super) fn copied(&mut self, id: MoveId, now: Duration, out: &mut Vec<Output>) {
        if self.is_last(id, |live| &mut live.is_copied) {
            self.enter_together(id, Phase::Suspend, now, out);
        }
    }

    fn enter_together(&mut self, id: MoveId, phase: Phase, now: Duration, out: &mut Vec<Output>) {
        self.together(id).into_iter().for_each(|id| self.enter(id, phase, now, out));
    }

    /// The destination holds the restored copy, or the images are saved. When all are so far, the moves are committed, or the
    /// instances run on.
    pub(super) fn ready(&mut self, id: MoveId, now: Duration, out: &mut Vec<Output>) {
        if self.is_last(id, |live| &mut live.is_ready) {
            let together = self.together(id);
            if self.is_save(id) { self.saved(together, now, out) } else { self.commit(together, now, out) }
        }
    }

    /// Notes that `id` has reached a point for which those wait that are made together. True if all have.
    fn is_last(&mut self, id: MoveId, reached: impl Fn(&mut Live) -> &mut bool) -> bool {
        if let Some(live) = self.lives.get_mut(&id) {
            *reached(live) = true;
            // It is the others for which is waited now, and these have deadlines of their own.
            live.deadline = None;
        }
        self.together(id).iter().all(|id| self.lives.get_mut(id).is_some_and(|live| *reached(live)))
    }
}
