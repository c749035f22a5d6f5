//! Detects hosts that do not answer.

use std::time::Duration;

use super::move_progress::MoveProgress;
use super::{Coordinator, Output};
use crate::due::Due;
use crate::journal::MoveRecord;
use crate::progress::{Event, Phase, Silence};
use crate::{HostName, MoveId};

/// How long a host may be silent before the user gets a message. The check takes up to a second for transient blockers.
const PATIENCE: Duration = Duration::from_secs(2);

/// How long the host of a failed restore may be silent before the restore is over for the user.
const PATIENCE_WITH_RESTORES: Duration = Duration::from_secs(1);

impl Coordinator {
    /// Tells the user which hosts the move waits for.
    pub(super) fn tell_silence(&self, id: MoveId, now: Duration, out: &mut Vec<Output>) {
        let (Some(progress), Some(record)) = (self.progress.get(&id), self.snapshot.moves.get(&id)) else {
            return;
        };
        for (host, heard) in progress.awaited(record) {
            if Due::after(heard.0, PATIENCE).reached(now) {
                let event = Event::Waiting { host: host.clone(), silence: self.silence(id, record, host) };
                out.push(Output::Event { id, event });
            }
        }
    }

    /// Tells the user that a restore has failed, although its host has not confirmed its cleanup.
    pub(super) fn tell_unanswered_restore(&mut self, id: MoveId, now: Duration, out: &mut Vec<Output>) {
        let is_silent = |progress: &MoveProgress| {
            Due::after(progress.destination_heard.0, PATIENCE_WITH_RESTORES).reached(now)
        };
        if self.progress.get(&id).is_some_and(is_silent) {
            self.tell_given_up(id, now, out);
        }
    }

    fn silence(&self, id: MoveId, record: &MoveRecord, host: &HostName) -> Silence {
        if !self.linked.contains(host) {
            return Silence::NotConnected;
        }
        if let Some(debt) = self.debt(id, record).filter(|_| record.destination.is(host)) {
            return Silence::CleaningUp(debt);
        }
        let suspends = self.progress.get(&id).is_some_and(|progress| progress.phase == Phase::Suspend);
        if suspends && record.source.is(host) { Silence::MayQueue } else { Silence::NoAnswer }
    }
}
