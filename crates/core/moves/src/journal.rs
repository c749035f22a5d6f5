//! The coordinator's durable state: the location of every instance, and the moves in progress.

use std::collections::{BTreeMap, BTreeSet};

use fabric::{Epoch, FabricId, Vid};
use serde::{Deserialize, Serialize};

use crate::placement::Placement;
use crate::{HostName, MoveId, Side};

/// An instance, as the coordinator stores it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Instance {
    /// Its name.
    pub name: String,
    /// Its fabric.
    pub fabric: FabricId,
    /// Its group, if any.
    pub group: Option<String>,
    /// Its labels, anti-affinity and cool-down.
    pub placement: Placement,
    /// Its location.
    pub host: HostName,
    /// Its epoch.
    pub epoch: Epoch,
    /// Its blueprint, which is opaque here.
    pub spec: Vec<u8>,
}

/// How an instance ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Exit {
    /// Its command ended, as a shell reports it: the exit code, or 128 and the signal's number.
    Code(i32),
    /// Its processes are gone, and their exit was not observed.
    Lost {
        /// The known cause.
        reason: String,
    },
    /// It never ran; the client that started it knows the reason.
    NotStarted,
}

/// A move in progress.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MoveRecord {
    /// Which instance.
    pub vid: Vid,
    /// The source.
    pub source: Side,
    /// The destination.
    pub destination: Side,
    /// The instance's epoch before the move.
    pub epoch: Epoch,
    /// Whether it is a dry run.
    pub dry_run: bool,
    /// Whether it is a post-copy move.
    pub post_copy: bool,
    /// Its stage.
    pub stage: Stage,
}

impl MoveRecord {
    /// The hosts of the move: two, or the only one of a checkpoint or restore.
    pub fn hosts(&self) -> impl Iterator<Item = &HostName> {
        [&self.source, &self.destination].into_iter().filter_map(Side::host)
    }

    /// Whether it is neither a checkpoint nor a restore.
    #[must_use]
    pub fn is_between_hosts(&self) -> bool {
        self.hosts().count() == 2
    }
}

/// The decisions about a move.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Stage {
    /// No decision: it can still be rolled back.
    Began,
    /// The instance's location is the destination; the move completes.
    Committed,
    /// The destination's copy runs with all its memory; the source's copy is being destroyed.
    Confirmed,
    /// The source resumes the instance; the destination cleans up.
    RolledBack {
        /// The reasons.
        reasons: Vec<String>,
    },
    /// The images of a checkpoint are complete; the source resumes the instance.
    Saved,
}

/// A change of the coordinator's durable state. Each is one durable transaction.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Record {
    /// An instance is about to start on its host.
    InstanceAdded {
        /// Its VID, which no other existing instance has.
        vid: Vid,
        /// The instance.
        instance: Instance,
    },
    /// An instance has ended.
    InstanceEnded {
        /// Which instance.
        vid: Vid,
        /// How it ended.
        exit: Exit,
    },
    /// A move begins.
    MoveBegan {
        /// Its number, higher than all previous ones.
        id: MoveId,
        /// In [`Stage::Began`].
        record: MoveRecord,
    },
    /// The commit of a group's moves, of at least one: the instances' locations and epochs change with the
    /// moves' stages.
    MovesCommitted {
        /// Which moves.
        ids: BTreeSet<MoveId>,
    },
    /// The images of a group are complete.
    MovesSaved {
        /// Which moves.
        ids: BTreeSet<MoveId>,
    },
    /// The destination's copy runs with all its memory.
    MoveConfirmed {
        /// Which move.
        id: MoveId,
    },
    /// A move was rolled back before its commit.
    MoveRolledBack {
        /// Which move.
        id: MoveId,
        /// The reasons.
        reasons: Vec<String>,
    },
    /// A move has no remaining work.
    MoveEnded {
        /// Which move.
        id: MoveId,
    },
}

/// The coordinator's durable state at one moment: the result of its records.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Snapshot {
    /// All instances.
    pub instances: BTreeMap<Vid, Instance>,
    /// All moves in progress.
    pub moves: BTreeMap<MoveId, MoveRecord>,
    /// The highest number of a move.
    pub last_move: MoveId,
    /// The highest epoch of any instance.
    pub last_epoch: Epoch,
}

impl Snapshot {
    /// Applies one record. A record about an unknown instance or move changes nothing.
    pub fn apply(&mut self, record: &Record) {
        match record {
            Record::InstanceAdded { vid, instance } => {
                self.last_epoch = self.last_epoch.max(instance.epoch);
                self.instances.insert(*vid, instance.clone());
            }
            Record::InstanceEnded { vid, .. } => {
                self.instances.remove(vid);
            }
            Record::MoveBegan { id, record } => {
                self.last_move = self.last_move.max(*id);
                self.moves.insert(*id, record.clone());
            }
            Record::MovesCommitted { ids } => ids.iter().for_each(|id| self.commit(*id)),
            Record::MovesSaved { ids } => ids.iter().for_each(|id| self.set_stage(*id, Stage::Saved)),
            Record::MoveConfirmed { id } => self.set_stage(*id, Stage::Confirmed),
            Record::MoveRolledBack { id, reasons } => {
                self.set_stage(*id, Stage::RolledBack { reasons: reasons.clone() });
            }
            Record::MoveEnded { id } => {
                self.moves.remove(id);
            }
        }
    }

    fn commit(&mut self, id: MoveId) {
        let Some(record) = self.moves.get_mut(&id) else { return };
        record.stage = Stage::Committed;
        if let (Some(instance), Some(host)) = (self.instances.get_mut(&record.vid), record.destination.host())
        {
            instance.host = host.clone();
            instance.epoch = record.epoch.next();
            self.last_epoch = self.last_epoch.max(instance.epoch);
        }
    }

    fn set_stage(&mut self, id: MoveId, stage: Stage) {
        if let Some(record) = self.moves.get_mut(&id) {
            record.stage = stage;
        }
    }
}
