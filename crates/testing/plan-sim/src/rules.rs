//! What must hold at every move. Nothing here is code of the controller or the planner.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use controller::Settings;
use fabric::Vid;
use moves::HostName;

use crate::cluster::{HOST, index};
use crate::nodes::Nodes;
use crate::state::State;

const HOUR: Duration = Duration::from_secs(3600);

/// The rules, and which moves have broken one.
pub struct Rules {
    settings: Settings,
    /// By instance: when it has left which hosts.
    left: BTreeMap<Vid, Vec<(Duration, HostName)>>,
    /// When planned moves have begun.
    begun: Vec<Duration>,
    under_way: BTreeSet<Vid>,
    /// Broken rules, in words.
    pub broken: Vec<String>,
}

impl Rules {
    pub fn new(settings: Settings) -> Self {
        let (left, begun) = (BTreeMap::new(), Vec::new());
        Self { settings, left, begun, under_way: BTreeSet::new(), broken: Vec::new() }
    }

    /// A planned move begins.
    pub fn begin(&mut self, now: Duration, vid: Vid, to: &HostName, state: &State, nodes: &Nodes) {
        let since = |at: &Duration| now.saturating_sub(*at);
        let left = self.left.get(&vid).map(Vec::as_slice).unwrap_or_default();
        self.begun.push(now);
        self.under_way.insert(vid);
        let in_hour = self.begun.iter().filter(|at| since(at) < HOUR).count();
        let memory = state.cluster.needs[index(vid)].memory;
        let placement = |vid: &Vid| &state.machine.snapshot().instances[vid].placement;
        let rules = [
            (left.iter().all(|(at, _)| since(at) >= self.settings.cool_down), "it cools down"),
            (left.iter().all(|(at, from)| from != to || since(at) >= HOUR), "it moves back within the hour"),
            (in_hour <= self.settings.budget as usize, "the budget is used up"),
            (self.under_way.len() <= self.settings.at_once.into(), "too many move at once"),
            (nodes.used(to) + memory <= HOST.memory, "its destination has no room"),
            (
                nodes.on(to).iter().all(|other| placement(&vid).apart(placement(other)).is_none()),
                "it must be apart from an instance there",
            ),
        ];
        let broken = rules.into_iter().filter(|(holds, _)| !holds);
        self.broken.extend(broken.map(|(_, rule)| format!("{now:?}: {vid} to {to}: {rule}")));
    }

    /// A planned move is over.
    pub fn over(&mut self, vid: Vid) {
        self.under_way.remove(&vid);
    }

    /// An instance, by whatever move, has left a host.
    pub fn left(&mut self, now: Duration, vid: Vid, from: &HostName) {
        self.left.entry(vid).or_default().push((now, from.clone()));
    }

    /// A planned move has failed.
    pub fn failed(&mut self, now: Duration, vid: Vid, why: &str) {
        self.broken.push(format!("{now:?}: the move of {vid} has failed: {why}"));
    }
}
