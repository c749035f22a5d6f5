//! Moves that are made together: all of them are committed in one record, or all are rolled back.
//!
//! Each goes its own way but for two points: none is suspended before all are prepared, so that what stands in the way of one
//! stops no other; and none is committed before all are ready. What happens to one before that happens to all.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use fabric::Vid;

use super::live::Live;
use super::{Coordinator, MoveRequest, Output, Refusal};
use crate::journal::{MoveRecord, Record};
use crate::progress::Phase;
use crate::{HostName, MoveId};

impl Coordinator {
    /// Begins the moves of several instances, each to its host, that are made together. Their numbers are in the order of
    /// VIDs.
    ///
    /// # Errors
    /// If one of them cannot even begin; then none has.
    pub fn begin_together(
        &mut self,
        destinations: BTreeMap<Vid, HostName>,
        now: Duration,
    ) -> Result<(Vec<MoveId>, Vec<Output>), (Vid, Refusal)> {
        let mut records = Vec::new();
        for (vid, destination) in destinations {
            let request = MoveRequest { vid, destination, dry_run: false };
            records.push(self.admit(request, records.len()).map_err(|refusal| (vid, refusal))?);
        }
        let mut out = Vec::new();
        let ids = self.start(records, now, &mut out);
        Ok((ids, out))
    }

    /// Begins moves that are made together.
    pub(super) fn start(
        &mut self,
        records: Vec<MoveRecord>,
        now: Duration,
        out: &mut Vec<Output>,
    ) -> Vec<MoveId> {
        let first = self.image.last_move.0 + 1;
        let ids: Vec<_> = (first..).map(MoveId).take(records.len()).collect();
        let together: BTreeSet<_> = ids.iter().copied().collect();
        for (id, record) in ids.iter().zip(records) {
            self.record(Record::MoveBegan { id: *id, record }, out);
            self.lives.insert(*id, Live { together: together.clone(), ..Live::new(now) });
        }
        ids.iter().for_each(|id| self.enter(*id, Phase::Prepare, now, out));
        ids
    }

    /// The moves that are made together with `id`, this one among them.
    pub(super) fn together(&self, id: MoveId) -> BTreeSet<MoveId> {
        let known = self.lives.get(&id).map(|live| live.together.clone());
        known.filter(|together| !together.is_empty()).unwrap_or_else(|| [id].into())
    }

    /// The destination is prepared. When all are, their instances are suspended.
    pub(super) fn prepared(&mut self, id: MoveId, now: Duration, out: &mut Vec<Output>) {
        if self.is_last(id, |live| &mut live.is_prepared) {
            self.together(id).into_iter().for_each(|id| self.enter(id, Phase::Suspend, now, out));
        }
    }

    /// The destination holds the restored copy. When all do, the moves are committed.
    pub(super) fn ready(&mut self, id: MoveId, now: Duration, out: &mut Vec<Output>) {
        if self.is_last(id, |live| &mut live.is_ready) {
            self.commit(self.together(id), now, out);
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
