//! Hosts that are gone for good.

use std::time::Duration;

use super::{Coordinator, Output};
use crate::journal::{Exit, MoveRecord, Stage};
use crate::protocol::Report;
use crate::{HostName, MoveId};

impl Coordinator {
    /// The first move away from `host` that is committed and not confirmed. It goes forward without `host`, which only then can be lost:
    /// nothing says before that there is nothing left to do there.
    #[must_use]
    pub fn leaves(&self, host: &HostName) -> Option<MoveId> {
        let leaves = |record: &MoveRecord| record.stage == Stage::Committed && record.source.is(host);
        self.image.moves.iter().find(|(_, record)| leaves(record)).map(|(id, _)| *id)
    }

    /// `host` is gone for good, and whatever it says from now on is not heard: its instances are lost for `reason`, moves with it that
    /// are not committed are given up, and what was left to do there is done. A move that [leaves](Self::leaves) it stays as it is.
    pub fn lose(&mut self, host: &HostName, reason: &str, now: Duration) -> Vec<Output> {
        let mut out = Vec::new();
        let instances = self.image.instances.iter().filter(|(_, instance)| instance.host == *host);
        let instances: Vec<_> = instances.map(|(vid, instance)| (*vid, instance.epoch)).collect();
        for (vid, epoch) in instances {
            let exit = Exit::Lost { reason: reason.into() };
            self.exited(host, vid, epoch, exit, now, &mut out);
        }
        let takes_part = |record: &MoveRecord| record.hosts().any(|part| part == host);
        let moves = self.image.moves.iter().filter(|(_, record)| takes_part(record));
        for id in moves.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.give_up(id, vec![format!("host {host} is gone for good")], now, &mut out);
            self.is_done_at(host, id, now, &mut out);
        }
        // It hears nothing any more.
        out.retain(|output| !matches!(output, Output::Send { to, .. } if to == host));
        out
    }

    /// Takes as done what `host` still had to do for a move.
    fn is_done_at(&mut self, host: &HostName, id: MoveId, now: Duration, out: &mut Vec<Output>) {
        let Some(record) = self.image.moves.get(&id) else { return };
        let report = match record.stage {
            Stage::Began | Stage::Committed => return,
            Stage::Confirmed => Report::Destroyed,
            Stage::RolledBack { .. } | Stage::Saved => Report::RolledBack,
        };
        let vid = record.vid;
        self.report(host, id, vid, report, now, out);
    }
}
