//! Moves of a station's device to another host; the station keeps its MAC and address.
//!
//! ```text
//! source          coordinator         destination        others
//!   │                  │── Prepare ───────▶│ makes it, muted
//!   │◀──── Pause ──────│
//!   │ keeps frames     │ notes the new place: the point of no return
//!   │◀──── Commit ─────│──── Commit ──────▶│── Commit ─────▶│
//!   │ sends them on    │── Resume ────────▶│ carries frames
//!   │◀─── Devices ─────│                   │
//! ```
//!
//! Until the point of no return, a failure leaves the station on its source; afterwards it has moved. At the end both hosts get their
//! lists of devices, and a node that was disconnected gets its list when it reconnects, so no partial move remains.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ::moves::HostName;
use api::{Event, Failure};
use overlay::switch::Entry;
use rpc::net::{Question, ToNode};
use store::DeviceKey;
use tokio::task::JoinSet;

use super::devices::{self, Device};
use super::rollout::Order;
use crate::cluster::Cluster;
use crate::failure;

/// Time limit for a node to make a device.
const PREPARE_LIMIT: Duration = Duration::from_secs(10);

/// Time limit for a node's other steps, which take no time by themselves. Tests restart their nodes meanwhile.
const LIMIT: Duration = Duration::from_secs(if cfg!(test) { 60 } else { 2 });

/// How long the station waits at most for nodes that have not yet learned its new location; they would reject its frames. The rest of
/// a hand-over takes a few milliseconds, and the whole has a target of 50 ms.
const HEARSAY: Duration = Duration::from_millis(20);

/// A move in progress.
struct Move {
    cluster: Arc<Cluster>,
    from: HostName,
    to: HostName,
    old_key: DeviceKey,
    new_key: DeviceKey,
    /// The device after the move.
    device: Device,
    entry: Entry,
}

/// Moves the device `name` from `from` to `to`.
///
/// # Errors
/// If the device is not moved, or is moved but does not run yet.
pub async fn make(
    cluster: Arc<Cluster>,
    from: HostName,
    name: String,
    to: HostName,
) -> Result<Event, Failure> {
    let moving = Move::begin(&cluster, from, &name, to)?;
    let result = moving.carry_out(&name).await;
    moving.end();
    result
}

impl Move {
    fn begin(cluster: &Arc<Cluster>, from: HostName, name: &str, to: HostName) -> Result<Self, Failure> {
        let (old_key, new_key) = (devices::key(&from, name), devices::key(&to, name));
        let inner = &mut *cluster.lock();
        inner.check_whole()?;
        inner.store.ready().map_err(|error| failure::of_store(&error))?;
        if inner.devices.get(&old_key).is_err() {
            inner.check_no_nic(&from, name)?;
        }
        let device = inner.devices.get(&old_key)?.clone();
        if from == to {
            return Err(Failure::new(format!("{name} is already on {from}"), "choose another host"));
        }
        if let Some(away) = [&from, &to].into_iter().find(|host| !inner.nodes.contains_key(host)) {
            return Err(failure::host_down(away));
        }
        let number = inner.network.plan().number(&to).ok_or_else(|| super::plan::not_joined(&to))?;
        let no_station = || {
            let remedy = "detach it, and make another proxy on that host: `transhume net proxy`";
            Failure::new(format!("{name} is a proxy, which cannot move because its LAN stays"), remedy)
        };
        device.entry(number).ok_or_else(no_station)?;
        if device.is_adopted() {
            let what = format!("{name} is an adopted TAP of {from} and cannot move");
            return Err(Failure::new(what, "attach a new device, which can move: `transhume net attach`"));
        }
        inner.devices.check_free(&new_key)?;
        inner.devices.begin(&old_key)?;
        inner.devices.begin(&new_key).inspect_err(|_| inner.devices.end(&old_key))?;
        let device = inner.devices.begin_move(device);
        let entry = device.entry(number).ok_or_else(no_station)?;
        Ok(Self { cluster: cluster.clone(), from, to, old_key, new_key, device, entry })
    }

    async fn carry_out(&self, name: &str) -> Result<Event, Failure> {
        let mac = self.entry.mac;
        let prepare = Question::Prepare { device: self.device.for_node(name), epoch: self.entry.epoch };
        self.ask(&self.to, prepare, PREPARE_LIMIT).await?;
        let paused = Instant::now();
        self.ask(&self.from, Question::Pause { mac }, LIMIT).await?;
        self.commit()?;
        self.tell_all().await;
        self.ask(&self.to, Question::Resume { mac }, LIMIT).await.map_err(|failure| {
            let help = format!("it runs as soon as the node of {} reconnects", self.to);
            Failure::new(format!("{name} has moved, but does not run yet: {}", failure.message), help)
        })?;
        let pause_us = u64::try_from(paused.elapsed().as_micros()).unwrap_or(u64::MAX);
        Ok(Event::NetMoved { pause_us })
    }

    async fn ask(&self, host: &HostName, question: Question, limit: Duration) -> Result<(), Failure> {
        self.cluster.ask_net(host, question, limit).await?;
        Ok(())
    }

    /// The point of no return.
    fn commit(&self) -> Result<(), Failure> {
        let inner = &mut *self.cluster.lock();
        inner.check_whole()?;
        // One of the hosts may have been removed meanwhile.
        inner.devices.get(&self.old_key)?;
        if !inner.network.plan().is_member(&self.to) {
            return Err(super::plan::not_joined(&self.to));
        }
        let committed =
            inner.devices.commit_move(&inner.store, &self.old_key, &self.new_key, self.device.clone());
        committed.map_err(|error| self.cluster.not_written(inner, error))
    }

    /// Announces the new location to all nodes, and waits for their confirmations or a time limit.
    async fn tell_all(&self) {
        let members: Vec<_> = self.cluster.lock().network.plan().members().cloned().collect();
        let mut telling = JoinSet::new();
        for host in members {
            let (cluster, entry) = (self.cluster.clone(), self.entry.clone());
            // Other nodes get all locations when they reconnect.
            telling.spawn(async move {
                let _ = cluster.ask_net(&host, Question::Commit(entry), HEARSAY).await;
            });
        }
        telling.join_all().await;
    }

    /// Sends both hosts their lists of devices and the station's location: a node that has restarted meanwhile had no such device
    /// when the location was announced.
    fn end(&self) {
        let inner = &mut *self.cluster.lock();
        // Only reopening the store shows the location.
        if inner.is_broken {
            return;
        }
        inner.devices.end_move(self.entry.mac);
        inner.devices.end(&self.old_key);
        inner.devices.end(&self.new_key);
        inner.settle(&self.from);
        inner.settle(&self.to);
        let number = |host: &str| inner.network.plan().number(&HostName::new(host).ok()?);
        if let Some(entry) = inner.devices.entry(self.entry.mac, number) {
            let to = vec![self.from.clone(), self.to.clone()];
            inner.order([Order { to, what: ToNode::Station(entry) }]);
        }
    }
}

#[cfg(test)]
mod tests {
    use api::NetChange;
    use overlay::topology::NodeId;
    use rpc::net;
    use rpc::wire::Answer;
    use tokio::task::JoinHandle;

    use super::super::played::{Played, World};
    use super::*;

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
}
