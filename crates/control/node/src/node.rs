//! The composition root: makes the components of a node, connects them, and starts their tasks.
//!
//! * [`base`]: the components that all others are built on. [`residents`]: those around the instances and their links. [`movers`]: those
//!   around their moves.

mod base;
mod movers;
mod residents;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Weak};

use fabric::device_file;
use tokio::net::TcpListener;

use self::base::Base;
use self::movers::Movers;
use self::residents::Residents;
use crate::agent::{Agent, Performer};
use crate::control::{Control, Hosts, Messages, Processes, Questions};
use crate::error::NodeError;
use crate::listener::{Doors, Listener};
use crate::metrics;
use crate::moves::Operations;
use crate::network::{self, Network};
use crate::options::NodeOptions;
use crate::progress::ProgressSink;
use crate::sockets::{listen, local_address};
use crate::telemetry;

/// Runs a node until it fails.
pub async fn serve(options: NodeOptions) -> NodeError {
    match Node::begin(options).await {
        Ok(node) => node.run().await,
        Err(error) => error,
    }
}

/// A node whose tasks run.
struct Node {
    agent: Arc<Agent>,
    network: Arc<Network>,
    control: Control,
    /// The agent passes its orders on as long as this lives.
    _operations: Arc<Operations>,
    /// The coordinator's address.
    join: SocketAddr,
    /// The address at which this node accepts others.
    address: SocketAddr,
}

/// The sockets of a node.
struct Sockets {
    nodes: TcpListener,
    links: TcpListener,
    metrics: Option<TcpListener>,
}

impl Sockets {
    async fn open(options: &NodeOptions) -> Result<Self, NodeError> {
        let nodes = listen(options.listen).await?;
        // Without instances, no other host needs this port.
        let is_local = options.engines.is_empty();
        let links = if is_local { Ipv4Addr::LOCALHOST.into() } else { options.listen.ip() };
        let links = listen(SocketAddr::new(links, 0)).await?;
        let metrics = match options.metrics {
            Some(address) => Some(listen(address).await?),
            None => None,
        };
        Ok(Self { nodes, links, metrics })
    }
}

impl Node {
    async fn begin(options: NodeOptions) -> Result<Self, NodeError> {
        let runs_instances = !options.engines.is_empty();
        let leave = options.state.join("leave");
        if runs_instances && let Err(error) = device_file::make() {
            tracing::warn!("programs that search /dev/infiniband will not find the RDMA device: {error}");
        }
        let sockets = Sockets::open(&options).await?;
        let (address, data_port) = (local_address(&sockets.nodes)?, local_address(&sockets.links)?.port());
        let base = Base::open(&options)?;
        let residents = Residents::new(&base, &options, data_port);
        let movers = Movers::new(&base, &residents, options.move_bandwidth);
        let (join, patience) = (options.join, options.start_patience);

        let progress: ProgressSink = Arc::from(options.progress);
        let (host, nics) = (base.name.clone(), options.nics);
        let config = network::Config { host, address, offloads: options.offloads, nics };
        let (dialer, uplink) = (base.dialer.clone(), base.uplink.clone());
        let network = Network::new(config, options.device, dialer, uplink, progress.clone());
        let (network, orders) = network.map_err(|source| NodeError::io("the overlay", source))?;
        let network = Arc::new(network);

        residents.recover(&base).await?;
        let operations = movers.operations.clone();
        let weak: Weak<Operations> = Arc::downgrade(&operations);
        base.agent.begin(weak as Weak<dyn Performer>);
        tokio::spawn(base.agent.clone().tick());
        tokio::spawn(orders.follow());
        tokio::spawn(residents.data_port.clone().accept(sockets.links));
        if runs_instances {
            let (live, broker) = (residents.live.clone(), residents.broker.clone());
            let sources = telemetry::Sources { live, broker, address: address.ip(), leave };
            tokio::spawn(telemetry::run(sources, base.uplink.clone(), options.sample_interval));
        }
        if let Some(listener) = sockets.metrics {
            tokio::spawn(metrics::serve(network.clone(), listener));
        }

        let hosts = Hosts::new(
            base.name.clone(),
            base.endpoint.gate().clone(),
            base.directory.clone(),
            residents.pool.clone(),
            base.agent.clone(),
            network.clone(),
        );
        let processes = Processes::new(base.agent.clone(), residents.live.clone(), residents.broker.clone());
        let questions = Questions::new(
            residents.starter(&base, patience),
            residents.outputs(),
            residents.instances.clone(),
        );
        let doors = Doors {
            links: residents.answerer(&base),
            pool: residents.pool.clone(),
            network: network.clone(),
            memory: movers.memory,
            receptions: movers.receptions,
        };
        let listener = Listener::new(base.endpoint.clone(), base.directory.clone(), doors);
        tokio::spawn(Arc::new(listener).accept(sockets.nodes));

        let (agent, host) = (base.agent.clone(), residents.host.clone());
        let messages = Messages::new(agent, host, network.clone(), hosts, processes, base.names, questions);
        let (agent, endpoint) = (base.agent.clone(), base.endpoint);
        let control = Control::new(endpoint, agent, network.clone(), messages, runs_instances, progress);
        tracing::info!("host {} listens on {address}", base.name);
        Ok(Self { agent: base.agent, network, control, _operations: operations, join, address })
    }

    async fn run(self) -> NodeError {
        tokio::select! {
            error = self.control.stay_connected(self.join, self.address) => error,
            error = self.agent.broken() => error.into(),
            reason = self.network.own_device_failed() => NodeError::Device(reason),
        }
    }
}
