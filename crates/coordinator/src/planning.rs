//! The cluster as the planner sees it, and its refusals in words for the user.

use std::collections::BTreeMap;

use api::Failure;
use fabric::Vid;
use moves::HostName;
use moves::journal::Stage;
use planner::{Host, Instance, Refusal, View};

use crate::cluster::Inner;
use crate::{failure, hosts, network};

/// What the planner plans with.
pub fn view(inner: &Inner) -> View<'_> {
    let plan = inner.network.plan();
    let describe = |name: &HostName| Host {
        is_up: inner.nodes.contains_key(name),
        runs_instances: inner.nodes.get(name).is_some_and(|node| node.runs_instances),
        is_drained: inner.drains.contains(name),
        is_on_overlay: plan.is_member(name),
    };
    let names = inner.nodes.keys().chain(inner.drains.hosts());
    let hosts = names.map(|name| (name.clone(), describe(name))).collect();
    let image = inner.machine.image();
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
pub fn usable_host(inner: &Inner, name: &str) -> Result<HostName, Failure> {
    let host = hosts::find(inner, name)?;
    view(inner).check_usable(&host).map_err(refused)?;
    Ok(host)
}

/// The same for each of `names`.
pub fn usable_hosts(inner: &Inner, names: &[String]) -> Result<Vec<HostName>, Failure> {
    names.iter().map(|name| usable_host(inner, name)).collect()
}

/// Why there is no plan, for the user.
pub fn refused(refusal: Refusal) -> Failure {
    match refusal {
        Refusal::NotConnected(host) => failure::host_down(&host),
        Refusal::RunsNoInstances(host) => failure::host_without_instances(&host),
        Refusal::Drained(host) => failure::host_drained(&host),
        Refusal::NotOnOverlay(host) => network::not_joined(&host),
        Refusal::KeptApart { other, key, value, host } => failure::kept_apart(&other, (&key, &value), &host),
        Refusal::NoUsableHost => failure::no_usable_host(),
        Refusal::NoDestination => failure::no_destination(),
        Refusal::NowhereToGo(host) => failure::nowhere_to_go(&host),
    }
}
