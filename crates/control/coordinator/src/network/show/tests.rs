use api::NetDeviceKind;

use super::*;
use crate::tests::played::World;

#[tokio::test]
async fn devices_of_a_disconnected_host_are_known_from_the_store() {
    let world = World::new().await;
    let (mut h1, mut h2) = (world.node("h1").await, world.node("h2").await);
    world.lay(&mut [&mut h1, &mut h2]).await;
    world.attach("h2", "tap1", &mut h2).await;
    let silent = |names: &[&str]| names.iter().map(|name| (HostName::new(name).unwrap(), None)).collect();
    let found = hosts(&world.cluster, silent(&["h1", "h2"]));
    assert!(found.iter().all(|host| host.connected && host.state.is_none()), "{found:?}");
    world.lose("h2", h2).await;
    // It is no longer part of the overlay.
    world.lay(&mut [&mut h1]).await;
    let answered = [(HostName::new("h1").unwrap(), Some(NetHostState::default()))].into();
    let found = hosts(&world.cluster, answered);
    let names: Vec<_> = found.iter().map(|host| (host.name.as_str(), host.connected)).collect();
    assert_eq!(names, [("h1", true), ("h2", false)]);
    assert!(found[0].noted.is_empty());
    let [tap1] = &found[1].noted[..] else { panic!("{found:?}") };
    assert_eq!((tap1.name.as_str(), tap1.kind, tap1.mtu_bytes), ("tap1", NetDeviceKind::Station, Some(1400)));
    assert_eq!(tap1.address.as_deref(), Some("10.88.0.1/24"));
}
