//! Instances that are on the overlay. The network device of each is a station: it is where the instance is, and its epoch is the
//! instance's, so nothing is noted of it besides, and what commits a move moves it as well (ADR 0024).

use std::collections::BTreeSet;

use ::moves::HostName;
use ::moves::journal::Instance;
use api::{Failure, NetDevice};
use engines::InstanceSpec;
use fabric::NetworkKind;
use overlay::Mac;
use overlay::switch::Entry;
use rpc::net::{ToNode, describe_nic};
use rpc::wire::Blueprint;

use super::plan::{self, Plan};
use crate::cluster::Inner;

/// How an instance is made, if it is on the overlay.
fn on_overlay(instance: &Instance) -> Option<InstanceSpec> {
    let spec = Blueprint::decode(&instance.spec).ok()?.spec;
    (spec.network_kind == NetworkKind::Overlay).then_some(spec)
}

/// Where the station of an instance is, if it has one.
fn entry(plan: &Plan, instance: &Instance) -> Option<Entry> {
    let network = on_overlay(instance)?.network;
    let node = plan.number(&instance.host)?;
    let addresses = vec![network.address.into()];
    Some(Entry { mac: Mac(network.mac), node, port: None, epoch: instance.epoch, addresses })
}

impl Inner {
    /// What a new instance on `host` is plugged into, if nothing is said: the overlay, if it is laid out.
    pub fn usual_network(&self) -> NetworkKind {
        if self.network.plan().is_empty() { NetworkKind::Bridge } else { NetworkKind::Overlay }
    }

    /// Checks that an instance's device can be plugged in on `host`.
    ///
    /// # Errors
    /// If the overlay is wanted, and does not join it.
    pub fn check_network(&self, host: &HostName, kind: NetworkKind) -> Result<(), Failure> {
        match kind {
            NetworkKind::Overlay if !self.network.plan().is_member(host) => Err(plan::not_joined(host)),
            NetworkKind::Overlay | NetworkKind::Bridge => Ok(()),
        }
    }

    /// Tells all nodes where `instance` is from now on, if it is on the overlay.
    pub fn nic_is_placed(&self, instance: &Instance) {
        if let Some(entry) = entry(self.network.plan(), instance) {
            self.order_all(ToNode::Station(entry));
        }
    }

    /// Tells all nodes that `instance` is no more, if it was on the overlay.
    pub fn nic_is_gone(&self, instance: &Instance) {
        if let Some(spec) = on_overlay(instance) {
            let (mac, epoch) = (Mac(spec.network.mac), instance.epoch.next());
            self.order_all(ToNode::Withdraw { mac, epoch });
        }
    }

    /// Where the stations of all instances are.
    pub(super) fn nic_entries(&self) -> Vec<Entry> {
        let instances = self.machine.image().instances.values();
        instances.filter_map(|instance| entry(self.network.plan(), instance)).collect()
    }

    /// The hosts that have instances on the overlay.
    pub(super) fn nic_hosts(&self) -> BTreeSet<HostName> {
        let instances = self.machine.image().instances.values();
        instances.filter(|instance| on_overlay(instance).is_some()).map(|it| it.host.clone()).collect()
    }

    /// What is known of those of `host`.
    pub(super) fn nics_noted(&self, host: &HostName) -> Vec<NetDevice> {
        let here = self.machine.image().instances.values().filter(|instance| instance.host == *host);
        here.filter_map(on_overlay).map(|spec| describe_nic(&spec.name, &spec.network)).collect()
    }

    /// Checks that `name` on `host` is not the device of an instance.
    ///
    /// # Errors
    /// If it is: that goes where the instance goes, and ends with it.
    pub(super) fn check_no_nic(&self, host: &HostName, name: &str) -> Result<(), Failure> {
        let is_nic = |instance: &Instance| instance.host == *host && on_overlay(instance).is_some();
        if self.find(name).is_none_or(|(_, instance)| !is_nic(instance)) {
            return Ok(());
        }
        let way_out = format!(
            "move the instance, and it goes along: `transhume move {name} HOST`; or end it: `transhume kill {name}`"
        );
        Err(Failure::new(format!("{name} on {host} is the network device of an instance"), way_out))
    }
}
