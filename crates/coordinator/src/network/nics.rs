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
use crate::cluster::Inner;
use crate::instances;

/// The specification of an instance that is on the overlay.
fn on_overlay(instance: &Instance) -> Option<InstanceSpec> {
    let spec = Blueprint::decode(&instance.spec).ok()?.spec;
    (spec.network_kind == NetworkKind::Overlay).then_some(spec)
}

/// The location of the instance's station, if it has one.
fn entry(plan: &Plan, instance: &Instance) -> Option<Entry> {
    let network = on_overlay(instance)?.network;
    let node = plan.number(&instance.host)?;
    let addresses = vec![network.address.into()];
    Some(Entry { mac: Mac(network.mac), node, port: None, epoch: instance.epoch, addresses })
}

impl Inner {
    /// The default network of a new instance on `host`: the overlay, if it has been laid out.
    pub fn usual_network(&self) -> NetworkKind {
        if self.network.plan().is_empty() { NetworkKind::Bridge } else { NetworkKind::Overlay }
    }

    /// Announces the location of `instance` to all nodes, if it is on the overlay.
    pub fn nic_is_placed(&self, instance: &Instance) {
        if let Some(entry) = entry(self.network.plan(), instance) {
            self.order_all(ToNode::Station(entry));
        }
    }

    /// Withdraws the station of `instance`, if it was on the overlay.
    pub fn nic_is_gone(&self, instance: &Instance) {
        if let Some(spec) = on_overlay(instance) {
            let (mac, epoch) = (Mac(spec.network.mac), instance.epoch.next());
            self.order_all(ToNode::Withdraw { mac, epoch });
        }
    }

    /// The locations of the stations of all instances.
    pub(super) fn nic_entries(&self) -> Vec<Entry> {
        let instances = self.machine.image().instances.values();
        instances.filter_map(|instance| entry(self.network.plan(), instance)).collect()
    }

    /// The hosts that have instances on the overlay.
    pub(super) fn nic_hosts(&self) -> BTreeSet<HostName> {
        let instances = self.machine.image().instances.values();
        instances.filter(|instance| on_overlay(instance).is_some()).map(|it| it.host.clone()).collect()
    }

    /// The network devices of the instances on `host`, as users see them.
    pub(super) fn nics_noted(&self, host: &HostName) -> Vec<NetDevice> {
        let here = self.machine.image().instances.values().filter(|instance| instance.host == *host);
        here.filter_map(on_overlay).map(|spec| describe_nic(&spec.name, &spec.network)).collect()
    }

    /// Checks that no instance has the address of a device of this `kind`. Instances on a bridge count too, because a proxy
    /// may connect that bridge to the overlay.
    ///
    /// # Errors
    /// If an instance has the address: with a duplicate, one of the two would be unreachable.
    pub(super) fn check_no_instances(&self, kind: &DeviceKind) -> Result<(), Failure> {
        let Some(address) = devices::address(kind) else { return Ok(()) };
        let mut instances = self.machine.image().instances.iter();
        match instances.find(|(vid, _)| address == instances::address(**vid)) {
            None => Ok(()),
            Some((_, Instance { name, .. })) => Err(Failure::new(
                format!("the instance {name} has the address {address}"),
                "choose another address; `transhume ps` shows the addresses of instances",
            )),
        }
    }

    /// Checks that `name` on `host` is not the network device of an instance.
    ///
    /// # Errors
    /// If it is: that device moves and ends with its instance.
    pub(super) fn check_no_nic(&self, host: &HostName, name: &str) -> Result<(), Failure> {
        let is_nic = |instance: &Instance| instance.host == *host && on_overlay(instance).is_some();
        if self.find(name).is_none_or(|(_, instance)| !is_nic(instance)) {
            return Ok(());
        }
        let remedy = format!(
            "move the instance with its device, `transhume move {name} HOST`, or end it, `transhume kill {name}`"
        );
        Err(Failure::new(format!("device {name} on {host} belongs to an instance"), remedy))
    }
}

#[cfg(test)]
mod tests {
    use ::moves::coordinator::Input;
    use ::moves::journal::Exit;
    use ::moves::placement::Placement;
    use ::moves::protocol::ToCoordinator;
    use fabric::{Epoch, Vid, network};
    use instance::{InstanceName, Network, Program, Workload};

    use super::super::played::{Played, World, attach_with};
    use super::*;
    use crate::planning;

    fn instance(name: &str, kind: NetworkKind) -> (Vid, Instance) {
        let vid = Vid::new(7).unwrap();
        let fabric = fabric::FabricId(1);
        let spec = InstanceSpec {
            name: InstanceName::new(name).unwrap(),
            network: Network {
                mac: network::mac_of(vid),
                address: [10, 77, 1, 7].into(),
                prefix: 16,
                mtu: 1400,
            },
            network_kind: kind,
            workload: Workload::Process(Program::new(["true"])),
        };
        let spec = Blueprint { fabric, spec }.encode().unwrap();
        let (host, epoch) = (HostName::new("h1").unwrap(), Epoch::default());
        (
            vid,
            Instance {
                name: name.into(),
                fabric,
                group: None,
                placement: Placement::default(),
                host,
                epoch,
                spec,
            },
        )
    }

    fn add(world: &World, (vid, instance): (Vid, Instance)) {
        let inner = &mut *world.cluster.lock();
        inner.starting.insert(vid);
        let outputs = inner.machine.add_instance(vid, instance).unwrap();
        world.cluster.perform(inner, outputs);
    }

    #[tokio::test]
    async fn nodes_are_told_where_instances_are_and_when_they_have_ended() {
        let world = World::new().await;
        let (mut h1, mut h2) = (world.node("h1").await, world.node("h2").await);
        world.lay(&mut [&mut h1, &mut h2]).await;
        add(&world, instance("job", NetworkKind::Overlay));
        let mac = Mac(network::mac_of(Vid::new(7).unwrap()));
        let placed = loop {
            if let ToNode::Station(entry) = h2.hear_order().await {
                break entry;
            }
        };
        let number = world.cluster.lock().network.plan().number(&HostName::new("h1").unwrap());
        assert_eq!((placed.mac, Some(placed.node), placed.epoch), (mac, number, Epoch(0)));
        assert_eq!(placed.addresses, [std::net::IpAddr::from([10, 77, 1, 7])]);
        world.lose("h2", h2).await;
        let mut h2: Played = world.node("h2").await;
        let told = loop {
            if let ToNode::Stations { entries, .. } = h2.hear_order().await {
                break entries;
            }
        };
        assert_eq!(told, [placed]);
        let vid = Vid::new(7).unwrap();
        let message = ToCoordinator::Exited { vid, epoch: Epoch(0), exit: Exit::Code(0) };
        world.cluster.input(Input::Message { from: HostName::new("h1").unwrap(), message });
        let gone = loop {
            if let ToNode::Withdraw { mac, epoch } = h2.hear_order().await {
                break (mac, epoch);
            }
        };
        assert_eq!(gone, (mac, Epoch(1)));
    }

    #[tokio::test]
    async fn a_device_does_not_get_the_address_of_an_instance() {
        let world = World::new().await;
        let mut h1 = world.node("h1").await;
        world.lay(&mut [&mut h1]).await;
        add(&world, instance("job", NetworkKind::Bridge));
        let wanted = attach_with("h1", "tap1", "10.77.1.7/16");
        let refused = async {
            tokio::select! {
                changed = world.change(wanted) => changed,
                (_, question) = h1.hear_question() => panic!("{question:?}"),
            }
        };
        let failure = refused.await.unwrap_err();
        assert!(failure.message.contains("the instance job has the address 10.77.1.7"), "{failure:?}");
        assert_eq!(world.cluster.lock().devices.count(&HostName::new("h1").unwrap()), 0);
        world.attach("h1", "tap1", &mut h1).await;
    }

    #[tokio::test]
    async fn an_instance_is_where_its_host_can_plug_it_in_and_no_device_of_that_host() {
        let world = World::new().await;
        let mut h1 = world.node("h1").await;
        let host = HostName::new("h1").unwrap();
        assert_eq!(world.cluster.lock().usual_network(), NetworkKind::Bridge);
        let is_on_overlay = || planning::view(&world.cluster.lock()).hosts[&host].is_on_overlay;
        assert!(!is_on_overlay());
        let refused = super::super::plan::not_joined(&host);
        assert!(
            refused.message.contains("h1 is not part of the overlay")
                && refused.remedy.contains("net layout")
        );
        world.lay(&mut [&mut h1]).await;
        assert_eq!(world.cluster.lock().usual_network(), NetworkKind::Overlay);
        add(&world, instance("job", NetworkKind::Overlay));
        assert!(is_on_overlay());
        let inner = world.cluster.lock();
        assert_eq!(inner.nic_hosts(), [host.clone()].into());
        assert_eq!(inner.nics_noted(&host)[0].name, "job");
        assert!(inner.check_no_nic(&host, "job").unwrap_err().remedy.contains("transhume move job HOST"));
        inner.check_no_nic(&host, "tap1").unwrap();
        let taken = inner.devices.check_mac(Mac(network::mac_of(Vid::new(9).unwrap()))).unwrap_err();
        assert!(taken.message.contains("reserved for instances"), "{taken:?}");
    }
}
