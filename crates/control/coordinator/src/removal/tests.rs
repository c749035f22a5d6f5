use fabric::{Epoch, FabricId, Vid};
use moves::journal::Instance;
use moves::placement::Placement;
use rpc::removed::{KeyId, Peer};

use super::*;
use crate::lifecycle::Lifecycle;
use crate::network::devices::Devices;
use crate::tests::played::World;

fn host(name: &str) -> HostName {
    HostName::new(name).unwrap()
}

async fn removed(world: &World, name: &str) -> HostRemoved {
    match remove(&world.cluster, name, false).await {
        Ok(Event::HostRemoved(removed)) => removed,
        other => panic!("{other:?}"),
    }
}

/// Starts an instance on `host`.
async fn start(world: &World, name: &str, host: &str) {
    let others = world.cluster.view().snapshot().instances.len() as u16;
    let instance = Instance {
        name: name.into(),
        fabric: FabricId(1),
        group: None,
        placement: Placement::default(),
        host: self::host(host),
        epoch: Epoch::default(),
        spec: Vec::new(),
    };
    world.add(Vid::new(others + 1).unwrap(), instance).await;
}

#[tokio::test]
async fn a_removed_host_is_part_of_nothing_and_is_refused_when_it_reconnects() {
    let world = World::new().await;
    let (mut h1, mut h2) = (world.node("h1").await, world.node("h2").await);
    world.lay(&mut [&mut h1, &mut h2]).await;
    world.attach("h2", "tap1", &mut h2).await;
    let (h1, h2) = (tokio::spawn(h1.believe()), tokio::spawn(h2.believe()));
    assert_eq!(removed(&world, "h2").await.untold, Vec::<String>::new());
    h2.await.unwrap();
    {
        let state = world.cluster.view();
        let present: Vec<_> =
            state.links().addresses().keys().chain(state.links().up()).map(HostName::as_str).collect();
        assert_eq!(present, ["h1", "h1"]);
        assert!(
            !state.get::<Rollout>().plan().is_member(&host("h2"))
                && state.get::<Devices>().count(&host("h2")) == 0
        );
    }
    let Some(FromCoordinator::Dismissed { reason }) = world.refused("h2").await else {
        panic!("the removed host was accepted")
    };
    assert!(reason.contains("host `h2` was removed") && reason.contains("`transhume pki`"), "{reason}");
    assert!(!world.cluster.view().links().addresses().contains_key(&host("h2")));
    // Repeating the removal is harmless: it completes unfinished steps.
    assert_eq!(removed(&world, "h2").await.revoked_tokens, Vec::<u64>::new());
    let list = world.cluster.view().get::<Members>().list();
    assert!(list.bars(&Peer { name: "h2".into(), key: KeyId::of(b"any") }));
    h1.abort();
}

#[tokio::test]
async fn disconnected_hosts_are_named_and_notified_when_they_reconnect() {
    let world = World::new().await;
    let (h1, h2, h3) = (world.node("h1").await, world.node("h2").await, world.node("h3").await);
    world.lose("h3", h3).await;
    let believing = [h1, h2].map(|node| tokio::spawn(node.believe()));
    assert_eq!(removed(&world, "h2").await.untold, ["h3"]);
    let peer = |name: &str| Peer { name: name.into(), key: KeyId::of(b"any") };
    let told = world.node("h3").await.hear_removed().await.unwrap();
    assert!(told.bars(&peer("h2")) && !told.bars(&peer("h1")), "{told:?}");
    believing.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test]
async fn a_host_with_instances_cannot_be_removed() {
    let world = World::new().await;
    let node = world.node("h1").await;
    start(&world, "job1", "h1").await;
    let refused = remove(&world.cluster, "h1", false).await.unwrap_err();
    assert!(
        refused.message.contains("`job1`") && refused.remedy.contains("`transhume drain h1`"),
        "{refused:?}"
    );
    world.lose("h1", node).await;
    let refused = remove(&world.cluster, "h1", false).await.unwrap_err();
    assert!(
        refused.message.contains("`job1`") && refused.remedy.contains("may still run there"),
        "{refused:?}"
    );
    assert!(!world.cluster.view().get::<Members>().is_removed(&host("h1")));
    assert!(refused.remedy.contains("`transhume host remove h1 --lost`"), "{refused:?}");
    assert!(remove(&world.cluster, "h9", false).await.unwrap_err().message.contains("no host `h9`"));
}

async fn lost_host(world: &World, name: &str) -> HostRemoved {
    match remove(&world.cluster, name, true).await {
        Ok(Event::HostRemoved(removed)) => removed,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_host_that_is_lost_takes_its_instances_with_it() {
    let world = World::new().await;
    let (h1, h2) = (world.node("h1").await, world.node("h2").await);
    for (name, host) in [("job2", "h1"), ("job1", "h1"), ("job3", "h2")] {
        start(&world, name, host).await;
    }
    let refused = remove(&world.cluster, "h1", true).await.unwrap_err();
    assert!(refused.message.contains("not lost"), "{refused:?}");
    world.lose("h1", h1).await;
    let believing = tokio::spawn(h2.believe());
    let removed = lost_host(&world, "h1").await;
    assert_eq!(removed.lost_instances, ["job1", "job2"]);
    {
        let state = world.cluster.view();
        let left: Vec<_> = state.snapshot().instances.values().map(|it| it.name.as_str()).collect();
        assert_eq!(left, ["job3"]);
        assert!(
            state.get::<Lifecycle>().has_ended("job1")
                && !state.links().addresses().contains_key(&host("h1"))
        );
    }
    // The host reconnects and is refused as removed.
    assert!(matches!(world.refused("h1").await, Some(FromCoordinator::Dismissed { .. })));
    // The record of a name's former owner does not affect its current owner.
    start(&world, "job1", "h2").await;
    assert_eq!(lost_host(&world, "h1").await.lost_instances, Vec::<String>::new());
    assert!(world.cluster.view().find("job1").is_some());
    believing.abort();
}
