//! The moves that users can follow, the moves that are over, and estimates from these.

use std::collections::{BTreeMap, HashMap};

use api::{Failure, MoveFigures};
use fabric::Vid;
use moves::journal::{MoveRecord, Record, Snapshot};
use moves::progress::Event as Progress;
use moves::{HostName, MoveId};
use rpc::wire::Measurement;
use store::{EndedMove, MAX_ENDED_MOVES};
use tokio::sync::mpsc;

use crate::core::{Base, Feature, Recorded};
use crate::estimate::{Estimate, Experience};
use crate::follow::{Events, Follow};
use crate::occurrences;
use crate::statistics::Statistics;

/// Moves with followers or reports, and the experience from them.
#[derive(Default)]
pub struct Follows {
    /// Moves of which a user can still get a report.
    follows: HashMap<MoveId, Follow>,
    /// The last moves that are over.
    over: BTreeMap<MoveId, MoveRecord>,
    statistics: Statistics,
    experience: Experience,
}

impl Feature for Follows {
    fn recorded(&mut self, recorded: &Recorded<'_>, _: &Base) {
        match recorded.record {
            Record::MovesCommitted { ids } => {
                for id in ids {
                    if let Some(follow) = self.follows.get_mut(id) {
                        follow.committed(recorded.took);
                    }
                }
            }
            Record::MoveEnded { id } => {
                self.over.extend(recorded.removed.of_move.clone().map(|record| (*id, record)));
                if self.over.len() as u64 > MAX_ENDED_MOVES {
                    self.over.pop_first();
                }
            }
            Record::InstanceEnded { vid, .. } => self.ends(*vid),
            _ => {}
        }
    }

    fn progressed(&mut self, id: MoveId, event: &Progress, base: &Base) {
        let Some(follow) = self.follows.get_mut(&id) else { return };
        if follow.tell(event.clone()) {
            if let Some(report) = follow.report() {
                base.log().note(&occurrences::move_over(id, report));
                self.statistics.moved(report);
                self.experience.learn_from(report);
            }
            self.follows.remove(&id);
        }
    }
}

impl Follows {
    /// Follows the moves in `snapshot`, which a previous coordinator has begun.
    pub fn load(snapshot: &Snapshot, over: Vec<EndedMove>) -> Self {
        let follows =
            snapshot.moves.iter().filter_map(|(id, record)| Some((*id, Follow::again(snapshot, record)?)));
        let over = over.into_iter().map(|ended| (ended.id, ended.record));
        Self { follows: follows.collect(), over: over.collect(), ..Self::default() }
    }

    /// Follows a move that has just begun.
    pub fn add(&mut self, id: MoveId, follow: Follow) {
        self.follows.insert(id, follow);
    }

    /// Whether the move can still be followed.
    pub fn contains(&self, id: MoveId) -> bool {
        self.follows.contains_key(&id)
    }

    /// The events of a move from now on, if it can still be followed.
    pub fn listen(&mut self, id: MoveId) -> Option<Events> {
        self.follows.get_mut(&id).map(Follow::listen)
    }

    /// As [`Follows::listen`]; without such a move no event ever comes.
    pub fn listen_to(&mut self, id: Option<MoveId>) -> Events {
        id.and_then(|id| self.listen(id)).unwrap_or_else(|| mpsc::unbounded_channel().1)
    }

    /// The record of a move that is over, as far as it is remembered.
    pub fn over(&self, id: MoveId) -> Option<&MoveRecord> {
        self.over.get(&id)
    }

    /// Notes a blocker of a dry run that the hosts do not know.
    pub fn hinder(&mut self, id: MoveId, obstacle: Failure) {
        if let Some(follow) = self.follows.get_mut(&id) {
            follow.hinder(obstacle);
        }
    }

    /// Records that the instance has ended, or will end after its move.
    pub fn ends(&mut self, vid: Vid) {
        self.follows.values_mut().for_each(|follow| follow.ends(vid));
    }

    /// Adds a measurement of a node that takes part in the move.
    pub fn measured(&mut self, base: &Base, from: &HostName, id: MoveId, measurement: Measurement) {
        let takes_part = base.snapshot().moves.get(&id);
        let takes_part = takes_part.is_some_and(|record| record.hosts().any(|host| host == from));
        if let Some(follow) = self.follows.get_mut(&id).filter(|_| takes_part) {
            follow.measured(measurement);
        }
    }

    /// The estimate for a move of so many bytes.
    pub fn estimate(&self, bytes: u64) -> Option<Estimate> {
        self.experience.estimate(bytes)
    }

    /// Learns from a move that was made before the coordinator started.
    pub fn learn(&mut self, figures: MoveFigures) {
        self.experience.learn(figures);
    }

    /// The counts of moves.
    pub fn statistics(&self) -> &Statistics {
        &self.statistics
    }
}
