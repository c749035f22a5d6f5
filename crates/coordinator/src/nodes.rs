//! Connections of nodes.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use api::Occurrence;
use fabric::Vid;
use fabric::session::Word;
use moves::HostName;
use moves::coordinator::Input;
use moves::journal::Exit;
use moves::protocol::ToCoordinator;
use pace::Pace;
use rpc::channel::{self, Inbox};
use rpc::lobby::{Lobby, PAUSE};
use rpc::net::Question;
use rpc::removed::Peer;
use rpc::wire::{FromCoordinator, FromNode, VERSION};
use rpc::{COORDINATOR, Endpoint, Pending};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use crate::admission;
use crate::cluster::{Cluster, Inner, NodeLink};
use crate::directory;
use crate::exec;
use crate::names;
use crate::network;
use crate::removal;

/// Time limit for a node's Hello.
const HELLO_LIMIT: Duration = Duration::from_secs(5);

/// How long a node waits for its name, before it has to reconnect: longer than a dead connection can stay
/// undetected ([`SILENCE`](rpc::channel::SILENCE)).
const PLACE_LIMIT: Duration = Duration::from_secs(10);

static SERIALS: AtomicU64 = AtomicU64::new(1);

/// Accepts connections of nodes for as long as it is polled.
pub async fn accept(cluster: Arc<Cluster>, endpoint: Endpoint, listener: TcpListener) {
    let lobby = Lobby::new();
    let complaints = Arc::new(Mutex::new(pace::complaints()));
    loop {
        match listener.accept().await {
            Ok((tcp, address)) => {
                if let Some(permit) = lobby.enter(address.ip(), is_host(&cluster, address.ip())) {
                    let (cluster, endpoint, complaints) =
                        (cluster.clone(), endpoint.clone(), complaints.clone());
                    tokio::spawn(async move {
                        if let Err(error) = converse(&cluster, &endpoint, tcp, permit).await {
                            cut_off(address, &error, &complaints);
                        }
                    });
                    continue;
                }
            }
            Err(error) => tracing::warn!("cannot accept a connection: {error}"),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

fn is_host(cluster: &Cluster, address: IpAddr) -> bool {
    cluster.lock().hosts.values().any(|host| host.ip() == address)
}

fn cut_off(address: SocketAddr, error: &io::Error, complaints: &Mutex<Pace>) {
    if complaints.lock().unwrap_or_else(PoisonError::into_inner).take(Instant::now()) {
        tracing::warn!("connection from node {address} closed: {error}");
    }
}

async fn converse(
    cluster: &Arc<Cluster>,
    endpoint: &Endpoint,
    tcp: TcpStream,
    permit: impl Send,
) -> io::Result<()> {
    let from = tcp.peer_addr()?;
    let (stream, peer) = endpoint.accept_any(tcp).await?;
    let Some(peer) = peer else { return admission::serve(cluster, stream).await };
    let (outbox, mut inbox) = channel::open::<FromCoordinator, FromNode>(stream);
    let hello = timeout(HELLO_LIMIT, inbox.receive()).await??;
    drop(permit);
    let Some(FromNode::Hello { version, address, here, runs_instances }) = hello else {
        return Err(io::Error::other("the first message of the node is not Hello"));
    };
    let address = reachable_address(address, from);
    let serial = SERIALS.fetch_add(1, Ordering::Relaxed);
    let link = NodeLink { serial, runs_instances, key: peer.key, outbox, pending: Pending::default() };
    let entered = match accept_host(&peer.name, version) {
        Ok(host) => timeout(PLACE_LIMIT, take_place(cluster, host, &peer, &link, address)).await?,
        Err(reason) => Err(FromCoordinator::Refused { reason }),
    };
    let host = match entered {
        Ok(host) => host,
        Err(refusal) => {
            let _ = link.outbox.send(&refusal);
            // Keep the connection open until the node has read the refusal.
            let _ = timeout(HELLO_LIMIT, inbox.receive()).await;
            return Err(io::Error::other(format!("the node was refused: {refusal:?}")));
        }
    };
    report_lost(cluster, &host, &here);
    let result = listen(cluster, &host, &link, &mut inbox).await;
    unregister(cluster, &host, &link);
    result
}

fn accept_host(name: &str, version: u16) -> Result<HostName, String> {
    if version != VERSION {
        return Err(format!(
            "the node speaks protocol version {version}, the coordinator version {VERSION}: install the same release on all hosts"
        ));
    }
    if name == COORDINATOR {
        return Err(format!(
            "the host name {COORDINATOR} is reserved: issue the host a certificate for another name"
        ));
    }
    HostName::new(name).map_err(|error| error.to_string())
}

/// Registers the node of `host` as soon as no other node has its name. The holder of the name may be the same node at its
/// former address, over a dead connection whose loss is not yet detected: the coordinator then waits for the answer to a probe,
/// or for the end of that connection.
async fn take_place(
    cluster: &Arc<Cluster>,
    host: HostName,
    peer: &Peer,
    link: &NodeLink,
    address: SocketAddr,
) -> Result<HostName, FromCoordinator> {
    loop {
        let mut ended = std::pin::pin!(cluster.link_ended.notified());
        ended.as_mut().enable();
        let Some((known, former)) = enter(cluster, &host, peer, link, address)? else { return Ok(host) };
        let ask =
            |number| former.outbox.send(&FromCoordinator::AskNet { number, question: Question::UpToDate });
        tokio::select! {
            // A negative answer also proves that the node is alive.
            Ok(_) = former.pending.ask(PLACE_LIMIT, ask) => {
                return Err(FromCoordinator::Refused { reason: name_is_taken(known) });
            }
            () = ended => {}
        }
    }
}

/// Registers the node of `host`, unless it was removed. If another node occupies the name, returns that node and its address.
fn enter(
    cluster: &Arc<Cluster>,
    host: &HostName,
    peer: &Peer,
    link: &NodeLink,
    address: SocketAddr,
) -> Result<Option<(SocketAddr, NodeLink)>, FromCoordinator> {
    let mut inner = cluster.lock();
    if !cluster.gate.admits(peer) {
        return Err(FromCoordinator::Dismissed { reason: removal::farewell(cluster, &peer.name) });
    }
    let occupant = occupant(&inner, host, link, address);
    if occupant.is_none() {
        register(cluster, &mut inner, host, link.clone(), address);
    }
    Ok(occupant)
}

/// A node that reconnects from its former address replaces its previous connection, but not a later one. Another node with the same
/// name must not: the coordinator would conclude that the first node's instances are lost.
fn occupant(
    inner: &Inner,
    host: &HostName,
    link: &NodeLink,
    address: SocketAddr,
) -> Option<(SocketAddr, NodeLink)> {
    let (present, known) = (inner.nodes.get(host)?, *inner.hosts.get(host)?);
    (known != address || present.serial > link.serial).then(|| (known, present.clone()))
}

fn name_is_taken(known: SocketAddr) -> String {
    format!(
        "another node of this name, at {known}, is connected: stop that one, or give this one another name"
    )
}

/// The address at which others reach the node: the one it reports, or its source address if it listens on all addresses.
fn reachable_address(said: SocketAddr, from: SocketAddr) -> SocketAddr {
    if said.ip().is_unspecified() { SocketAddr::new(from.ip(), said.port()) } else { said }
}

// The list of hosts and the machine change under one lock. Otherwise a listed host might not yet be a valid destination, and
// the loss of a connection might remove its successor from the machine.

fn register(cluster: &Arc<Cluster>, inner: &mut Inner, host: &HostName, link: NodeLink, address: SocketAddr) {
    tracing::info!("host {host} connected from {address}");
    inner.log.note(&Occurrence::HostConnected { host: host.to_string(), address: address.to_string() });
    inner.hosts.insert(host.clone(), address);
    inner.nodes.insert(host.clone(), link);
    inner.send(host, &FromCoordinator::Removed { number: None, removed: inner.members.list() });
    let hosts = inner.hosts.iter().map(|(host, address)| (host.clone(), *address)).collect();
    inner.send_all(&FromCoordinator::Hosts(hosts));
    names::tell_all(inner, host);
    cluster.input_to(inner, Input::LinkUp(host.clone()));
    network::connected(cluster, inner, host);
}

fn unregister(cluster: &Cluster, host: &HostName, link: &NodeLink) {
    link.pending.close();
    let mut inner = cluster.lock();
    if is_present(&inner, host, link) {
        tracing::info!("host {host} disconnected");
        inner.log.note(&Occurrence::HostLost { host: host.to_string() });
        inner.nodes.remove(host);
        inner.network.disconnected(host);
        cluster.input_to(&mut inner, Input::LinkDown(host.clone()));
    }
    cluster.link_ended.notify_waiters();
}

/// Instances whose host no longer knows them ended when the host lost its state.
fn report_lost(cluster: &Cluster, host: &HostName, here: &[Vid]) {
    let lost: Vec<_> = {
        let inner = cluster.lock();
        let image = inner.machine.image();
        let moving = |vid| image.moves.values().any(|record| record.vid == vid);
        let instances = image.instances.iter().filter(|(vid, instance)| {
            instance.host == *host && !here.contains(vid) && !inner.starting.contains(vid) && !moving(**vid)
        });
        instances.map(|(vid, instance)| (*vid, instance.epoch)).collect()
    };
    for (vid, epoch) in lost {
        let exit = Exit::Lost { reason: format!("host {host} has lost its state") };
        let message = ToCoordinator::Exited { vid, epoch, exit };
        cluster.input(Input::Message { from: host.clone(), message });
    }
}

async fn listen(
    cluster: &Arc<Cluster>,
    host: &HostName,
    link: &NodeLink,
    inbox: &mut Inbox<FromNode>,
) -> io::Result<()> {
    while let Some(message) = inbox.receive().await? {
        // A message from a removed or replaced node may still be queued.
        if !is_present(&cluster.lock(), host, link) {
            return Ok(());
        }
        match message {
            FromNode::Hello { .. } => return Err(io::Error::other("the node sent a second Hello")),
            FromNode::Moves(message) => {
                cluster.input(Input::Message { from: host.clone(), message });
            }
            FromNode::Answer { number, answer } => link.pending.answer(number, answer),
            FromNode::Measured { id, measurement } => cluster.lock().measured(host, id, measurement),
            FromNode::Processes { vid, indexes } => directory::processes(cluster, host, vid, indexes),
            FromNode::OutOfMemory { vid, processes, limit } => {
                note_shortage(&cluster.lock(), host, vid, (processes, limit));
            }
            FromNode::Net(message) => network::heard(cluster, host, message),
            FromNode::Sessions { vid, word } => sessions_say(cluster, host, link, vid, word),
            FromNode::Directory { process, number, request } => {
                directory::ask(cluster, host, process, number, request);
            }
        }
    }
    Ok(())
}

/// Logs that the kernel's OOM killer has ended processes of an instance, at a memory limit or for the whole host.
fn note_shortage(inner: &Inner, host: &HostName, vid: Vid, (processes, limit_bytes): (u64, Option<u64>)) {
    if let Some(instance) = inner.machine.image().instances.get(&vid) {
        let (instance, host) = (instance.name.clone(), host.to_string());
        inner.log.note(&Occurrence::OutOfMemory { instance, host, processes, limit_bytes });
    }
}

/// Whether this connection is current. Messages from a replaced connection are ignored, because they may be stale.
fn is_present(inner: &Inner, host: &HostName, link: &NodeLink) -> bool {
    inner.nodes.get(host).is_some_and(|present| present.serial == link.serial)
}

fn sessions_say(cluster: &Cluster, host: &HostName, link: &NodeLink, vid: Vid, word: Word) {
    let inner = cluster.lock();
    if is_present(&inner, host, link) && word.is_within_limits() {
        exec::heard(&inner, host, vid, word);
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::path::Path;
    use std::sync::atomic::AtomicBool;

    use rpc::pki::{self, Identity};
    use rpc::removed::KeyId;

    use super::*;
    use crate::network::played::World;

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

    #[tokio::test]
    async fn a_host_is_connected_for_the_moves_as_soon_and_as_long_as_it_is_listed() {
        let directory = tempfile::tempdir().unwrap();
        let cluster = Cluster::open(&directory.path().join("store")).unwrap();
        let host = HostName::new("h1").unwrap();
        let link = connection(&host).await;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let come_and_go = |serials: std::ops::Range<u64>| {
                for serial in serials {
                    let link = NodeLink { serial, ..link.clone() };
                    register(&cluster, &mut cluster.lock(), &host, link.clone(), address);
                    unregister(&cluster, &host, &link);
                }
            };
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let inner = cluster.lock();
                    assert_eq!(inner.nodes.contains_key(&host), inner.machine.is_connected(&host));
                }
            });
            let others = scope.spawn(move || come_and_go(0..1000));
            come_and_go(1000..2000);
            others.join().unwrap();
            over.store(true, Ordering::Relaxed);
        });
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
        let cluster = Cluster::open(&directory.path().join("store")).unwrap();
        let host = HostName::new("h1").unwrap();
        let link = NodeLink { serial: 2, ..connection(&host).await };
        let (here, there) = (SocketAddr::from(([10, 0, 0, 1], 1)), SocketAddr::from(([10, 0, 0, 2], 1)));
        let keeps = |serial, address| {
            let later = NodeLink { serial, ..link.clone() };
            occupant(&cluster.lock(), &host, &later, address).map(|(known, _)| known)
        };
        assert_eq!(keeps(3, here), None);
        register(&cluster, &mut cluster.lock(), &host, link.clone(), here);
        assert_eq!(keeps(3, here), None);
        assert_eq!(keeps(3, there), Some(here));
        assert_eq!(keeps(1, here), Some(here), "a later connection arrived while it waited");
        unregister(&cluster, &host, &link);
        assert_eq!(keeps(3, there), None);
    }

    /// The port of h1's node, and the serial number of its connection.
    fn place(world: &World) -> (u16, u64) {
        let (inner, host) = (world.cluster.lock(), HostName::new("h1").unwrap());
        (inner.hosts[&host].port(), inner.nodes[&host].serial)
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
}
