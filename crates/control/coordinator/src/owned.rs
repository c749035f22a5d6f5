//! The planner's view with data of its own, for a search that takes long while the state changes.

use std::collections::BTreeMap;

use fabric::Vid;
use moves::HostName;
use moves::placement::Placement;
use planner::{Host, Instance, View};

/// The view, apart from the state.
pub struct OwnedView {
    hosts: BTreeMap<HostName, Host>,
    instances: BTreeMap<Vid, Owned>,
}

/// An instance with data of its own.
struct Owned {
    name: String,
    host: HostName,
    moves_to: Option<HostName>,
    placement: Placement,
}

impl OwnedView {
    /// A copy of `view`.
    pub fn of(view: &View<'_>) -> Self {
        let owned = |at: &Instance<'_>| Owned {
            name: at.name.to_owned(),
            host: at.host.clone(),
            moves_to: at.moves_to.cloned(),
            placement: at.placement.clone(),
        };
        Self {
            instances: view.instances.iter().map(|(vid, at)| (*vid, owned(at))).collect(),
            hosts: view.hosts.clone(),
        }
    }

    /// The view.
    pub fn view(&self) -> View<'_> {
        let instances = self.instances.iter().map(|(vid, at)| {
            let (name, host, placement) = (&*at.name, &at.host, &at.placement);
            (*vid, Instance { name, host, moves_to: at.moves_to.as_ref(), placement })
        });
        View { hosts: self.hosts.clone(), instances: instances.collect(), ..View::default() }
    }
}
