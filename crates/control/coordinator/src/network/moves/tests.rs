use api::NetChange;
use overlay::topology::NodeId;
use rpc::net;
use rpc::wire::Answer;
use tokio::task::JoinHandle;

use super::*;
use crate::tests::played::{Played, World};

/// The devices and locations that a reconnecting node gets first.
struct Told {
    devices: Vec<net::Device>,
    moving: bool,
    place: Option<NodeId>,
}

/// A move of a station from h1 to h2, which has prepared its device.
struct Begun {
    world: World,
    nodes: Vec<Played>,
    moving: JoinHandle<Result<Event, Failure>>,
    device: net::Device,
}

impl Begun {
    async fn new() -> Self {
        let world = World::new().await;
        let (mut h1, mut h2) = (world.node("h1").await, world.node("h2").await);
        world.lay(&mut [&mut h1, &mut h2]).await;
        world.attach("h1", "tap1", &mut h1).await;
        let cluster = world.cluster.clone();
        let wanted = NetChange::Move { host: "h1".into(), device: "tap1".into(), to: "h2".into() };
        let moving = tokio::spawn(async move { super::super::changes::fulfil(&cluster, wanted).await });
        let Question::Prepare { device, .. } = h2.grant().await else { panic!("others are asked") };
        Self { world, nodes: vec![h1, h2], moving, device }
    }

    /// Restarts the node of the `index`th host. Returns its first messages.
    async fn restart(&mut self, index: usize) -> Told {
        let host = ["h1", "h2"][index];
        self.world.lose(host, self.nodes.remove(index)).await;
        self.nodes.insert(index, self.world.node(host).await);
        let node = &mut self.nodes[index];
        let ToNode::Devices { devices, moving } = node.hear_order().await else { panic!("others come") };
        let moving = moving == [self.device.mac];
        let mut place = None;
        loop {
            let ToNode::Stations { entries, all_until } = node.hear_order().await else {
                panic!("others come")
            };
            place = entries.first().map(|entry| entry.node).or(place);
            if all_until.is_some() {
                return Told { devices, moving, place };
            }
        }
    }

    /// The last messages to both nodes: their devices, and the station's location.
    async fn end(&mut self) -> [(Vec<net::Device>, NodeId); 2] {
        let mut told = vec![];
        for node in &mut self.nodes {
            let devices = loop {
                match node.hear_order().await {
                    ToNode::Devices { devices, moving } if moving.is_empty() => break devices,
                    _ => {}
                }
            };
            let ToNode::Station(entry) = node.hear_order().await else { panic!("others come") };
            assert_eq!(entry.mac, self.device.mac);
            told.push((devices, entry.node));
        }
        told.try_into().unwrap()
    }
}

const H1: NodeId = NodeId(1);
const H2: NodeId = NodeId(2);

#[tokio::test]
async fn a_destination_that_is_restarted_before_the_commit_learns_that_the_station_is_there() {
    let mut begun = Begun::new().await;
    let (number, pause) = begun.nodes[0].hear_question().await;
    assert!(matches!(pause, Question::Pause { .. }));
    let told = begun.restart(1).await;
    assert!(told.devices.is_empty() && told.moving && told.place == Some(H1));
    begun.nodes[0].answer(number, Ok(Answer::Done));
    // The prepared device is gone, so the node can do neither.
    for expected in ["Commit", "Resume"] {
        let (number, question) = begun.nodes[1].hear_question().await;
        assert!(format!("{question:?}").starts_with(expected), "{question:?}");
        begun.nodes[1].answer(number, Err("it has no port here".into()));
        if expected == "Commit" {
            begun.nodes[0].grant().await;
        }
    }
    let failure = (&mut begun.moving).await.unwrap().unwrap_err();
    assert!(failure.message.contains("has moved, but does not run yet"), "{failure:?}");
    let device = begun.device.clone();
    assert_eq!(begun.end().await, [(vec![], H2), (vec![device], H2)]);
}

#[tokio::test]
async fn a_destination_that_is_restarted_after_the_commit_learns_that_the_station_is_there() {
    let mut begun = Begun::new().await;
    begun.nodes[0].grant().await;
    let commit = begun.nodes[1].grant().await;
    assert!(matches!(commit, Question::Commit(Entry { node: H2, .. })), "{commit:?}");
    begun.nodes[0].grant().await;
    let (_, resume) = begun.nodes[1].hear_question().await;
    assert!(matches!(resume, Question::Resume { .. }));
    let told = begun.restart(1).await;
    assert_eq!((told.devices, told.place), (vec![begun.device.clone()], Some(H2)));
    let failure = (&mut begun.moving).await.unwrap().unwrap_err();
    assert!(failure.message.contains("has moved, but does not run yet"), "{failure:?}");
}

#[tokio::test]
async fn a_source_that_is_restarted_before_the_commit_keeps_the_station() {
    let mut begun = Begun::new().await;
    let (_, pause) = begun.nodes[0].hear_question().await;
    assert!(matches!(pause, Question::Pause { .. }));
    let told = begun.restart(0).await;
    assert_eq!((told.devices, told.place), (vec![begun.device.clone()], Some(H1)));
    (&mut begun.moving).await.unwrap().unwrap_err();
    let device = begun.device.clone();
    if told.moving {
        assert_eq!(begun.end().await, [(vec![device], H1), (vec![], H1)]);
    }
}

#[tokio::test]
async fn a_source_that_is_restarted_after_the_commit_learns_that_the_station_has_left() {
    let mut begun = Begun::new().await;
    begun.nodes[0].grant().await;
    let (commit, _) = begun.nodes[0].hear_question().await;
    let told = begun.restart(0).await;
    assert!(told.devices.is_empty() && told.place == Some(H2), "{commit}");
    begun.nodes[1].grant().await;
    begun.nodes[1].grant().await;
    (&mut begun.moving).await.unwrap().unwrap();
    let device = begun.device.clone();
    let ends = begun.end().await;
    assert_eq!(ends, [(vec![], H2), (vec![device], H2)]);
}
