//! Performs the outputs of the state machines as the daemons do, with the rules that a sabotage breaks.

use fabric::Vid;

use super::Sabotage;
use super::engine::UnderWay;
use super::world::{Envelope, World};
use crate::entry::{Arrival, NodeRecord, Role};
use crate::journal::Record;
use crate::node::{self, Operation};
use crate::protocol::{Directive, Report, ToCoordinator, ToNode};
use crate::{HostName, MoveId, coordinator};

impl World {
    /// Performs the coordinator's outputs.
    pub(super) fn coordinator_does(&mut self, out: Vec<coordinator::Output>) {
        for output in out {
            if self.crashes_now() {
                return self.crash_coordinator();
            }
            match output {
                coordinator::Output::Record(record) => self.store_record(&record),
                coordinator::Output::Send { to, message } => self.send_to_node(&to, message),
                coordinator::Output::Event { .. } | coordinator::Output::InstanceEnded(_) => {}
            }
        }
        self.check_coordinator_replays();
    }

    fn store_record(&mut self, record: &Record) {
        match record {
            Record::MovesCommitted { ids } => {
                self.tally.committed += ids.len() as u64;
                if ids.len() > 1 {
                    self.tally.groups += 1;
                }
            }
            Record::MoveRolledBack { .. } => self.tally.rolled_back += 1,
            Record::MovesSaved { ids } => self.tally.saved += ids.len() as u64,
            _ => {}
        }
        self.check_saved(record);
        match (self.sabotage, record) {
            (Sabotage::CommitIsNotDurable, Record::MovesCommitted { .. }) => {}
            (Sabotage::GroupIsCommittedInParts, Record::MovesCommitted { ids }) => {
                self.store.apply(&Record::MovesCommitted { ids: ids.first().copied().into_iter().collect() });
            }
            _ => self.store.apply(record),
        }
        self.check_groups(record);
        self.note_restored(record);
    }

    fn send_to_node(&mut self, to: &HostName, message: ToNode) {
        let Some(place) = self.nodes.iter().position(|node| node.name == *to) else { return };
        if self.sabotage == Sabotage::PeersAreForgotten && matches!(message, ToNode::Located { .. }) {
            return;
        }
        if self.sabotage == Sabotage::DestroyBeforeConfirmation {
            self.destroy_too_early(&message);
        }
        if self.nodes[place].linked {
            self.network.insert(Envelope::ToNode { to: place, message });
        }
    }

    fn destroy_too_early(&mut self, message: &ToNode) {
        let ToNode::Move { id, vid, directive: Directive::Resume } = message else { return };
        let Some(record) = self.store.moves.get(id) else { return };
        let Some(to) = self.nodes.iter().position(|node| record.source.is(&node.name)) else { return };
        let message = ToNode::Move { id: *id, vid: *vid, directive: Directive::Destroy };
        self.network.insert(Envelope::ToNode { to, message });
    }

    /// Performs a node's outputs.
    pub(super) fn node_does(&mut self, node: usize, out: Vec<node::Output>) {
        for output in out {
            if self.crashes_now() {
                return self.crash_node(node, false);
            }
            let output = self.kept_back(output);
            match output {
                node::Output::Record(record) => self.write_entry(node, record),
                node::Output::Send(message) if self.nodes[node].linked => {
                    self.network.insert(Envelope::ToCoordinator { from: node, message });
                }
                node::Output::Send(_) => {}
                node::Output::Operate { vid, operation } => self.operate(node, vid, operation),
                node::Output::Cancel { vid } => {
                    if let Some(under_way) = self.nodes[node].engine.under_way.get_mut(&vid) {
                        under_way.cancelled = true;
                    }
                }
                node::Output::Located { vid, location } => {
                    if location.is_some_and(|location| location.moving) {
                        self.tally.peers += 1;
                    } else {
                        self.nodes[node].waiting.remove(&vid);
                    }
                }
                node::Output::Stays { vid } => {
                    self.nodes[node].engine.copied.remove(&vid);
                }
                node::Output::Farewell { vid } => {
                    self.nodes[node].engine.copied.remove(&vid);
                    self.nodes[node].engine.exits.remove(&vid);
                    self.nodes[node].engine.images.remove(&vid);
                    self.nodes[node].engine.rooms.remove(&vid);
                }
            }
        }
        self.check_node_replays(node);
    }

    /// Omits a node's report of missing memory, as a sabotage.
    fn kept_back(&self, output: node::Output) -> node::Output {
        match output {
            node::Output::Send(ToCoordinator::Move { id, vid, report: Report::Incomplete })
                if self.sabotage == Sabotage::MemoryIsLeftBehind =>
            {
                node::Output::Send(ToCoordinator::Move { id, vid, report: Report::Running })
            }
            other => other,
        }
    }

    fn write_entry(&mut self, node: usize, record: NodeRecord) {
        match record {
            NodeRecord::Set { vid, mut entry } => {
                if let (Role::Host { last_move, .. }, Sabotage::LastMoveIsNotDurable) =
                    (&mut entry.role, self.sabotage)
                {
                    *last_move = MoveId::default();
                }
                if let (Role::Host { memory_at, .. }, Sabotage::LackIsNotDurable) =
                    (&mut entry.role, self.sabotage)
                {
                    *memory_at = None;
                }
                let releasing = matches!(entry.role, Role::Destination { stage: Arrival::Resuming, .. });
                if !(releasing && self.sabotage == Sabotage::ReleaseIsNotDurable) {
                    self.nodes[node].disk.insert(vid, entry);
                }
            }
            NodeRecord::Removed { vid } => {
                self.nodes[node].disk.remove(&vid);
            }
        }
    }

    fn operate(&mut self, node: usize, vid: Vid, operation: Operation) {
        if operation == Operation::Suspend {
            self.check_may_be_suspended(node, vid);
        }
        let under_way = UnderWay { operation, cancelled: false };
        if self.nodes[node].engine.under_way.insert(vid, under_way).is_some() {
            self.violated("two operations on one instance are in progress at a time");
        }
    }

    fn crashes_now(&mut self) -> bool {
        match self.crash_after {
            Some(0) => {
                self.crash_after = None;
                true
            }
            Some(outputs) => {
                self.crash_after = Some(outputs - 1);
                false
            }
            None => false,
        }
    }
}
