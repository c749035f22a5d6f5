//! Instances on the overlay. The network device of each is a station at the instance's location, with the instance's
//! epoch. So nothing else is stored, and the commit of a move also moves the station (ADR 0024).

use std::collections::BTreeSet;

use ::moves::HostName;
use ::moves::journal::Instance;
use api::{Failure, NetDevice};
use fabric::NetworkKind;
use instance::{Blueprint, InstanceSpec};
use overlay::Mac;
use overlay::switch::Entry;
use rpc::net::{DeviceKind, ToNode, describe_nic};

use super::devices;
use super::plan::Plan;
use crate::address::address;
use crate::core::Base;

/// The specification of an instance that is on the overlay.
fn on_overlay(instance: &Instance) -> Option<InstanceSpec> {
    let spec = Blueprint::decode(&instance.spec).ok()?.spec;
    (spec.network_kind == NetworkKind::Overlay).then_some(spec)
}

/// The location of the instance's station, if it has one.
pub fn entry(plan: &Plan, instance: &Instance) -> Option<Entry> {
    let network = on_overlay(instance)?.network;
    let node = plan.number(&instance.host)?;
    let addresses = vec![network.address.into()];
    Some(Entry { mac: Mac(network.mac), node, port: None, epoch: instance.epoch, addresses })
}

/// The withdrawal of the station of an instance that has ended, if it had one.
pub fn withdrawal(instance: &Instance) -> Option<ToNode> {
    let mac = Mac(on_overlay(instance)?.network.mac);
    Some(ToNode::Withdraw { mac, epoch: instance.epoch.next() })
}

/// The default network of a new instance: the overlay, if it has been laid out.
pub fn usual_network(plan: &Plan) -> NetworkKind {
    if plan.is_empty() { NetworkKind::Bridge } else { NetworkKind::Overlay }
}

/// The locations of the stations of all instances.
pub fn entries(base: &Base, plan: &Plan) -> Vec<Entry> {
    base.snapshot().instances.values().filter_map(|instance| entry(plan, instance)).collect()
}

/// The hosts that have instances on the overlay.
pub fn hosts(base: &Base) -> BTreeSet<HostName> {
    let instances = base.snapshot().instances.values();
    instances.filter(|instance| on_overlay(instance).is_some()).map(|it| it.host.clone()).collect()
}

/// The network devices of the instances on `host`, as users see them.
pub fn noted(base: &Base, host: &HostName) -> Vec<NetDevice> {
    let here = base.snapshot().instances.values().filter(|instance| instance.host == *host);
    here.filter_map(on_overlay).map(|spec| describe_nic(&spec.name, &spec.network)).collect()
}

/// Checks that no instance has the address of a device of this `kind`. Instances on a bridge count too, because a proxy
/// may connect that bridge to the overlay.
///
/// # Errors
/// If an instance has the address: with a duplicate, one of the two would be unreachable.
pub fn check_no_instances(base: &Base, kind: &DeviceKind) -> Result<(), Failure> {
    let Some(wanted) = devices::address(kind) else { return Ok(()) };
    let mut instances = base.snapshot().instances.iter();
    match instances.find(|(vid, _)| wanted == address(**vid)) {
        None => Ok(()),
        Some((_, Instance { name, .. })) => Err(Failure::new(
            format!("the instance {name} has the address {wanted}"),
            "choose another address; `transhume ps` shows the addresses of instances",
        )),
    }
}

/// Checks that `name` on `host` is not the network device of an instance.
///
/// # Errors
/// If it is: that device moves and ends with its instance.
pub fn check_no_nic(base: &Base, host: &HostName, name: &str) -> Result<(), Failure> {
    let is_nic = |instance: &Instance| instance.host == *host && on_overlay(instance).is_some();
    if base.find(name).is_none_or(|(_, instance)| !is_nic(instance)) {
        return Ok(());
    }
    let remedy = format!(
        "move the instance with its device, `transhume move {name} HOST`, or end it, `transhume kill {name}`"
    );
    Err(Failure::new(format!("device {name} on {host} belongs to an instance"), remedy))
}

#[cfg(test)]
mod tests;
