//! The known hosts: all that have connected since the coordinator started, and all that its stored state refers to.

use std::collections::BTreeSet;

use api::Failure;
use moves::HostName;

use crate::admission::Enrolled;
use crate::core::State;
use crate::drains::Drains;
use crate::failure;
use crate::members::Members;
use crate::network::devices::Devices;
use crate::network::rollout::Rollout;
use crate::telemetry::Telemetry;

/// All known hosts, connected or not.
pub fn known(state: &State) -> BTreeSet<HostName> {
    let image = state.snapshot();
    let with_instances = image.instances.values().map(|instance| &instance.host);
    let with_moves = image.moves.values().flat_map(|record| record.hosts());
    let connected_once = state.links().addresses().keys();
    // The certificate copy of a removed host may still exist.
    let enrolled = state.get::<Enrolled>().hosts().filter(|host| !state.get::<Members>().is_removed(host));
    let named = connected_once.chain(enrolled).chain(with_instances).chain(with_moves);
    let named = named.chain(state.get::<Drains>().hosts()).chain(state.get::<Rollout>().plan().members());
    named.cloned().chain(state.get::<Devices>().hosts()).collect()
}

/// The host called `name`, connected or not.
pub fn find(state: &State, name: &str) -> Result<HostName, Failure> {
    let host = HostName::new(name).ok().filter(|host| known(state).contains(host));
    host.ok_or_else(|| failure::no_host(name))
}

/// All hosts as users see them, in the order of their names.
pub fn list(state: &State) -> Vec<api::Host> {
    let describe = |name: &HostName| api::Host {
        name: name.to_string(),
        address: state.links().addresses().get(name).map(ToString::to_string).unwrap_or_default(),
        up: state.links().is_up(name),
        drained: state.get::<Drains>().contains(name),
        draining: state.get::<Drains>().is_draining(name),
        leaving: state.get::<Telemetry>().hosts().get(name).and_then(|host| host.last.leaving.clone()),
        instances: state.instances_on(name),
        machines: state.links().machines(name).cloned(),
    };
    known(state).iter().map(describe).collect()
}

#[cfg(test)]
mod tests;
