//! Connections of nodes.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use api::Occurrence;
use fabric::Vid;
use fabric::session::{Server, Word};
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

use crate::core::{Cluster, Command, NodeLink, Owner, State};
use crate::follows::Follows;
use crate::lifecycle::Lifecycle;
use crate::members::Members;
use crate::network::{self, layout};
use crate::telemetry::Telemetry;
use crate::{admission, directory, exec, names, removal};

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
    cluster.view().links().addresses().values().any(|host| host.ip() == address)
}

fn cut_off(address: SocketAddr, error: &io::Error, complaints: &Mutex<Pace>) {
    if complaints.lock().expect("nothing panics while it is held").take(Instant::now()) {
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
    report_lost(cluster, &host, &here).await;
    let result = listen(cluster, &host, &link, &mut inbox).await;
    link.pending.close();
    cluster.run(Unregister { host, link }).await;
    cluster.signals().link_ended.notify_waiters();
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
        let mut ended = std::pin::pin!(cluster.signals().link_ended.notified());
        ended.as_mut().enable();
        let entrance = Enter {
            cluster: cluster.clone(),
            host: host.clone(),
            peer: peer.clone(),
            link: link.clone(),
            address,
        };
        let Some((known, former)) = cluster.run(entrance).await? else { return Ok(host) };
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

/// A node that comes to be registered, unless its host was removed. If another node occupies the name, the reply is that node and its
/// address.
pub struct Enter {
    pub cluster: Arc<Cluster>,
    pub host: HostName,
    pub peer: Peer,
    pub link: NodeLink,
    pub address: SocketAddr,
}

impl Command for Enter {
    type Reply = Result<Option<(SocketAddr, NodeLink)>, FromCoordinator>;

    async fn run(self, owner: &mut Owner) -> Self::Reply {
        let Self { cluster, host, peer, link, address } = self;
        if !owner.view().get::<Members>().gate().admits(&peer) {
            let reason = removal::farewell(&owner.view(), &peer.name);
            return Err(FromCoordinator::Dismissed { reason });
        }
        let occupant = occupant(&owner.view(), &host, &link, address);
        if occupant.is_none() {
            register(&cluster, owner, &host, link, address).await;
        }
        Ok(occupant)
    }
}

/// A node that reconnects from its former address replaces its previous connection, but not a later one. Another node with the same
/// name must not: the coordinator would conclude that the first node's instances are lost.
fn occupant(
    state: &State,
    host: &HostName,
    link: &NodeLink,
    address: SocketAddr,
) -> Option<(SocketAddr, NodeLink)> {
    let (present, known) = (state.links().get(host)?, *state.links().addresses().get(host)?);
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

// The list of hosts and the machine change in one command. Otherwise a listed host might not yet be a valid destination, and
// the loss of a connection might remove its successor from the machine.

async fn register(
    cluster: &Arc<Cluster>,
    owner: &mut Owner,
    host: &HostName,
    link: NodeLink,
    address: SocketAddr,
) {
    tracing::info!("host {host} connected from {address}");
    owner.edit(|state| {
        let connected = Occurrence::HostConnected { host: host.to_string(), address: address.to_string() };
        state.log().note(&connected);
        state.connect(host, link, address);
        let removed = state.get::<Members>().list();
        state.links().send(host, &FromCoordinator::Removed { number: None, removed });
        let hosts =
            state.links().addresses().iter().map(|(host, address)| (host.clone(), *address)).collect();
        state.links().send_all(&FromCoordinator::Hosts(hosts));
        names::tell_all(state, host);
    });
    owner.input(Input::LinkUp(host.clone())).await;
    layout::connected(cluster, owner, host).await;
}

/// A connection that has ended.
struct Unregister {
    host: HostName,
    link: NodeLink,
}

impl Command for Unregister {
    type Reply = ();

    async fn run(self, owner: &mut Owner) {
        let Self { host, link } = self;
        if !is_present(&owner.view(), &host, &link) {
            return;
        }
        tracing::info!("host {host} disconnected");
        owner.edit(|state| {
            state.log().note(&Occurrence::HostLost { host: host.to_string() });
            state.disconnect(&host);
        });
        owner.input(Input::LinkDown(host)).await;
    }
}

/// A message about moves. It is dropped if the node has been removed or replaced meanwhile.
struct Said {
    host: HostName,
    link: NodeLink,
    message: ToCoordinator,
}

impl Command for Said {
    type Reply = ();

    async fn run(self, owner: &mut Owner) {
        let Self { host, link, message } = self;
        if is_present(&owner.view(), &host, &link) {
            owner.input(Input::Message { from: host, message }).await;
        }
    }
}

/// Instances whose host no longer knows them ended when the host lost its state.
async fn report_lost(cluster: &Cluster, host: &HostName, here: &[Vid]) {
    let lost: Vec<_> = {
        let state = cluster.view();
        let (image, lifecycle) = (state.snapshot(), state.get::<Lifecycle>());
        let moving = |vid| image.moves.values().any(|record| record.vid == vid);
        let instances = image.instances.iter().filter(|(vid, instance)| {
            instance.host == *host && !here.contains(vid) && !lifecycle.is_starting(**vid) && !moving(**vid)
        });
        instances.map(|(vid, instance)| (*vid, instance.epoch)).collect()
    };
    for (vid, epoch) in lost {
        let exit = Exit::Lost { reason: format!("host {host} has lost its state") };
        let message = ToCoordinator::Exited { vid, epoch, exit };
        cluster.input(Input::Message { from: host.clone(), message }).await;
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
        if !is_present(&cluster.view(), host, link) {
            return Ok(());
        }
        match message {
            FromNode::Hello { .. } => return Err(io::Error::other("the node sent a second Hello")),
            FromNode::Moves(message) => {
                cluster.run(Said { host: host.clone(), link: link.clone(), message }).await;
            }
            FromNode::Answer { number, answer } => link.pending.answer(number, answer),
            FromNode::Measured { id, measurement } => {
                let host = host.clone();
                let note = move |state: &mut State| {
                    let (follows, base) = state.get_with::<Follows>();
                    follows.measured(base, &host, id, measurement);
                };
                cluster.edit(note).await;
            }
            FromNode::Processes { vid, indexes } => {
                let host = host.clone();
                cluster.edit(move |state| directory::processes(state, &host, vid, indexes)).await;
            }
            FromNode::OutOfMemory { vid, processes, limit } => {
                note_shortage(&cluster.view(), host, vid, (processes, limit));
            }
            FromNode::Machines(support) => {
                let host = host.clone();
                cluster.edit(move |state| state.note_machines(host, support)).await;
            }
            FromNode::Sampled(sample) => {
                let host = host.clone();
                let add = move |state: &mut State| {
                    let (telemetry, base) = state.get_with::<Telemetry>();
                    telemetry.add(&host, sample, base);
                };
                cluster.edit(add).await;
            }
            FromNode::Net(message) => network::heard::take(cluster, host, message).await,
            FromNode::Sessions { vid, server, word } => sessions_say(cluster, host, link, vid, server, word),
            FromNode::Directory { process, number, request } => {
                directory::ask(cluster, host, process, number, request).await;
            }
        }
    }
    Ok(())
}

/// Logs that the kernel's OOM killer has ended processes of an instance, at a memory limit or for the whole host.
fn note_shortage(state: &State, host: &HostName, vid: Vid, (processes, limit_bytes): (u64, Option<u64>)) {
    if let Some(instance) = state.snapshot().instances.get(&vid) {
        let (instance, host) = (instance.name.clone(), host.to_string());
        state.log().note(&Occurrence::OutOfMemory { instance, host, processes, limit_bytes });
    }
}

/// Whether this connection is current. Messages from a replaced connection are ignored, because they may be stale.
fn is_present(state: &State, host: &HostName, link: &NodeLink) -> bool {
    state.links().get(host).is_some_and(|present| present.serial == link.serial)
}

fn sessions_say(cluster: &Cluster, host: &HostName, link: &NodeLink, vid: Vid, server: Server, word: Word) {
    let state = cluster.view();
    if is_present(&state, host, link) && word.is_within_limits() {
        exec::heard(&state, host, vid, server, word);
    }
}

#[cfg(test)]
mod tests;
