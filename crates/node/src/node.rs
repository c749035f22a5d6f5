use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use broker::{Broker, Observer};
use fabric::attach::NotStarted;
use fabric::{InstanceId, Vid, device_file};
use instance::Roster;
use moves::HostName;
use moves::journal::Exit;
use moves::node::Input;
use rpc::Endpoint;
use rpc::pki::Identity;
use rpc::wire::FromNode;
use store::NodeStore;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::time::sleep;

use crate::agent::{Agent, Order, Performer};
use crate::control;
use crate::dialer::Dialer;
use crate::directory::Directory;
use crate::ended::Ended;
use crate::engines::Engines;
use crate::error::NodeError;
use crate::fetching::Fetching;
use crate::images::Receptions;
use crate::instances::{Departing, Live};
use crate::links::{DataPort, NodePeers};
use crate::lock::lock;
use crate::metrics;
use crate::names::Names;
use crate::network::{self, Network, Nics, Orders};
use crate::options::{HOSTS, NodeOptions};
use crate::peers::Pool;
use crate::progress::ProgressSink;
use crate::sides::Sides;
use crate::state::StateFiles;
use crate::uplink::Uplink;

/// Everything that the tasks of a node share.
pub struct Node {
    pub host: HostName,
    pub endpoint: Endpoint,
    pub engines: Engines,
    /// The sides of moves that are open here.
    pub sides: Arc<Sides>,
    pub broker: Broker,
    pub files: StateFiles,
    pub agent: Arc<Agent>,
    pub uplink: Arc<Uplink>,
    pub dialer: Dialer,
    pub directory: Arc<Directory>,
    pub names: Names,
    pub pool: Pool,
    pub receptions: Receptions,
    /// Instances that run here without all their memory.
    pub fetching: Mutex<HashMap<Vid, Fetching>>,
    pub data: DataPort,
    pub network: Arc<Network>,
    pub nics: Nics,
    pub lives: Mutex<HashMap<Vid, Live>>,
    ended: Mutex<Ended>,
    /// Instances that have ended, and whose remains are still here.
    pub departing: Departing,
    /// Tasks that wait for the report that an instance's command runs.
    pub starts: Mutex<HashMap<Vid, oneshot::Sender<Start>>>,
    /// How long to wait for this report.
    pub start_patience: Duration,
    /// See [`NodeOptions::move_bandwidth`].
    pub move_bandwidth: Option<u64>,
    /// Receives the progress that a user wants to see.
    pub progress: ProgressSink,
}

/// Whether a command runs.
pub type Start = Result<(), NotStarted>;

/// Runs a node until it fails.
pub async fn serve(options: NodeOptions) -> NodeError {
    let begun = match begin(options).await {
        Ok(begun) => begun,
        Err(error) => return error,
    };
    let Begun { node, join, address } = begun;
    tracing::info!("host {} listens on {address}", node.host);
    tokio::select! {
        error = control::stay_connected(node.clone(), join, address) => error,
        error = node.agent.broken() => error.into(),
        reason = node.network.own_device_failed() => NodeError::Device(reason),
    }
}

struct Begun {
    node: Arc<Node>,
    join: SocketAddr,
    address: SocketAddr,
}

async fn begin(options: NodeOptions) -> Result<Begun, NodeError> {
    let runs_instances = !options.engines.is_empty();
    if runs_instances && let Err(error) = device_file::make() {
        tracing::warn!("programs that search /dev/infiniband will not find the RDMA device: {error}");
    }
    let listener = listen(options.listen).await?;
    // Without instances, no other host needs this port.
    let data = if runs_instances { options.listen.ip() } else { Ipv4Addr::LOCALHOST.into() };
    let data = listen(SocketAddr::new(data, 0)).await?;
    let metrics = match options.metrics {
        Some(address) => Some(listen(address).await?),
        None => None,
    };
    let join = options.join;
    let address = local_address(&listener)?;
    let (node, orders) = make(options, address, local_address(&data)?.port())?;
    node.recover().await?;
    node.agent.begin(Arc::downgrade(&node) as Weak<dyn Performer>);
    tokio::spawn(node.agent.clone().tick());
    tokio::spawn(orders.follow());
    tokio::spawn(node.clone().accept(listener));
    tokio::spawn(node.clone().accept_data(data));
    if let Some(listener) = metrics {
        tokio::spawn(metrics::serve(node.network.clone(), listener));
    }
    Ok(Begun { node, join, address })
}

/// A node that has not started yet, the coordinator's orders to it, and the first outputs of its agent.
pub fn make(
    options: NodeOptions,
    address: SocketAddr,
    data_port: u16,
) -> Result<(Arc<Node>, Orders), NodeError> {
    let host = HostName::new(&options.name)?;
    let endpoint = Endpoint::new(Identity::load(&options.pki, &options.name)?)?;
    let in_state = |source| io_error(&options.state.display().to_string(), source);
    let files = StateFiles::open(&options.state).map_err(in_state)?;
    let names = Names::open(&options.state.join(HOSTS)).map_err(in_state)?;
    let store = NodeStore::open(&options.state.join("node.redb"))?;
    // Even before the coordinator can be reached.
    endpoint.gate().set(store.removed()?.unwrap_or_default());
    let (uplink, directory) = (Arc::<Uplink>::default(), Arc::<Directory>::default());
    let agent = Arc::new(Agent::new(host.clone(), store, uplink.clone(), directory.clone())?);
    let dialer = Dialer::new(endpoint.clone(), directory.clone());
    let progress: ProgressSink = Arc::from(options.progress);
    let (offloads, own, nics) = (options.offloads, options.device, options.nics);
    let config = network::Config { host: host.clone(), address, offloads, nics: nics.clone() };
    let network = Network::new(config, own, dialer.clone(), uplink.clone(), progress.clone());
    let (network, orders) = network.map_err(|source| io_error("the overlay", source))?;
    let node = Arc::new_cyclic(|node| Node {
        host,
        endpoint,
        engines: Engines::new(options.engines),
        sides: Arc::default(),
        broker: Broker::new(NodePeers(node.clone()), NodeObserver(node.clone())),
        files,
        agent,
        directory,
        uplink,
        dialer,
        names,
        pool: Pool::default(),
        receptions: Receptions::default(),
        fetching: Mutex::default(),
        data: DataPort::new(data_port),
        network: Arc::new(network),
        nics,
        lives: Mutex::default(),
        ended: Mutex::default(),
        departing: Departing::default(),
        starts: Mutex::default(),
        start_patience: options.start_patience,
        move_bandwidth: options.move_bandwidth,
        progress,
    });
    Ok((node, orders))
}

impl Node {
    pub fn starts(&self) -> MutexGuard<'_, HashMap<Vid, oneshot::Sender<Start>>> {
        lock(&self.starts)
    }

    pub fn lives(&self) -> MutexGuard<'_, HashMap<Vid, Live>> {
        lock(&self.lives)
    }

    pub fn fetching(&self) -> MutexGuard<'_, HashMap<Vid, Fetching>> {
        lock(&self.fetching)
    }

    pub fn ended(&self) -> MutexGuard<'_, Ended> {
        lock(&self.ended)
    }
}

impl Performer for Node {
    fn operate(self: Arc<Self>, order: Order) {
        let Order { vid, operation, leaving, cancel } = order;
        tokio::spawn(async move {
            tracing::debug!("{vid}: {operation:?} begins");
            let outcome = self.perform_operation(vid, operation, leaving, &cancel).await;
            tracing::debug!("{vid}: {outcome:?}");
            self.agent.input(Input::Ended { vid, outcome });
        });
    }

    fn stays(self: Arc<Self>, vid: Vid) {
        // At once: later events may belong to the next move.
        self.drop_courier(vid);
        tokio::spawn(self.close_sides(vid));
    }

    fn farewell(self: Arc<Self>, vid: Vid) {
        self.drop_courier(vid);
        let Some(live) = self.live(vid) else { return };
        self.departing.begin(live.name.clone());
        tokio::spawn(async move {
            Node::farewell(&self, vid, &live).await;
            self.departing.end(&live.name);
        });
    }
}

/// Writes the broker's reports to files, and tells the agent how commands ended.
struct NodeObserver(Weak<Node>);

impl Observer for NodeObserver {
    fn roster_changed(&self, instance: InstanceId, roster: &Roster) {
        let Some(node) = self.0.upgrade() else { return };
        node.uplink.send(&FromNode::Processes { vid: instance.vid, indexes: roster.indexes() });
        if let Err(error) = node.files.write_roster(instance.vid, roster) {
            tracing::warn!("instance {instance}: recording its processes failed: {error}");
        }
    }

    fn exited(&self, instance: InstanceId, code: i32) {
        let Some(node) = self.0.upgrade() else { return };
        if let Err(error) = node.files.write_exit(instance.vid, code) {
            tracing::warn!("instance {instance}: recording its exit code failed: {error}");
        }
        node.tell_of_shortage(instance.vid);
        node.agent.input(Input::Exited { vid: instance.vid, exit: Exit::Code(code) });
    }

    fn started(&self, instance: InstanceId, start: Start) {
        let Some(node) = self.0.upgrade() else { return };
        if start.is_err() {
            node.agent.input(Input::Exited { vid: instance.vid, exit: Exit::NotStarted });
        }
        if let Some(waiter) = node.starts().remove(&instance.vid) {
            // A waiter whose time is over counts the command as started, and learns of its end.
            let _ = waiter.send(start);
        }
    }
}

async fn listen(address: SocketAddr) -> Result<TcpListener, NodeError> {
    /// How long the port of a killed node may still be in use: a child that the node was starting has all its descriptors until the
    /// child executes its program.
    const PATIENCE: Duration = Duration::from_secs(2);
    const PAUSE: Duration = Duration::from_millis(20);
    let begun = Instant::now();
    loop {
        match TcpListener::bind(address).await {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && begun.elapsed() < PATIENCE => {
                sleep(PAUSE).await;
            }
            bound => return bound.map_err(|source| io_error(&format!("listening on {address}"), source)),
        }
    }
}

fn local_address(listener: &TcpListener) -> Result<SocketAddr, NodeError> {
    listener.local_addr().map_err(|source| io_error("the listening socket", source))
}

fn io_error(what: &str, source: io::Error) -> NodeError {
    NodeError::Io { what: what.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn binding_waits_for_a_port_that_is_soon_free() {
        let before = listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = local_address(&before).unwrap();
        tokio::spawn(async move {
            sleep(Duration::from_millis(100)).await;
            drop(before);
        });
        let after = listen(address).await.unwrap();
        let refused = listen(address).await.unwrap_err().to_string();
        assert!(refused.contains(&address.to_string()), "{refused}");
        drop(after);
    }
}
