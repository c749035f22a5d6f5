//! A thousand hosts in one process: without sockets, and in virtual time.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use api::{Event, MoveGroupRequest, Request};
use fabric::{Epoch, FabricId, Vid};
use moves::HostName;
use moves::journal::Instance;
use moves::placement::Placement;
use rpc::channel::{self, Sent};
use rpc::removed::{KeyId, Peer};
use rpc::wire::FromCoordinator;
use tokio::io::{AsyncBufReadExt, BufReader, duplex, split};
use tokio::time::timeout;

use super::held::Held;
use super::played::Add;
use crate::client::{Client, User};
use crate::core::{Cluster, NodeLink};
use crate::nodes::Enter;
use crate::open::open_with;
use crate::requests;

const HOSTS: u16 = 1000;

struct World {
    _directory: tempfile::TempDir,
    cluster: Arc<Cluster>,
    nodes: BTreeMap<HostName, Sent<FromCoordinator>>,
}

fn host(number: u16) -> HostName {
    HostName::new(&format!("h{number}")).unwrap()
}

impl World {
    /// A coordinator to which the nodes of all hosts are connected.
    async fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let journal = Held::new(1_000_000, false);
        let cluster = open_with(&directory.path().join("store"), |_| Ok(journal)).unwrap();
        let mut nodes = BTreeMap::new();
        for number in 1..=HOSTS {
            let (outbox, sent) = channel::in_memory();
            let (host, key) = (host(number), KeyId::of(&number.to_le_bytes()));
            let link = NodeLink { serial: 1, runs_instances: true, key, outbox, pending: Default::default() };
            let peer = Peer { name: host.to_string(), key };
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, number));
            let entrance = Enter { cluster: cluster.clone(), host: host.clone(), peer, link, address };
            assert!(cluster.run(entrance).await.is_ok_and(|occupant| occupant.is_none()));
            nodes.insert(host, sent);
        }
        Self { _directory: directory, cluster, nodes }
    }

    /// Adds an instance that runs on the host of this number.
    async fn add(&self, lid: u16, on: u16, group: Option<&str>) {
        let instance = Instance {
            name: format!("i{lid}"),
            fabric: FabricId(1),
            group: group.map(Into::into),
            placement: Placement::default(),
            host: host(on),
            epoch: Epoch(0),
            spec: Vec::new(),
        };
        self.cluster.run(Add { vid: Vid::new(lid).unwrap(), instance, is_started: true }).await;
    }

    /// The events that root receives within so much time after a request, up to the last one.
    async fn request(&self, request: Request, time: Duration) -> Vec<Event> {
        let (near, far) = duplex(1 << 20);
        let (reader, writer) = split(near);
        let mut client = Client::new(BufReader::new(Box::new(reader)), Box::new(writer));
        let answering = requests::fulfil(&self.cluster, request, User { user: 0, group: 0 }, &mut client);
        let _unless_it_lasts = timeout(time, answering).await;
        drop(client);
        let (mut lines, mut events) = (BufReader::new(far).lines(), Vec::new());
        while let Some(line) = lines.next_line().await.unwrap() {
            events.push(api::from_line(&line).unwrap());
        }
        events
    }
}

#[tokio::test(start_paused = true)]
async fn a_group_moves_among_a_thousand_hosts_without_sockets_and_in_virtual_time() {
    let mut world = World::new().await;
    for number in 1..=HOSTS {
        world.add(number, number, None).await;
    }
    for member in 1..=20 {
        world.add(HOSTS + member, 1, Some("g")).await;
    }
    // Each node was notified of every host that connected.
    world.nodes.values_mut().for_each(Sent::clear);
    let listed = world.request(Request::Hosts, Duration::from_secs(1)).await;
    let [Event::Hosts(hosts)] = &listed[..] else { panic!("others are told") };
    assert!(hosts.len() == usize::from(HOSTS) && hosts.iter().all(|host| host.up));
    let to: Vec<_> = (101..=110).map(|number| host(number).to_string()).collect();
    let wanted = MoveGroupRequest { group: "g".into(), hosts: to, force: false, dry_run: false };
    let events = world.request(Request::MoveGroup(wanted), Duration::from_secs(60)).await;
    let Some(Event::GroupBegun { moves }) = events.first() else { panic!("{events:?}") };
    let mut destinations = BTreeMap::<_, u32>::new();
    moves.iter().for_each(|begun| *destinations.entry(begun.to.clone()).or_default() += 1);
    assert!(destinations.len() == 10 && destinations.values().all(|members| *members == 2));
    // No node answers. All moves are rolled back when the time for the checks is up, and wait for their source.
    let is_rolled_back = |event: &Event| matches!(event, Event::Waiting { outlook, .. } if outlook.contains("the move is rolled back"));
    assert!(events.iter().any(is_rolled_back), "{events:?}");
    let directed =
        |sent: &mut Sent<FromCoordinator>| sent.any(|message| matches!(message, FromCoordinator::Moves(_)));
    let directed = world.nodes.iter_mut().filter_map(|(host, sent)| directed(sent).then(|| host.clone()));
    // The source is asked first, and the destinations learn that the move is over.
    let expected: BTreeSet<_> = [1].into_iter().chain(101..=110).map(host).collect();
    assert_eq!(directed.collect::<BTreeSet<_>>(), expected);
}
