use super::*;
use crate::tests::played::{World, attach_with};

#[tokio::test]
async fn an_address_that_a_device_has_is_not_restored() {
    let world = World::new().await;
    let mut h1 = world.node("h1").await;
    world.lay(&mut [&mut h1]).await;
    let wanted = attach_with("h1", "tap1", "10.77.1.2/16");
    let (attached, _) = tokio::join!(world.change(wanted), h1.grant());
    attached.unwrap();
    let [before, its] = [1, 2].map(|lid| Vid::new(lid).unwrap());
    let state = world.cluster.view();
    check_address(&state, before, "job").unwrap();
    let refused = check_address(&state, its, "job").unwrap_err().to_string();
    assert!(refused.contains("the address 10.77.1.2 of `job` now belongs to device tap1 on h1"), "{refused}");
}
