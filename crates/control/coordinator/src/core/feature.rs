//! The interface of a feature: its state, and the notifications that it gets.

use std::any::{Any, TypeId};
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use moves::journal::Record;
use moves::progress::Event;
use moves::{HostName, MoveId};

use super::base::Base;
use super::ledger::Removed;

/// The state of a feature. Its fields are private to its module; the owner notifies it of events.
pub trait Feature: Any + Send + Sync {
    /// A record is durable, and `base` shows it.
    fn recorded(&mut self, _recorded: &Recorded<'_>, _base: &Base) {}

    /// A move has progressed.
    fn progressed(&mut self, _id: MoveId, _event: &Event, _base: &Base) {}

    /// The node of `host` is not connected any more.
    fn disconnected(&mut self, _host: &HostName) {}
}

/// A record that has become durable.
pub struct Recorded<'a> {
    /// The record.
    pub record: &'a Record,
    /// The instance or move that the record removes.
    pub removed: Removed,
    /// The time that the journal took.
    pub took: Duration,
    /// The results of the checks at the sources of these moves, if they are saved.
    pub facts: BTreeMap<MoveId, Vec<u8>>,
}

/// All features, one of each type, in the order in which they hear of things.
#[derive(Default)]
pub struct Features {
    all: Vec<Box<dyn Feature>>,
    places: HashMap<TypeId, usize>,
}

impl Features {
    pub(super) fn add<F: Feature>(&mut self, feature: F) {
        self.places.insert(TypeId::of::<F>(), self.all.len());
        self.all.push(Box::new(feature));
    }

    pub(super) fn get<F: Feature>(&self) -> &F {
        let feature: &dyn Any = &*self.all[self.place::<F>()];
        feature.downcast_ref().expect("a feature is found by its type")
    }

    pub(super) fn get_mut<F: Feature>(&mut self) -> &mut F {
        let place = self.place::<F>();
        let feature: &mut dyn Any = &mut *self.all[place];
        feature.downcast_mut().expect("a feature is found by its type")
    }

    fn place<F: Feature>(&self) -> usize {
        *self.places.get(&TypeId::of::<F>()).expect("all features are added when the coordinator begins")
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Box<dyn Feature>> {
        self.all.iter_mut()
    }
}
