//! What must hold: after every action, and at the end of a run.

use std::collections::BTreeMap;

use fabric::Vid;

use super::Sabotage;
use super::engine::CopyState;
use super::world::{Node, World};
use crate::entry::Role;
use crate::journal::{MoveRecord, Record, Stage};
use crate::node::Operation;
use crate::progress::Phase;
use crate::{HostName, MoveId, Side};

impl World {
    pub(super) fn violated(&mut self, what: impl Into<String>) {
        self.violation.get_or_insert(what.into());
    }

    /// After every action: never two running copies, and always one that could run.
    pub(super) fn check(&mut self) {
        if let Some(misused) = self.nodes.iter().find_map(|node| node.engine.misused) {
            self.violated(misused);
        }
        self.check_precopied();
        self.check_left_behind();
        for vid in self.vids.clone() {
            let running = self.nodes.iter().filter(|node| node.copy_is(vid, CopyState::Running)).count();
            if running > 1 {
                self.violated(format!("{vid} runs {running} times"));
            }
            if !self.ended.contains(&vid) && !self.nodes.iter().any(|node| node.engine.could_run(vid)) {
                self.violated(format!("no copy of {vid} is left that could run"));
            }
        }
    }

    /// What a copy that runs lacks of its memory is there where it was stopped.
    fn check_left_behind(&mut self) {
        let needed = self.needed();
        let is_bereft = |vid: &&Vid| {
            let lacks = self.nodes.iter().any(|node| node.engine.lacks(**vid));
            lacks && !self.ended.contains(vid) && !needed.iter().any(|(_, of)| of == *vid)
        };
        if let Some(vid) = self.vids.iter().find(is_bereft).copied() {
            self.violated(format!("{vid} runs, and what it lacks of its memory is nowhere"));
        }
    }

    /// In pre-copy an instance runs, unless it has ended.
    fn check_precopied(&mut self) {
        let moves = self.coordinator.iter().flat_map(|coordinator| coordinator.moves());
        let mut precopied = moves.filter(|view| view.phase == Phase::Precopy).map(|view| view.record);
        let stands_still = |record: &&MoveRecord| {
            let source = self.nodes.iter().find(|node| record.source.is(&node.name));
            let copy = source.and_then(|node| node.engine.copies.get(&record.vid));
            copy.is_some_and(|copy| copy.state != CopyState::Running)
        };
        let stopped = precopied.find(stands_still).map(|record| record.vid);
        drop(precopied);
        if let Some(vid) = stopped {
            self.violated(format!("{vid} does not run while its memory is being sent"));
        }
    }

    /// Before an instance is suspended for a move to a host: its memory was sent for that, by the daemon that is there now.
    pub(super) fn check_may_be_suspended(&mut self, node: usize, vid: Vid) {
        let Node { disk, engine, .. } = &mut *self.nodes[node];
        let copied = engine.copied.remove(&vid);
        if let Some(Role::Source { id, destination: Side::Host(_) }) = disk.get(&vid).map(|entry| &entry.role)
            && copied != Some(*id)
        {
            self.violated(format!("{vid} is suspended, and its memory has not been sent"));
        }
    }

    /// Before a copy runs: the store says that it is here, nothing else has run since its state
    /// was taken, and a source that was suspended runs only on a recorded rollback.
    pub(super) fn check_may_run(&mut self, node: usize, vid: Vid, operation: &Operation) {
        let here = &self.nodes[node];
        let place = self.store.instances.get(&vid).map(|instance| &instance.host);
        if place.is_some_and(|place| *place != here.name) {
            self.violated(format!("{vid} is made to run on a host where the store does not have it"));
            return;
        }
        let Some(copy) = here.engine.copies.get(&vid) else { return };
        if copy.stale {
            self.violated(format!("{vid} runs again from a state that others have seen to be past"));
            return;
        }
        let continued = matches!(operation, Operation::Continue { .. }) && copy.state != CopyState::Running;
        if continued && self.last_move_is_undecided(node, vid) {
            self.violated(format!("{vid} runs on without a recorded rollback"));
        }
    }

    fn last_move_is_undecided(&self, node: usize, vid: Vid) -> bool {
        let Some(Role::Host { last_move, .. }) = self.nodes[node].disk.get(&vid).map(|entry| &entry.role)
        else {
            return true;
        };
        self.store.moves.get(last_move).is_some_and(|record| record.stage == Stage::Began)
    }

    /// The source's copy is destroyed only after the destination has confirmed.
    pub(super) fn check_destroyed(&mut self, id: MoveId) {
        if self.store.moves.get(&id).is_some_and(|record| record.stage != Stage::Confirmed) {
            self.violated(format!("the source of {id} is destroyed before the destination has confirmed"));
        }
    }

    /// Of moves that are made together all are committed, or none is: what is durable is what counts.
    pub(super) fn check_groups(&mut self, record: &Record) {
        let (ids, is_committed) = match record {
            Record::MovesCommitted { ids } => (ids.clone(), true),
            Record::MoveRolledBack { id, .. } => ([*id].into(), false),
            _ => return,
        };
        let decided: Vec<_> = ids
            .into_iter()
            .filter(|id| {
                self.store.moves.get(id).is_some_and(|record| match record.stage {
                    Stage::Committed => is_committed,
                    Stage::RolledBack { .. } => !is_committed,
                    _ => false,
                })
            })
            .collect();
        for group in &mut self.groups {
            for id in &decided {
                group.entry(*id).and_modify(|decision| *decision = Some(is_committed));
            }
        }
        let is_split = |group: &BTreeMap<MoveId, Option<bool>>| {
            let made = |how| group.values().any(|decision| *decision == Some(how));
            made(true) && made(false)
        };
        if self.groups.iter().any(is_split) {
            self.violated("of moves that are made together one is committed, and another is rolled back");
        }
    }

    /// Before instances are written down as saved: each has been stopped since, and all its images are there.
    pub(super) fn check_saved(&mut self, record: &Record) {
        let Record::MovesSaved { ids } = record else { return };
        for record in ids.iter().filter_map(|id| self.store.moves.get(id)).cloned().collect::<Vec<_>>() {
            let MoveRecord { vid, source, destination, .. } = record;
            let Side::Images(directory) = destination else {
                return self.violated(format!("{vid} is saved, and was to be moved"));
            };
            let at_source = self.nodes.iter().find(|node| source.is(&node.name));
            if !at_source.is_some_and(|node| node.copy_is(vid, CopyState::Stopped)) {
                self.violated(format!("{vid} runs on before all are saved with which it is"));
            }
            if !self.written.contains(&directory) {
                self.violated(format!("{vid} is said to be saved, and its images are not there"));
            }
            self.saved.insert(vid, directory);
        }
    }

    /// What is restored has not ended any more.
    pub(super) fn note_restored(&mut self, record: &Record) {
        let Record::MovesCommitted { ids } = record else { return };
        for record in ids.iter().filter_map(|id| self.store.moves.get(id)) {
            if record.source.host().is_none() {
                self.ended.remove(&record.vid);
                self.tally.restored += 1;
            }
        }
    }

    /// Whether an instance has a checkpoint, and nothing else.
    pub(super) fn can_restore(&self, vid: Vid) -> bool {
        self.saved.contains_key(&vid) && !self.store.instances.contains_key(&vid)
    }

    /// What is durable is what the coordinator works with.
    pub(super) fn check_coordinator_replays(&mut self) {
        let sabotaged =
            matches!(self.sabotage, Sabotage::CommitIsNotDurable | Sabotage::GroupIsCommittedInParts);
        if !sabotaged && self.coordinator.as_ref().is_some_and(|it| *it.image() != *self.store) {
            self.violated("the coordinator's journal does not replay to its state");
        }
    }

    /// What is durable is what the node works with.
    pub(super) fn check_node_replays(&mut self, node: usize) {
        let node = &self.nodes[node];
        let sabotaged = matches!(
            self.sabotage,
            Sabotage::ReleaseIsNotDurable | Sabotage::LastMoveIsNotDurable | Sabotage::LackIsNotDurable
        );
        if !sabotaged && node.agent.as_ref().is_some_and(|agent| !agent.entries().eq(node.entries())) {
            self.violated(format!("the journal of {} does not replay to its state", node.name));
        }
    }

    /// What is not yet as it must be at the end of a run, if anything.
    pub(super) fn unsettled(&self) -> Option<String> {
        if let Some(id) = self.store.moves.keys().next() {
            return Some(format!("{id} does not end"));
        }
        let waiting = self.nodes.iter().find(|node| !node.waiting.is_empty());
        if let Some(node) = waiting {
            return Some(format!("a peer on {} is not released", node.name));
        }
        self.vids.iter().find_map(|vid| self.misplaced(*vid))
    }

    /// Whether an instance is not in exactly one place with nothing of it elsewhere.
    fn misplaced(&self, vid: Vid) -> Option<String> {
        let place = self.store.instances.get(&vid).map(|instance| instance.host.clone());
        if place.is_some() == self.ended.contains(&vid) {
            return Some(format!("{vid} has ended and is still known, or the other way round"));
        }
        self.nodes.iter().find_map(|node| node.wrong(vid, place.as_ref()))
    }
}

impl Node {
    pub(super) fn copy_is(&self, vid: Vid, state: CopyState) -> bool {
        self.engine.copies.get(&vid).is_some_and(|copy| copy.state == state)
    }

    fn entries(&self) -> impl Iterator<Item = (Vid, &crate::entry::Entry)> {
        self.disk.iter().map(|(vid, entry)| (*vid, entry))
    }

    fn wrong(&self, vid: Vid, place: Option<&HostName>) -> Option<String> {
        let here = place == Some(&self.name);
        if here && self.engine.lacks(vid) {
            return Some(format!("{vid} does not get all its memory on {}", self.name));
        }
        if here && !(self.copy_is(vid, CopyState::Running) && self.agent.as_ref()?.runs(vid)) {
            return Some(format!("{vid} does not run on {}", self.name));
        }
        let images = self.engine.images.get(&vid).is_some_and(|images| !images.released);
        let left = self.engine.copies.contains_key(&vid) || self.disk.contains_key(&vid) || images;
        (left && !here).then(|| format!("something of {vid} is left on {}", self.name))
    }
}
