//! Drains, as the coordinator does them: one instance after the other to the emptiest host that takes it.

use std::collections::{BTreeMap, BTreeSet};

use fabric::Vid;
use moves::HostName;
use planner::{Goal, Leaving, Loads, View};

/// How far a drain is.
#[derive(Default)]
pub struct Drain {
    /// Hosts that have refused an instance.
    tried: BTreeMap<Vid, BTreeSet<HostName>>,
}

impl Drain {
    /// The next instance that can go, and where.
    pub fn next(&mut self, view: &View<'_>, loads: &Loads, host: &HostName) -> Option<(Vid, HostName)> {
        let here = view.instances.iter().filter(|(_, at)| at.host == host && at.moves_to.is_none());
        let nowhere = BTreeSet::new();
        let leaving =
            here.map(|(vid, _)| Leaving { vid: *vid, avoid: self.tried.get(vid).unwrap_or(&nowhere) });
        let leaving: Vec<_> = leaving.collect();
        let anywhere = BTreeSet::new();
        let goal = Goal::Evacuate { from: host, to: &anywhere, instances: &leaving, most: 1 };
        let planned = planner::plan(view, loads, &goal).ok()?.pop()?;
        let vid = leaving[planned.which].vid;
        self.tried.entry(vid).or_default().insert(planned.to.clone());
        Some((vid, planned.to))
    }
}
