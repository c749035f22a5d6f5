use rpc::net::{FromNode, Question};
use rpc::wire::Answer;

use super::*;
use crate::open::open;
use crate::tests::played::{Played, Said, World};

#[tokio::test]
async fn of_many_wishes_of_a_node_the_first_and_the_last_are_fulfilled() {
    let world = World::new().await;
    let mut node = world.node("h1").await;
    world.lay(&mut [&mut node]).await;
    for number in 0..1000 {
        let (device, address) = (format!("tap{number}"), None);
        node.say(FromNode::Own { device, address, mtu: 1400, former: None });
    }
    let mut asked = vec![];
    while asked.last().is_none_or(|name| name != "tap999") {
        let Question::Attach(device) = node.grant().await else { panic!("others are asked") };
        asked.push(device.name);
    }
    // The first request may be done before all have arrived.
    assert!(asked.len() < 100, "{asked:?}");
    while !world.cluster.view().get::<Wishes>().0.is_empty() {
        sleep(LOOK).await;
    }
}

#[tokio::test]
async fn a_wish_that_is_passed_over_leaves_its_former_device_and_one_that_fails_ends_no_other() {
    let world = World::new().await;
    let mut node = world.node("h1").await;
    world.lay(&mut [&mut node]).await;
    world.attach("h1", "tap0", &mut node).await;
    let wish = |node: &Played, device: &str, former: Option<&str>| {
        let (device, former) = (device.to_owned(), former.map(str::to_owned));
        node.say(FromNode::Own { device, address: None, mtu: 1400, former });
    };
    wish(&node, "tap1", None);
    let (first, _) = node.hear_question().await;
    wish(&node, "tap2", Some("tap0"));
    wish(&node, "tap3", Some("tap2"));
    node.answer(first, Err("it cannot be made".into()));
    let (last, device) = loop {
        match node.hear().await {
            Said::Question(number, Question::Attach(device)) => break (number, device),
            Said::Order(ToNode::NotPlugged { reason }) => panic!("{reason}"),
            _ => {}
        }
    };
    assert_eq!(device.name, "tap3");
    node.answer(last, Ok(Answer::Done));
    while !world.cluster.view().get::<Wishes>().0.is_empty() {
        sleep(LOOK).await;
    }
    let (host, state) = (HostName::new("h1").unwrap(), world.cluster.view());
    let is_there = |name: &&str| state.get::<Devices>().get(&devices::key(&host, name)).is_ok();
    assert_eq!(["tap0", "tap1", "tap2", "tap3"].iter().filter(|name| is_there(name)).count(), 1);
    assert!(is_there(&"tap3"));
}

#[tokio::test]
async fn a_device_stays_if_its_node_disconnects_before_it_confirms() {
    let world = World::new().await;
    let mut node = world.node("h1").await;
    world.lay(&mut [&mut node]).await;
    let (device, address) = ("tap1".to_owned(), None);
    node.say(FromNode::Own { device, address, mtu: 1400, former: None });
    let (_, Question::Attach(device)) = node.hear_question().await else { panic!("others are asked") };
    world.lose("h1", node).await;
    let mut node = world.node("h1").await;
    // The node has the device, and does not request it again.
    let devices = loop {
        match node.hear_order().await {
            ToNode::Devices { devices, .. } => break devices,
            ToNode::NotPlugged { reason } => panic!("{reason}"),
            _ => {}
        }
    };
    assert_eq!(devices, [device]);
    while !world.cluster.view().get::<Wishes>().0.is_empty() {
        sleep(LOOK).await;
    }
    assert_eq!(world.cluster.view().get::<Devices>().count(&HostName::new("h1").unwrap()), 1);
    world.attach("h1", "tap2", &mut node).await;
}

#[tokio::test]
async fn an_impossible_request_is_refused_before_it_is_stored() {
    let directory = tempfile::tempdir().unwrap();
    let cluster = open(&directory.path().join("store")).unwrap();
    let host = HostName::new("b").unwrap();
    let ask = async |device: &str, address: &str| {
        let kind = DeviceKind::Station { address: Some(address.into()), mtu: 1400 };
        let wanted = Wanted { device: device.into(), kind, former: Some("tap1".into()) };
        Failure::from(try_to_plug(&cluster, &host, wanted).await.unwrap_err()).message
    };
    assert!(ask(&"x".repeat(LONGEST_NAME + 1), "10.88.0.2/24").await.contains("invalid device"));
    assert!(ask("tap0", &"1".repeat(65)).await.contains("invalid device"));
    assert!(ask("tap0", "10.88.0.2/24").await.contains("no host"));
    assert_eq!(cluster.view().get::<Devices>().count(&host), 0);
}
