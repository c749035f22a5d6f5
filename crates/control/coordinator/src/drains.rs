//! Which hosts are drained, and how far their drains are.

use std::collections::{BTreeMap, BTreeSet};

use moves::{HostName, MoveId};

use crate::core::Feature;

/// The drained hosts.
#[derive(Default)]
pub struct Drains {
    hosts: BTreeMap<HostName, Progress>,
    last: u64,
}

/// Progress of the drain of a host.
#[derive(Default)]
struct Progress {
    /// Serial number of the drain; a new drain ends the previous one.
    number: u64,
    /// Whether the drain is in progress.
    goes_on: bool,
    /// Moves of the drain that are not over.
    moves: BTreeSet<MoveId>,
}

impl Feature for Drains {}

impl Drains {
    /// Loads the drained `hosts` from the store; no drain is in progress.
    pub fn load(hosts: Vec<String>) -> Self {
        let names = hosts.iter().filter_map(|host| HostName::new(host).ok());
        Self { hosts: names.map(|host| (host, Progress::default())).collect(), last: 0 }
    }

    /// Whether `host` is drained.
    pub fn contains(&self, host: &HostName) -> bool {
        self.hosts.contains_key(host)
    }

    /// All drained hosts.
    pub fn hosts(&self) -> impl Iterator<Item = &HostName> {
        self.hosts.keys()
    }

    /// Begins a drain of `host`. Returns its serial number.
    pub fn begin(&mut self, host: &HostName) -> u64 {
        self.last += 1;
        let progress = self.hosts.entry(host.clone()).or_default();
        (progress.number, progress.goes_on) = (self.last, true);
        self.last
    }

    /// Whether the drain with this serial number is the last one of `host`.
    pub fn is_under_way(&self, host: &HostName, number: u64) -> bool {
        self.hosts.get(host).is_some_and(|progress| progress.number == number)
    }

    /// Whether a drain of `host` is in progress.
    pub fn is_draining(&self, host: &HostName) -> bool {
        self.hosts.get(host).is_some_and(|progress| progress.goes_on)
    }

    /// Ends the drain with this serial number.
    pub fn end(&mut self, host: &HostName, number: u64) {
        if let Some(progress) = self.hosts.get_mut(host).filter(|progress| progress.number == number) {
            progress.goes_on = false;
        }
    }

    /// Notes a move of the drain.
    pub fn note(&mut self, host: &HostName, id: MoveId) {
        if let Some(progress) = self.hosts.get_mut(host) {
            progress.moves.insert(id);
        }
    }

    /// Notes that a move of the drain is over.
    pub fn forget(&mut self, host: &HostName, id: MoveId) {
        if let Some(progress) = self.hosts.get_mut(host) {
            progress.moves.remove(&id);
        }
    }

    /// Notes that `host` is not drained any more. Returns the moves of its drain that are not over.
    pub fn remove(&mut self, host: &HostName) -> BTreeSet<MoveId> {
        self.hosts.remove(host).unwrap_or_default().moves
    }
}
