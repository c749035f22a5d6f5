//! The cluster as the planner sees it, and its refusals in words for the user.

use std::collections::BTreeMap;

use api::Failure;
use fabric::Vid;
use moves::HostName;
use moves::journal::Stage;
use planner::{Host, Instance, Refusal, View};

use crate::core::State;
use crate::drains::Drains;
use crate::network::plan;
use crate::network::rollout::Rollout;
use crate::telemetry::Telemetry;
use crate::{failure, hosts};

/// The planner's view of the cluster.
pub fn view(state: &State) -> View<'_> {
    let plan = state.get::<Rollout>().plan();
    let describe = |name: &HostName| Host {
        is_up: state.links().is_up(name),
        runs_instances: state.links().get(name).is_some_and(|node| node.runs_instances),
        is_drained: state.get::<Drains>().contains(name),
        is_on_overlay: plan.is_member(name),
        capacity: state.get::<Telemetry>().hosts().get(name).map(|machine| machine.capacity()),
    };
    let names = state.links().up().chain(state.get::<Drains>().hosts());
    let hosts = names.map(|name| (name.clone(), describe(name))).collect();
    let image = state.snapshot();
    let may_return = image.moves.values().filter(|of| of.stage == Stage::Began && !of.dry_run);
    let moving: BTreeMap<Vid, &HostName> =
        may_return.filter_map(|of| Some((of.vid, of.destination.host()?))).collect();
    let instances = image.instances.iter().map(|(vid, instance)| {
        let (name, host, placement) = (&*instance.name, &instance.host, &instance.placement);
        (*vid, Instance { name, host, moves_to: moving.get(vid).copied(), placement })
    });
    View { hosts, instances: instances.collect(), planned: BTreeMap::new() }
}

/// The host called `name`, which must be connected, run instances, and not be drained.
pub fn usable_host(state: &State, name: &str) -> Result<HostName, Failure> {
    let host = hosts::find(state, name)?;
    view(state).check_usable(&host).map_err(refused)?;
    Ok(host)
}

/// The same for each of `names`.
pub fn usable_hosts(state: &State, names: &[String]) -> Result<Vec<HostName>, Failure> {
    names.iter().map(|name| usable_host(state, name)).collect()
}

/// Why there is no plan, for the user.
pub fn refused(refusal: Refusal) -> Failure {
    match refusal {
        Refusal::NotConnected(host) => failure::host_down(&host),
        Refusal::RunsNoInstances(host) => failure::host_without_instances(&host),
        Refusal::Drained(host) => failure::host_drained(&host),
        Refusal::NotOnOverlay(host) => plan::not_joined(&host),
        Refusal::KeptApart { other, key, value, host } => failure::kept_apart(&other, (&key, &value), &host),
        Refusal::KeptTogether { other, key, value, there, host } => {
            failure::kept_together(&other, (&key, &value), &there, &host)
        }
        Refusal::Contradiction { other, together, apart } => {
            failure::contradiction(&other, &together, &apart)
        }
        Refusal::NoRoom { host, resource, demanded, free, has } => {
            failure::no_room(&host, resource, [demanded, free, has])
        }
        Refusal::TooLarge { resource, demanded, largest, has } => {
            failure::too_large(resource, demanded, &largest, has)
        }
        Refusal::NoUsableHost => failure::no_usable_host(),
        Refusal::NoDestination => failure::no_destination(),
        Refusal::NowhereToGo(host) => failure::nowhere_to_go(&host),
    }
}
