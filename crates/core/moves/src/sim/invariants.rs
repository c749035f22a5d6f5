//! Invariants: after every action, and at the end of a run.

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
                self.violated(format!("{running} copies of {vid} run"));
            }
            if !self.ended.contains(&vid) && !self.nodes.iter().any(|node| node.engine.could_run(vid)) {
                self.violated(format!("no copy of {vid} is left that could run"));
            }
        }
    }

    /// The missing memory of a running copy exists in the stopped copy.
    fn check_left_behind(&mut self) {
        let needed = self.needed();
        let is_bereft = |vid: &&Vid| {
            let lacks = self.nodes.iter().any(|node| node.engine.lacks(**vid));
            lacks && !self.ended.contains(vid) && !needed.iter().any(|(_, of)| of == *vid)
        };
        if let Some(vid) = self.vids.iter().find(is_bereft).copied() {
            self.violated(format!("{vid} runs, but its missing memory does not exist anywhere"));
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

    /// Before a suspension for a move to a host: the present daemon has sent the memory for that move.
    pub(super) fn check_may_be_suspended(&mut self, node: usize, vid: Vid) {
        let Node { disk, engine, .. } = &mut *self.nodes[node];
        let copied = engine.copied.remove(&vid);
        if let Some(Role::Source { id, destination: Side::Host(_) }) = disk.get(&vid).map(|entry| &entry.role)
            && copied != Some(*id)
        {
            self.violated(format!("{vid} is suspended before its memory has been sent"));
        }
    }

    /// Before a copy runs: the store locates it here, no other copy has run since its state
    /// was saved, and a suspended source runs only after a recorded rollback.
    pub(super) fn check_may_run(&mut self, node: usize, vid: Vid, operation: &Operation) {
        let here = &self.nodes[node];
        let place = self.store.instances.get(&vid).map(|instance| &instance.host);
        if place.is_some_and(|place| *place != here.name) {
            self.violated(format!("{vid} would run on a host that is not its location"));
            return;
        }
        let Some(copy) = here.engine.copies.get(&vid) else { return };
        if copy.stale {
            self.violated(format!("{vid} would run again from a stale state"));
            return;
        }
        let continued = matches!(operation, Operation::Continue { .. }) && copy.state != CopyState::Running;
        if continued && self.last_move_is_undecided(node, vid) {
            self.violated(format!("{vid} would resume without a recorded rollback"));
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

    /// All moves of a group are committed, or none: the durable records count.
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
            self.violated("a group has both committed and rolled-back moves");
        }
    }

    /// Before instances are recorded as saved: each has been stopped, and all its images exist.
    pub(super) fn check_saved(&mut self, record: &Record) {
        let Record::MovesSaved { ids } = record else { return };
        for record in ids.iter().filter_map(|id| self.store.moves.get(id)).cloned().collect::<Vec<_>>() {
            let MoveRecord { vid, source, destination, .. } = record;
            let Side::Images(directory) = destination else {
                return self.violated(format!("{vid} is saved instead of moved"));
            };
            let at_source = self.nodes.iter().find(|node| source.is(&node.name));
            if !at_source.is_some_and(|node| node.copy_is(vid, CopyState::Stopped)) {
                self.violated(format!("{vid} resumes before its whole group is saved"));
            }
            if !self.written.contains(&directory) {
                self.violated(format!("{vid} is recorded as saved, but its images do not exist"));
            }
            self.saved.insert(vid, directory);
        }
    }

    /// A restored instance is no longer ended.
    pub(super) fn note_restored(&mut self, record: &Record) {
        let Record::MovesCommitted { ids } = record else { return };
        for record in ids.iter().filter_map(|id| self.store.moves.get(id)) {
            if record.source.host().is_none() {
                self.ended.remove(&record.vid);
                self.tally.restored += 1;
            }
        }
    }

    /// Whether an instance exists only as a checkpoint.
    pub(super) fn can_restore(&self, vid: Vid) -> bool {
        self.saved.contains_key(&vid) && !self.store.instances.contains_key(&vid)
    }

    /// The coordinator's state equals its durable state.
    pub(super) fn check_coordinator_replays(&mut self) {
        let sabotaged =
            matches!(self.sabotage, Sabotage::CommitIsNotDurable | Sabotage::GroupIsCommittedInParts);
        if !sabotaged && self.coordinator.as_ref().is_some_and(|it| *it.snapshot() != *self.store) {
            self.violated("the coordinator's journal does not replay to its state");
        }
    }

    /// The node's state equals its durable state.
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

    /// A violated final invariant, if any.
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

    /// Why an instance is not in exactly one place, without remains elsewhere, if so.
    fn misplaced(&self, vid: Vid) -> Option<String> {
        let place = self.store.instances.get(&vid).map(|instance| instance.host.clone());
        if place.is_some() == self.ended.contains(&vid) {
            return Some(format!("{vid} has ended but is still known, or the reverse"));
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
