//! What the node knows about each instance of this host.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

use engine_api::State;
use fabric::{FabricId, InstanceId, Vid};
use instance::{Blueprint, InstanceName, Kind};
use moves::HostName;

use crate::lock::lock;

/// An instance of this host.
#[derive(Clone, Debug)]
pub struct Live {
    pub name: InstanceName,
    pub kind: Kind,
    pub fabric: FabricId,
    pub state: State,
    /// Its first process while it runs, if that is known.
    pub first: Option<i32>,
    pub is_killed: bool,
    /// The reason of its loss, if it is known.
    pub lost: Option<String>,
    /// The host from which its pager fetches missing memory.
    pub fetches_from: Option<HostName>,
    is_watched: bool,
}

impl Live {
    pub fn new(blueprint: &Blueprint, state: State, first: Option<i32>) -> Self {
        Self {
            name: blueprint.spec.name.clone(),
            kind: blueprint.spec.workload.kind(),
            fabric: blueprint.fabric,
            state,
            first,
            is_killed: false,
            lost: None,
            fetches_from: None,
            is_watched: false,
        }
    }

    pub fn id(&self, vid: Vid) -> InstanceId {
        InstanceId { fabric: self.fabric, vid }
    }
}

/// The instances of this host.
#[derive(Default)]
pub struct LiveInstances(Mutex<HashMap<Vid, Live>>);

impl LiveInstances {
    pub fn get(&self, vid: Vid) -> Option<Live> {
        self.lock().get(&vid).cloned()
    }

    pub fn all(&self) -> Vec<(Vid, Live)> {
        self.lock().iter().map(|(vid, live)| (*vid, live.clone())).collect()
    }

    pub fn insert(&self, vid: Vid, live: Live) {
        self.lock().insert(vid, live);
    }

    pub fn remove(&self, vid: Vid) {
        self.lock().remove(&vid);
    }

    pub fn set_state(&self, vid: Vid, state: State) {
        self.change(vid, |live| live.state = state);
    }

    /// Records that an instance runs, with this first process.
    pub fn set_runs(&self, vid: Vid, first: Option<i32>) {
        self.change(vid, |live| (live.state, live.first) = (State::Running, first));
    }

    /// Records the reason for an instance's end, unless a better one becomes known.
    pub fn set_lost(&self, vid: Vid, reason: &str) {
        self.change(vid, |live| {
            live.lost.get_or_insert_with(|| reason.to_owned());
        });
    }

    /// Records that a user has killed an instance, and returns it.
    pub fn set_killed(&self, vid: Vid) -> Option<Live> {
        self.change(vid, |live| live.is_killed = true);
        self.get(vid)
    }

    /// Records from which host the pager of an instance fetches missing memory.
    pub fn set_fetches_from(&self, vid: Vid, source: Option<HostName>) {
        self.change(vid, |live| live.fetches_from = source);
    }

    /// Records that a task watches for the end of an instance; `false` if one does already, or the instance is not here.
    pub fn begin_watch(&self, vid: Vid) -> bool {
        self.lock().get_mut(&vid).is_some_and(|live| !std::mem::replace(&mut live.is_watched, true))
    }

    /// Records that no task watches for the end of an instance any more.
    pub fn end_watch(&self, vid: Vid) {
        self.change(vid, |live| live.is_watched = false);
    }

    fn change(&self, vid: Vid, change: impl FnOnce(&mut Live)) {
        if let Some(live) = self.lock().get_mut(&vid) {
            change(live);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Vid, Live>> {
        lock(&self.0)
    }
}
