use std::fs::File;
use std::io::Write;
use std::path::Path;

use api::NetMac;
use rpc::net::{self, ToNode};

use super::*;
use crate::tests::played::{Played, Said, World, attach};

fn detach(host: &str, device: &str) -> NetChange {
    NetChange::Detach { host: host.into(), device: device.into() }
}

/// The MAC in the next withdrawal of a station.
async fn withdrawn(node: &mut Played) -> Mac {
    loop {
        if let ToNode::Withdraw { mac, .. } = node.hear_order().await {
            return mac;
        }
    }
}

#[tokio::test]
async fn a_device_of_a_disconnected_host_is_removed_there_when_the_host_reconnects() {
    let world = World::new().await;
    let (mut h1, mut h2) = (world.node("h1").await, world.node("h2").await);
    world.lay(&mut [&mut h1, &mut h2]).await;
    world.attach("h2", "tap1", &mut h2).await;
    world.attach("h2", "tap2", &mut h2).await;
    let macs = ["tap1", "tap2"].map(|name| {
        let key = devices::key(&HostName::new("h2").unwrap(), name);
        world.cluster.view().get::<Devices>().get(&key).unwrap().mac
    });
    world.lose("h2", h2).await;
    assert_eq!(world.change(detach("h2", "tap1")).await, Ok(Event::NetForgotten));
    assert_eq!(withdrawn(&mut h1).await, macs[0]);
    // It works even if the host is not part of the overlay.
    world.lay(&mut [&mut h1]).await;
    assert_eq!(world.change(detach("h2", "tap2")).await, Ok(Event::NetForgotten));
    assert_eq!(withdrawn(&mut h1).await, macs[1]);
    let unknown = world.change(detach("h2", "tap2")).await.unwrap_err();
    assert!(unknown.message.contains("h2"), "{unknown:?}");
    let mut h2 = world.node("h2").await;
    let ToNode::Devices { devices, .. } = h2.hear_order().await else { panic!("others come first") };
    assert_eq!(devices, []);
    Played::use_topology(&mut [&mut h1, &mut h2]).await;
    world.attach("h2", "tap1", &mut h2).await;
    let (detached, asked) = tokio::join!(world.change(detach("h2", "tap1")), h2.grant());
    assert_eq!((detached, asked), (Ok(Event::Done), Question::UpToDate));
}

/// A request for tap2 on h2 with this MAC.
fn with_mac(text: &str) -> NetChange {
    let purpose = Purpose::Station { address: None, mtu: None, netns: None };
    let mac = Some(text.to_owned());
    NetChange::Attach { host: "h2".into(), device: "tap2".into(), purpose, mac }
}

#[test]
fn a_namespace_is_named_as_ip_names_it() {
    assert_eq!(check_netns("web-1.x"), Ok(()));
    for bad in ["", ".", "..", "../../proc/1/ns/net", "/run/netns/web", "-batch", "a\nb", &"x".repeat(256)] {
        let failure = check_netns(bad).unwrap_err();
        assert!(failure.message.contains("is not a valid name of a network namespace"), "{failure:?}");
    }
}

/// Answers the question for an existing TAP with `found`.
async fn say_found(node: &mut Played, found: FoundTap) {
    loop {
        if let Said::Question(number, Question::Look { .. }) = node.hear().await {
            return node.answer(number, Ok(Answer::Tap(Some(found))));
        }
    }
}

#[tokio::test]
async fn an_existing_tap_is_attached_unchanged_and_does_not_move() {
    let world = World::new().await;
    let (mut h1, mut h2) = (world.node("h1").await, world.node("h2").await);
    world.lay(&mut [&mut h1, &mut h2]).await;
    let found = FoundTap { mac: Mac([0x52, 0x54, 0, 0, 0, 1]), mtu: 1300, is_open: false };
    let wanted = |address: Option<&str>, mtu, mac: Option<&str>| {
        let address = address.map(str::to_owned);
        let purpose = Purpose::Station { address, mtu, netns: Some("web".into()) };
        NetChange::Attach { host: "h2".into(), device: "vm1".into(), purpose, mac: mac.map(str::to_owned) }
    };
    for (other, option) in [
        (wanted(Some("10.88.0.1/24"), None, None), "`--address`"),
        (wanted(None, Some(1400), None), "`--mtu`"),
        (wanted(None, None, Some("52:54:00:00:00:02")), "`--mac`"),
    ] {
        let (refused, ()) = tokio::join!(world.change(other), say_found(&mut h2, found));
        let failure = refused.unwrap_err();
        assert!(failure.message.contains("already exists") && failure.remedy.contains(option), "{failure:?}");
    }
    let told = async {
        say_found(&mut h2, found).await;
        tokio::join!(say_where(&mut h1, None), say_where(&mut h2, None));
        h2.grant().await
    };
    let (attached, asked) = tokio::join!(world.change(wanted(None, Some(1300), None)), told);
    let mac = found.mac.to_string();
    assert_eq!(attached, Ok(Event::NetAttached { mac, mtu_bytes: Some(1300), adopted: true }));
    let kind = DeviceKind::Adopted { netns: Some("web".into()), mtu: 1300 };
    assert_eq!(asked, Question::Attach(net::Device { name: "vm1".into(), mac: found.mac, kind }));
    let away = NetChange::Move { host: "h2".into(), device: "vm1".into(), to: "h1".into() };
    let failure = world.change(away).await.unwrap_err();
    assert!(failure.message.contains("cannot move"), "{failure:?}");
}

#[tokio::test]
async fn an_open_tap_is_attached_with_the_mac_of_its_machine_only() {
    let world = World::new().await;
    let (mut h1, mut h2) = (world.node("h1").await, world.node("h2").await);
    world.lay(&mut [&mut h1, &mut h2]).await;
    let found = FoundTap { mac: Mac([0xfe, 0x54, 0, 0, 0, 1]), mtu: 1500, is_open: true };
    let wanted = |mac: Option<&str>| {
        let purpose = Purpose::Station { address: None, mtu: None, netns: None };
        NetChange::Attach { host: "h2".into(), device: "vm1".into(), purpose, mac: mac.map(str::to_owned) }
    };
    let (refused, ()) = tokio::join!(world.change(wanted(None)), say_found(&mut h2, found));
    assert!(refused.unwrap_err().remedy.contains("`--mac "));
    let told = async {
        say_found(&mut h2, found).await;
        tokio::join!(say_where(&mut h1, None), say_where(&mut h2, None));
        h2.grant().await
    };
    let guests = "52:54:00:00:00:01";
    let (attached, asked) = tokio::join!(world.change(wanted(Some(guests))), told);
    assert_eq!(attached, Ok(Event::NetAttached { mac: guests.into(), mtu_bytes: Some(1500), adopted: true }));
    let kind = DeviceKind::Redirected { netns: None, mtu: 1500 };
    assert_eq!(
        asked,
        Question::Attach(net::Device { name: "vm1".into(), mac: guests.parse().unwrap(), kind })
    );
}

/// Answers the question for the location of a MAC.
async fn say_where(node: &mut Played, place: Option<NetMac>) {
    let (number, question) = node.hear_question().await;
    assert!(matches!(question, Question::Find { .. }), "{question:?}");
    node.answer(number, Ok(Answer::Macs(place.into_iter().collect())));
}

#[tokio::test]
async fn a_device_gets_the_requested_mac_unless_it_is_in_use() {
    let world = World::new().await;
    let (mut h1, mut h2) = (world.node("h1").await, world.node("h2").await);
    world.lay(&mut [&mut h1, &mut h2]).await;
    world.attach("h1", "tap1", &mut h1).await;
    let tap1 = devices::key(&HostName::new("h1").unwrap(), "tap1");
    let taken = world.cluster.view().get::<Devices>().get(&tap1).unwrap().mac.to_string();
    for (mac, expected) in [
        (taken.as_str(), "device tap1 on h1 has it"),
        ("01:00:5e:00:00:01", "multicast or zero"),
        ("00:00:00:00:00:00", "multicast or zero"),
        ("52:54:00:12:34", "is not a MAC address"),
    ] {
        let failure = world.change(with_mac(mac)).await.unwrap_err();
        assert!(failure.message.contains(expected), "{failure:?}");
    }
    let mac = "52:54:00:12:34:56";
    let place =
        NetMac { mac: mac.into(), host: "h1".into(), device: Some("lan0".into()), managed: false, vlan: 0 };
    let heard = async { tokio::join!(say_where(&mut h1, Some(place)), say_where(&mut h2, None)) };
    let (refused, _) = tokio::join!(world.change(with_mac(mac)), heard);
    let failure = refused.unwrap_err();
    assert!(failure.message.contains("it was seen at lan0 of h1"), "{failure:?}");
    let free = async {
        tokio::join!(say_where(&mut h1, None), say_where(&mut h2, None));
        h2.grant().await
    };
    let (attached, asked) = tokio::join!(world.change(with_mac(mac)), free);
    assert_eq!(attached, Ok(Event::NetAttached { mac: mac.into(), mtu_bytes: Some(1400), adopted: false }));
    let Question::Attach(device) = asked else { panic!("{asked:?}") };
    assert_eq!(device.mac.to_string(), mac);
}

/// Writes a file until the disk is full.
fn fill(path: &Path) {
    let mut file = File::create(path).unwrap();
    while file.write_all(&[1; 512]).is_ok() {}
}

/// A coordinator with a stored device, whose disk is then full.
async fn full() -> (World, Played) {
    let world = World::new().await;
    let mut h1 = world.node("h1").await;
    world.lay(&mut [&mut h1]).await;
    world.attach("h1", "tap1", &mut h1).await;
    fill(&world.path("fill"));
    (world, h1)
}

#[tokio::test]
async fn on_a_full_disk_new_devices_are_refused_and_old_ones_can_be_removed() {
    let (world, mut h1) = full().await;
    let lay = NetChange::Lay { shape: Shape::Mesh, center: None, plain: false };
    for wanted in [attach("h1", "tap2"), lay] {
        let failure = world.change(wanted).await.unwrap_err();
        assert!(failure.message.contains("No space left on device"), "{failure:?}");
    }
    let (detached, _) = tokio::join!(world.change(detach("h1", "tap1")), h1.grant());
    detached.unwrap();
    std::fs::remove_file(world.path("fill")).unwrap();
    world.attach("h1", "tap2", &mut h1).await;
}

/// Makes a change fail at the write, although the disk seemed to have room.
async fn break_with(wanted: NetChange) {
    let (world, mut h1) = full().await;
    let elsewhere = tempfile::NamedTempFile::new().unwrap();
    std::fs::remove_file(world.path("store.reserve")).unwrap();
    std::os::unix::fs::symlink(elsewhere.path(), world.path("store.reserve")).unwrap();
    fill(&world.path("more"));
    let changed = async {
        tokio::select! {
            changed = world.change(wanted) => changed,
            (_, question) = h1.hear_question() => panic!("{question:?}"),
        }
    };
    let failure = changed.await.unwrap_err();
    assert!(failure.message.contains("store"), "{failure:?}");
    let broken = tokio::time::timeout(DEVICE_LIMIT, world.cluster.broken()).await.unwrap();
    assert!(broken.to_string().contains("No space left on device"), "{broken}");
    // The disk has room again, but memory and store may differ.
    std::fs::remove_file(world.path("fill")).unwrap();
    let move_away = NetChange::Move { host: "h1".into(), device: "tap1".into(), to: "h1".into() };
    let lay = NetChange::Lay { shape: Shape::Mesh, center: None, plain: false };
    for wanted in [attach("h1", "tap3"), detach("h1", "tap1"), move_away, lay] {
        let failure = world.change(wanted).await.unwrap_err();
        assert!(failure.message.contains("the coordinator is shutting down"), "{failure:?}");
    }
}

#[tokio::test]
async fn a_device_that_cannot_be_noted_ends_the_coordinator() {
    break_with(attach("h1", "tap2")).await;
}

#[tokio::test]
async fn a_device_that_cannot_be_forgotten_ends_the_coordinator() {
    break_with(detach("h1", "tap1")).await;
}

#[tokio::test]
async fn a_layout_that_cannot_be_noted_ends_the_coordinator() {
    break_with(NetChange::Lay { shape: Shape::Mesh, center: None, plain: false }).await;
}
