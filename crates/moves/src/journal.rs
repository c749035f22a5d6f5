//! What the coordinator must remember: every instance's location, and the moves that are not over.

use std::collections::{BTreeMap, BTreeSet};

use fabric::{Epoch, FabricId, Vid};
use serde::{Deserialize, Serialize};

use crate::placement::Placement;
use crate::{HostName, MoveId, Side};

/// An instance, as the coordinator knows it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Instance {
    /// The name that its user gave it.
    pub name: String,
    /// The fabric to which it belongs.
    pub fabric: FabricId,
    /// The group with which it can be moved.
    pub group: Option<String>,
    /// What decides which others it can share a host with.
    pub placement: Placement,
    /// Where it is.
    pub host: HostName,
    /// Its moves so far.
    pub epoch: Epoch,
    /// How to make it, as its node wrote it; opaque here.
    pub spec: Vec<u8>,
}

/// How an instance ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Exit {
    /// Its command ended, as a shell reports it: the exit code, or 128 and the signal's number.
    Code(i32),
    /// Its processes are gone and nobody saw them end.
    Lost {
        /// What is known about it.
        reason: String,
    },
    /// It never ran: whoever asked for it has been told why.
    NotStarted,
}

/// A move that is not over.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MoveRecord {
    /// Which instance.
    pub vid: Vid,
    /// Where it comes from.
    pub source: Side,
    /// Where it goes.
    pub destination: Side,
    /// The instance's epoch before the move.
    pub epoch: Epoch,
    /// Whether only the checks are made.
    pub dry_run: bool,
    /// Whether the instance runs at the destination before all its memory is there.
    pub post_copy: bool,
    /// What is decided.
    pub stage: Stage,
}

impl MoveRecord {
    /// The hosts that take part: two, or the only one of a checkpoint or restore.
    pub fn hosts(&self) -> impl Iterator<Item = &HostName> {
        [&self.source, &self.destination].into_iter().filter_map(Side::host)
    }

    /// Whether it is no checkpoint, and no restore of one.
    #[must_use]
    pub fn is_between_hosts(&self) -> bool {
        self.hosts().count() == 2
    }
}

/// What is decided about a move.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Stage {
    /// Nothing yet: it can still be rolled back.
    Began,
    /// The instance's place is the destination; the move goes forward.
    Committed,
    /// The destination's copy runs, with all its memory; the source's is to be destroyed.
    Confirmed,
    /// The source runs on; the destination cleans up.
    RolledBack {
        /// Why, in words.
        reasons: Vec<String>,
    },
    /// The images of a checkpoint are complete; the source runs on.
    Saved,
}

/// A change of what the coordinator remembers. Each is one durable transaction.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Record {
    /// An instance is about to be started on its host.
    InstanceAdded {
        /// Its identity, never used by another instance that still exists.
        vid: Vid,
        /// What is known about it.
        instance: Instance,
    },
    /// An instance is no more.
    InstanceEnded {
        /// Which instance.
        vid: Vid,
        /// How it ended.
        exit: Exit,
    },
    /// A move begins.
    MoveBegan {
        /// Its number: higher than all before.
        id: MoveId,
        /// In [`Stage::Began`].
        record: MoveRecord,
    },
    /// The commit point of moves that are made together, of one at least: the instances' hosts and epochs change with the
    /// moves' stages.
    MovesCommitted {
        /// Which moves.
        ids: BTreeSet<MoveId>,
    },
    /// The images of instances that are saved together are all complete.
    MovesSaved {
        /// Which moves.
        ids: BTreeSet<MoveId>,
    },
    /// The destination's copy runs, with all its memory.
    MoveConfirmed {
        /// Which move.
        id: MoveId,
    },
    /// A move is given up before its commit.
    MoveRolledBack {
        /// Which move.
        id: MoveId,
        /// Why, in words.
        reasons: Vec<String>,
    },
    /// Nothing is left to do for a move.
    MoveEnded {
        /// Which move.
        id: MoveId,
    },
}

/// All that the coordinator remembers: what its records amount to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Image {
    /// Every instance.
    pub instances: BTreeMap<Vid, Instance>,
    /// Every move that is not over.
    pub moves: BTreeMap<MoveId, MoveRecord>,
    /// The highest number of a move so far.
    pub last_move: MoveId,
    /// The highest epoch of any instance so far.
    pub last_epoch: Epoch,
}

impl Image {
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
