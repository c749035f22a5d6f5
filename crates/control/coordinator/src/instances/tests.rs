use super::*;
use crate::tests::played::{World, attach_with};

#[tokio::test]
async fn an_instance_does_not_get_the_address_of_a_device() {
    let world = World::new().await;
    let mut h1 = world.node("h1").await;
    world.lay(&mut [&mut h1]).await;
    let wanted = attach_with("h1", "tap1", "10.77.1.2/16");
    let (attached, _) = tokio::join!(world.change(wanted), h1.grant());
    attached.unwrap();
    for expected in [1, 3] {
        let vid = free_vid(&world.cluster.view()).unwrap();
        assert_eq!(vid.lid(), expected);
        world.cluster.edit(move |state| state.get_mut::<Lifecycle>().give_out(vid)).await;
    }
}
