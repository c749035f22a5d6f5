use std::net::Ipv4Addr;
use std::path::Path;

use rpc::pki::{self, Identity};
use rpc::removed::KeyId;

use super::*;
use crate::open::open;
use crate::tests::played::World;

fn endpoint(directory: &Path, name: &str) -> Endpoint {
    pki::issue(directory, name).unwrap();
    Endpoint::new(Identity::load(directory, name).unwrap()).unwrap()
}

/// The coordinator's end of a connection to `host`.
async fn connection(host: &HostName) -> NodeLink {
    let directory = tempfile::tempdir().unwrap();
    pki::create_authority(directory.path()).unwrap();
    let coordinator = endpoint(directory.path(), COORDINATOR);
    let node = endpoint(directory.path(), host.as_str());
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let (accepted, _) = tokio::join!(
        async { coordinator.accept(listener.accept().await.unwrap().0).await.unwrap().0 },
        async { node.connect(address, COORDINATOR).await.unwrap() }
    );
    let outbox = channel::open::<FromCoordinator, FromNode>(accepted).0;
    let key = KeyId::of(&[]);
    NodeLink { serial: 0, runs_instances: true, key, outbox, pending: Pending::default() }
}

/// A node that comes and goes.
struct Register {
    cluster: Arc<Cluster>,
    host: HostName,
    link: NodeLink,
    address: SocketAddr,
}

impl Command for Register {
    type Reply = ();

    async fn run(self, owner: &mut Owner) {
        register(&self.cluster, owner, &self.host, self.link, self.address).await;
    }
}

/// Whether a host is listed, and whether it is connected for the moves.
struct Look(HostName);

impl Command for Look {
    type Reply = (bool, bool);

    async fn run(self, owner: &mut Owner) -> Self::Reply {
        (owner.view().links().is_up(&self.0), owner.machine().is_connected(&self.0))
    }
}

async fn come(cluster: &Arc<Cluster>, host: &HostName, link: &NodeLink, address: SocketAddr) {
    let (cluster, host, link) = (cluster.clone(), host.clone(), link.clone());
    cluster.clone().run(Register { cluster, host, link, address }).await;
}

async fn go(cluster: &Cluster, host: &HostName, link: &NodeLink) {
    cluster.run(Unregister { host: host.clone(), link: link.clone() }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_is_connected_for_moves_exactly_while_it_is_listed() {
    let directory = tempfile::tempdir().unwrap();
    let cluster = open(&directory.path().join("store")).unwrap();
    let host = HostName::new("h1").unwrap();
    let link = connection(&host).await;
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
    let come_and_go = |serials: std::ops::Range<u64>| {
        let (cluster, host, link) = (cluster.clone(), host.clone(), link.clone());
        tokio::spawn(async move {
            for serial in serials {
                let link = NodeLink { serial, ..link.clone() };
                come(&cluster, &host, &link, address).await;
                go(&cluster, &host, &link).await;
            }
        })
    };
    let both = [come_and_go(0..1000), come_and_go(1000..2000)];
    while both.iter().any(|one| !one.is_finished()) {
        let (is_listed, is_connected) = cluster.run(Look(host.clone())).await;
        assert_eq!(is_listed, is_connected);
    }
    for one in both {
        one.await.unwrap();
    }
}

#[test]
fn a_node_that_listens_everywhere_is_reached_where_it_comes_from() {
    let from = "10.0.0.7:5000".parse().unwrap();
    let everywhere = "0.0.0.0:7700".parse().unwrap();
    assert_eq!(reachable_address(everywhere, from), "10.0.0.7:7700".parse().unwrap());
    let one = "10.0.0.8:7700".parse().unwrap();
    assert_eq!(reachable_address(one, from), one);
}

#[test]
fn the_coordinators_name_is_no_hosts() {
    assert!(accept_host("h1", VERSION).is_ok());
    assert!(accept_host(COORDINATOR, VERSION).is_err());
    assert!(accept_host("h1", VERSION + 1).is_err());
}

#[tokio::test]
async fn a_node_takes_the_place_of_its_former_connection_from_where_that_is() {
    let directory = tempfile::tempdir().unwrap();
    let cluster = open(&directory.path().join("store")).unwrap();
    let host = HostName::new("h1").unwrap();
    let link = NodeLink { serial: 2, ..connection(&host).await };
    let (here, there) = (SocketAddr::from(([10, 0, 0, 1], 1)), SocketAddr::from(([10, 0, 0, 2], 1)));
    let keeps = |serial, address| {
        let later = NodeLink { serial, ..link.clone() };
        occupant(&cluster.view(), &host, &later, address).map(|(known, _)| known)
    };
    assert_eq!(keeps(3, here), None);
    come(&cluster, &host, &link, here).await;
    assert_eq!(keeps(3, here), None);
    assert_eq!(keeps(3, there), Some(here));
    assert_eq!(keeps(1, here), Some(here), "a later connection arrived while it waited");
    go(&cluster, &host, &link).await;
    assert_eq!(keeps(3, there), None);
}

/// The port of h1's node, and the serial number of its connection.
fn place(world: &World) -> (u16, u64) {
    let (state, host) = (world.cluster.view(), HostName::new("h1").unwrap());
    (state.links().addresses()[&host].port(), state.links().get(&host).unwrap().serial)
}

#[tokio::test]
async fn a_node_whose_address_has_changed_comes_in_when_its_former_connection_has_ended() {
    let world = World::new().await;
    let mut former = world.node("h1").await;
    let before = place(&world);
    let mut again = world.greet("h1", before.0 + 1).await;
    let (_, asked) = former.hear_question().await;
    assert_eq!((asked, place(&world)), (Question::UpToDate, before), "both at once");
    drop(former);
    let told = again.hear_any().await;
    assert!(matches!(told, Some(FromCoordinator::Removed { .. })), "{told:?}");
    assert_eq!(place(&world).0, before.0 + 1);
}

#[tokio::test]
async fn a_node_is_refused_while_another_one_of_its_name_answers() {
    let world = World::new().await;
    let mut first = world.node("h1").await;
    let before = place(&world);
    let mut second = world.greet("h1", before.0 + 1).await;
    let (number, _) = first.hear_question().await;
    first.answer(number, Err("no overlay joins it".into()));
    let Some(FromCoordinator::Refused { reason }) = second.hear_any().await else { panic!("it is not") };
    let known = format!("at 127.0.0.1:{}, is connected", before.0);
    assert!(reason.contains(&known) && reason.contains("another name"), "{reason}");
    assert_eq!(place(&world), before);
}
