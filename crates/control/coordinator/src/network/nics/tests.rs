use ::moves::coordinator::Input;
use ::moves::journal::Exit;
use ::moves::placement::Placement;
use ::moves::protocol::ToCoordinator;
use fabric::{Epoch, Vid, network};
use instance::{InstanceName, InstanceSpec, Network, Program, Workload};

use super::super::devices::Devices;
use super::super::rollout::Rollout;
use super::*;
use crate::planning;
use crate::tests::played::{Played, World, attach_with};

fn instance(name: &str, kind: NetworkKind) -> (Vid, Instance) {
    let vid = Vid::new(7).unwrap();
    let fabric = fabric::FabricId(1);
    let spec = InstanceSpec {
        name: InstanceName::new(name).unwrap(),
        network: Network { mac: network::mac_of(vid), address: [10, 77, 1, 7].into(), prefix: 16, mtu: 1400 },
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

async fn add(world: &World, (vid, instance): (Vid, Instance)) {
    world.add(vid, instance).await;
}

#[tokio::test]
async fn nodes_get_the_locations_and_ends_of_instances() {
    let world = World::new().await;
    let (mut h1, mut h2) = (world.node("h1").await, world.node("h2").await);
    world.lay(&mut [&mut h1, &mut h2]).await;
    add(&world, instance("job", NetworkKind::Overlay)).await;
    let mac = Mac(network::mac_of(Vid::new(7).unwrap()));
    let placed = loop {
        if let ToNode::Station(entry) = h2.hear_order().await {
            break entry;
        }
    };
    let number = world.cluster.view().get::<Rollout>().plan().number(&HostName::new("h1").unwrap());
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
    world.cluster.input(Input::Message { from: HostName::new("h1").unwrap(), message }).await;
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
    add(&world, instance("job", NetworkKind::Bridge)).await;
    let wanted = attach_with("h1", "tap1", "10.77.1.7/16");
    let refused = async {
        tokio::select! {
            changed = world.change(wanted) => changed,
            (_, question) = h1.hear_question() => panic!("{question:?}"),
        }
    };
    let failure = refused.await.unwrap_err();
    assert!(failure.message.contains("the instance job has the address 10.77.1.7"), "{failure:?}");
    assert_eq!(world.cluster.view().get::<Devices>().count(&HostName::new("h1").unwrap()), 0);
    world.attach("h1", "tap1", &mut h1).await;
}

#[tokio::test]
async fn an_instance_is_where_its_host_can_plug_it_in_and_no_device_of_that_host() {
    let world = World::new().await;
    let mut h1 = world.node("h1").await;
    let host = HostName::new("h1").unwrap();
    let usual = || usual_network(world.cluster.view().get::<Rollout>().plan());
    assert_eq!(usual(), NetworkKind::Bridge);
    let is_on_overlay = || planning::view(&world.cluster.view()).hosts[&host].is_on_overlay;
    assert!(!is_on_overlay());
    let refused = super::super::plan::not_joined(&host);
    assert!(
        refused.message.contains("h1 is not part of the overlay") && refused.remedy.contains("net layout")
    );
    world.lay(&mut [&mut h1]).await;
    assert_eq!(usual(), NetworkKind::Overlay);
    add(&world, instance("job", NetworkKind::Overlay)).await;
    assert!(is_on_overlay());
    let state = world.cluster.view();
    assert_eq!(hosts(&state), [host.clone()].into());
    assert_eq!(noted(&state, &host)[0].name, "job");
    assert!(check_no_nic(&state, &host, "job").unwrap_err().remedy.contains("transhume move job HOST"));
    check_no_nic(&state, &host, "tap1").unwrap();
    let taken = state.get::<Devices>().check_mac(Mac(network::mac_of(Vid::new(9).unwrap()))).unwrap_err();
    assert!(taken.message.contains("reserved for instances"), "{taken:?}");
}
