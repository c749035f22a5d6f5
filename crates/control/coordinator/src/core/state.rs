//! The coordinator's knowledge of the cluster.

use std::net::SocketAddr;
use std::ops::Deref;
use std::time::Duration;

use moves::coordinator::Coordinator;
use moves::journal::Record;
use moves::progress::Event;
use moves::{HostName, MoveId};
use rpc::wire::{FromCoordinator, Moved};

use super::base::Base;
use super::feature::{Feature, Features, Recorded};
use super::links::NodeLink;

/// All that is known. It never shows a decision that is not durable.
pub struct State {
    pub(super) base: Base,
    features: Features,
    /// New locations that still have to be sent to all nodes.
    news: Vec<Moved>,
}

impl Deref for State {
    type Target = Base;

    fn deref(&self) -> &Base {
        &self.base
    }
}

impl State {
    pub(super) fn new(base: Base) -> Self {
        Self { base, features: Features::default(), news: Vec::new() }
    }

    /// Adds a feature, which is notified after the features that were added before.
    pub fn add(&mut self, feature: impl Feature) {
        self.features.add(feature);
    }

    /// The state of a feature.
    pub fn get<F: Feature>(&self) -> &F {
        self.features.get()
    }

    /// The state of a feature, for a command that changes it.
    pub fn get_mut<F: Feature>(&mut self) -> &mut F {
        self.features.get_mut()
    }

    /// The state of a feature, for a command that changes it, with the state that all features may read.
    pub fn get_with<F: Feature>(&mut self) -> (&mut F, &Base) {
        (self.features.get_mut(), &self.base)
    }

    /// The node of `host` is connected.
    pub fn connect(&mut self, host: &HostName, link: NodeLink, address: SocketAddr) {
        self.base.links.insert(host.clone(), link, address);
    }

    /// Records how a connected host runs virtual machines.
    pub fn note_machines(&mut self, host: HostName, support: api::MachineSupport) {
        self.base.links.set_machines(host, support);
    }

    /// The node of `host` is not connected any more. Returns its connection, if there was one.
    pub fn disconnect(&mut self, host: &HostName) -> Option<NodeLink> {
        let link = self.base.links.remove(host)?;
        self.features.iter_mut().for_each(|feature| feature.disconnected(host));
        Some(link)
    }

    /// Forgets that `host` has ever connected.
    pub fn forget_address(&mut self, host: &HostName) {
        self.base.links.forget_address(host);
    }

    /// Takes a record that is durable.
    pub(super) fn recorded(&mut self, record: &Record, took: Duration, machine: &Coordinator) {
        let removed = self.base.ledger.apply(record);
        let facts = match record {
            Record::MovesSaved { ids } => {
                ids.iter().filter_map(|id| Some((*id, machine.facts(*id)?.to_vec()))).collect()
            }
            _ => Default::default(),
        };
        if let Record::MovesCommitted { ids } = record {
            ids.iter().for_each(|id| self.note_news(*id));
        }
        let recorded = Recorded { record, removed, took, facts };
        self.features.iter_mut().for_each(|feature| feature.recorded(&recorded, &self.base));
    }

    fn note_news(&mut self, id: MoveId) {
        let snapshot = self.base.ledger.snapshot();
        let Some(vid) = snapshot.moves.get(&id).map(|record| record.vid) else { return };
        if let Some(instance) = snapshot.instances.get(&vid) {
            self.news.push(Moved { vid, host: instance.host.clone(), epoch: instance.epoch });
        }
    }

    /// Takes the progress of a move.
    pub(super) fn progressed(&mut self, id: MoveId, event: &Event) {
        self.base.ledger.progressed(id, event);
        self.features.iter_mut().for_each(|feature| feature.progressed(id, event, &self.base));
    }

    /// All outputs of `machine` are done.
    pub(super) fn settle(&mut self, machine: &Coordinator) {
        self.base.ledger.follow(machine);
        // Only now: a broadcast to a thousand nodes must not delay the messages that resume instances.
        if !self.news.is_empty() {
            let news = std::mem::take(&mut self.news);
            self.base.links.send_all(&FromCoordinator::Moved(news));
        }
    }
}
