use std::fs;

use super::*;
use crate::core::Cluster;
use crate::open::open;
use crate::tests::played::World;

fn listed(cluster: &Cluster) -> Vec<(String, bool)> {
    list(&cluster.view()).into_iter().map(|host| (host.name, host.up)).collect()
}

#[tokio::test]
async fn hosts_that_are_down_are_listed_also_after_a_restart() {
    let world = World::new().await;
    let (mut h1, mut h2) = (world.node("h1").await, world.node("h2").await);
    world.lay(&mut [&mut h1, &mut h2]).await;
    world.lose("h2", h2).await;
    assert_eq!(listed(&world.cluster), [("h1".into(), true), ("h2".into(), false)]);
    // The store as a successor finds it after this coordinator was killed.
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store");
    fs::copy(world.path("store"), &store).unwrap();
    let again = open(&store).unwrap();
    assert_eq!(listed(&again), [("h1".into(), false), ("h2".into(), false)]);
    let state = again.view();
    assert!(find(&state, "h2").is_ok());
    assert_eq!(find(&state, "h3").unwrap_err().message, "there is no host `h3`");
}
