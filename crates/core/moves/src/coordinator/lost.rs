//! Hosts that are lost for good.

use std::time::Duration;

use super::{Coordinator, Output};
use crate::journal::{Exit, MoveRecord, Stage};
use crate::protocol::Report;
use crate::{HostName, MoveId};

impl Coordinator {
    /// The first committed move away from `host` that is not confirmed. It completes without `host`, which can be lost only afterwards:
    /// until then, `host` may still have work to do.
    #[must_use]
    pub fn leaves(&self, host: &HostName) -> Option<MoveId> {
        let leaves = |record: &MoveRecord| record.stage == Stage::Committed && record.source.is(host);
        self.snapshot.moves.iter().find(|(_, record)| leaves(record)).map(|(id, _)| *id)
    }

    /// Loses `host` for good; it is not heard any more. Its instances are lost for `reason`, its uncommitted moves
    /// roll back, and its remaining work is considered done. A move that [leaves](Self::leaves) it continues.
    pub fn lose(&mut self, host: &HostName, reason: &str, now: Duration) -> Vec<Output> {
        let mut out = Vec::new();
        let instances = self.snapshot.instances.iter().filter(|(_, instance)| instance.host == *host);
        let instances: Vec<_> = instances.map(|(vid, instance)| (*vid, instance.epoch)).collect();
        for (vid, epoch) in instances {
            let exit = Exit::Lost { reason: reason.into() };
            self.exited(host, vid, epoch, exit, now, &mut out);
        }
        let takes_part = |record: &MoveRecord| record.hosts().any(|part| part == host);
        let moves = self.snapshot.moves.iter().filter(|(_, record)| takes_part(record));
        for id in moves.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.give_up(id, vec![format!("host {host} is gone for good")], now, &mut out);
            self.is_done_at(host, id, now, &mut out);
        }
        // It receives no more messages.
        out.retain(|output| !matches!(output, Output::Send { to, .. } if to == host));
        out
    }

    /// Considers the remaining work of `host` for a move as done.
    fn is_done_at(&mut self, host: &HostName, id: MoveId, now: Duration, out: &mut Vec<Output>) {
        let Some(record) = self.snapshot.moves.get(&id) else { return };
        let report = match record.stage {
            Stage::Began | Stage::Committed => return,
            Stage::Confirmed => Report::Destroyed,
            Stage::RolledBack { .. } | Stage::Saved => Report::RolledBack,
        };
        let vid = record.vid;
        self.report(host, id, vid, report, now, out);
    }
}
