//! Instances and moves as far as they are durable.

use std::collections::BTreeMap;

use fabric::Vid;
use moves::MoveId;
use moves::coordinator::{Coordinator, MoveView};
use moves::journal::{Instance, MoveRecord, Record, Snapshot};
use moves::progress::{Event, Phase};

/// The instances and moves that a record removes.
#[derive(Default)]
pub struct Removed {
    /// The instance that has ended.
    pub instance: Option<Instance>,
    /// The move that is over.
    pub of_move: Option<MoveRecord>,
}

/// The sum of the durable records. The state machine is ahead of it while a record is being written.
#[derive(Default)]
pub struct Ledger {
    snapshot: Snapshot,
    /// How far each move is, and whether it keeps others of its instance from beginning.
    moves: BTreeMap<MoveId, (Phase, bool)>,
}

impl Ledger {
    pub(super) fn new(snapshot: Snapshot) -> Self {
        Self { snapshot, moves: BTreeMap::new() }
    }

    /// The instances and moves.
    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// All moves that are not over.
    pub fn moves(&self) -> impl Iterator<Item = MoveView<'_>> {
        self.snapshot.moves.iter().filter_map(|(id, record)| {
            let (phase, is_under_way) = *self.moves.get(id)?;
            Some(MoveView { id: *id, record, phase, is_under_way })
        })
    }

    /// The instance called `name`.
    pub fn find(&self, name: &str) -> Option<(Vid, &Instance)> {
        let found = self.snapshot.instances.iter().find(|(_, instance)| instance.name == name);
        found.map(|(vid, instance)| (*vid, instance))
    }

    /// Applies a durable record, and returns what it removes.
    pub(super) fn apply(&mut self, record: &Record) -> Removed {
        let mut removed = Removed::default();
        match record {
            Record::InstanceEnded { vid, .. } => removed.instance = self.snapshot.instances.get(vid).cloned(),
            Record::MoveEnded { id } => removed.of_move = self.snapshot.moves.get(id).cloned(),
            _ => {}
        }
        self.snapshot.apply(record);
        removed
    }

    /// Stores the progress of a move. Tasks that are notified of it find it here.
    pub(super) fn progressed(&mut self, id: MoveId, event: &Event) {
        let (phase, is_under_way) = self.moves.entry(id).or_insert((Phase::Prepare, true));
        match event {
            Event::Phase { phase: begun, .. } => *phase = *begun,
            Event::Ended { .. } => *is_under_way = false,
            _ => {}
        }
    }

    /// Updates the progress of moves from `machine`, all of whose records are durable.
    pub(super) fn follow(&mut self, machine: &Coordinator) {
        self.moves = machine.moves().map(|view| (view.id, (view.phase, view.is_under_way))).collect();
    }
}
