//! The daemon of one host.
//!
//! ```text
//!                 coordinator
//!                      │ control: moves, questions
//!   ┌──────────────────┴───────────────────────┐
//!   │ agent: moves::NodeAgent, and its records │
//!   └──┬────────────────┬──────────────────┬───┘
//!      │ operations     │ locate           │
//!   engine ── images ══ peers ═══ links ── broker ── processes of the instances
//!                    other nodes
//! ```
//!
//! * [`agent`]: feeds events to the state machine of moves, and carries out its orders.
//! * [`operations`]: the operations that the state machine can order, with engine and broker.
//! * [`engines`]: the engines of the host by kinds of workload. [`sides`]: the sides of moves that are open here. [`channels`]: byte channels
//!   between the engines of a move.
//! * [`control`]: the connection to the coordinator. [`output`]: answers its questions for the output of instances. [`removed`]: hosts
//!   that were removed from the cluster, which this node does not trust any more.
//! * [`linking`]: decides about links between hosts. [`links`]: their connections. [`images`]: the transfer of images, and [`precopy`]
//!   before it. [`peers`]: connections to other nodes, for both.
//! * [`network`]: the overlay. [`metrics`]: its metrics for Prometheus.
//! * [`state`], [`directory`]: the node's state in files, and in memory. [`names`]: the names of instances.
//!
//! The node may be killed at any time: instances are not its children and run on, its state is in files, and processes attach to it
//! again when it is back.

mod agent;
mod cancel;
mod channels;
mod control;
mod directory;
mod ended;
mod engines;
mod fetching;
mod images;
mod instances;
mod left_behind;
mod linking;
mod links;
mod listener;
mod lock;
#[cfg(test)]
mod many_peers;
mod metrics;
mod names;
mod network;
mod node;
mod operations;
mod output;
mod peers;
mod precopy;
mod removed;
mod sides;
mod state;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use engine_api::Engine;
use moves::InvalidHostName;
pub use network::Nics;
use overlay_io::offloads::Offloads;
use rpc::pki::PkiError;
use rustix::process::{Resource, Rlimit};
use store::StoreError;
use tokio::signal::unix::{SignalKind, signal};

/// The file in the folder of a node's state that containers have as `/etc/hosts`.
pub const HOSTS: &str = "hosts";

/// The options of a node.
pub struct NodeOptions {
    /// The host's name: that of its certificate.
    pub name: String,
    /// The address at which it accepts other nodes.
    pub listen: SocketAddr,
    /// The coordinator's address.
    pub join: SocketAddr,
    /// The kernel offloads that the overlay may use, if they pass their tests.
    pub offloads: Offloads,
    /// The address at which Prometheus reads metrics, if enabled.
    pub metrics: Option<SocketAddr>,
    /// The directory with the host's certificate.
    pub pki: PathBuf,
    /// The directory for the node's records; used by this node alone.
    pub state: PathBuf,
    /// The engines for instances; none if this host only joins the overlay.
    pub engines: Vec<Arc<dyn Engine>>,
    /// How long to wait for an instance's first process to report that the command runs. After that the command counts as running.
    pub start_patience: Duration,
    /// The instances' devices on the overlay, which the engine attaches.
    pub nics: Nics,
    /// A network device to attach as soon as this host is part of the overlay. If that fails, the node fails.
    pub device: Option<Device>,
    /// The limit of each pre-copy, in bytes a second.
    pub move_bandwidth: Option<u64>,
    /// Called with each event that a user may want to see.
    pub progress: Box<dyn Fn(Progress) + Send + Sync>,
}

/// A station's network device that a node has for as long as it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its name.
    pub name: String,
    /// Its address with its prefix.
    pub address: Option<String>,
    /// Its MTU, in bytes.
    pub mtu: u32,
    /// Its former name, if it was renamed.
    pub former: Option<String>,
}

/// An event in the start of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The coordinator cannot be reached, for this reason. Another attempt follows.
    Unreachable(String),
    /// It is connected to the coordinator.
    Connected,
    /// The connection to the coordinator is lost. Another attempt follows.
    Lost,
    /// [`NodeOptions::device`] is plugged in and up.
    Plugged,
}

/// Why a node cannot run.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// Its name is not a valid host name.
    #[error(transparent)]
    Name(#[from] InvalidHostName),
    /// It has no usable certificate.
    #[error(transparent)]
    Pki(#[from] PkiError),
    /// Its certificate cannot be used.
    #[error("the host's certificate cannot be used ({0}): issue a new one with `transhume pki`")]
    Certificate(#[from] rpc::TlsError),
    /// Its records cannot be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The engine cannot find the instances of this host.
    #[error("{0}")]
    Engine(#[from] engine_api::Error),
    /// A file or a socket cannot be used.
    #[error("{what}: {source}")]
    Io {
        /// The attempted operation.
        what: String,
        /// Why it failed.
        source: std::io::Error,
    },
    /// The coordinator does not accept it.
    #[error("the coordinator refuses this node: {0}")]
    Refused(String),
    /// Its host was removed from the cluster.
    #[error("{}", rpc::wire::split_reason(.0).0)]
    Removed(String),
    /// [`NodeOptions::device`] cannot be plugged in.
    #[error("{}", rpc::wire::split_reason(.0).0)]
    Device(String),
}

impl NodeError {
    /// The remedy, unless the message includes it.
    #[must_use]
    pub fn remedy(&self) -> &str {
        match self {
            Self::Removed(reason) | Self::Device(reason) => {
                rpc::wire::split_reason(reason).1.unwrap_or_default()
            }
            Self::Store(error) => error.remedy(),
            Self::Io { source, .. } => rpc::listen_remedy(source),
            _ => "",
        }
    }
}

/// Runs a node until it fails. Its instances run on, also if the future is dropped.
pub async fn serve(options: NodeOptions) -> NodeError {
    node::serve(options).await
}

/// Runs a node on threads of its own until SIGTERM or SIGINT tells it to end. Its instances run on.
///
/// # Errors
/// If it cannot start, or can no longer write its records.
pub fn run(options: NodeOptions) -> Result<(), NodeError> {
    raise_descriptor_limit();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|source| NodeError::Io { what: "the node's threads".into(), source })?;
    let aborts = rpc::daemon::abort_on_panic();
    let result = runtime.block_on(async {
        let io_error = |source| NodeError::Io { what: "signals".into(), source };
        let mut terminate = signal(SignalKind::terminate()).map_err(io_error)?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(io_error)?;
        tokio::select! {
            error = serve(options) => Err(error),
            _ = terminate.recv() => Ok(()),
            _ = interrupt.recv() => Ok(()),
        }
    });
    drop(aborts);
    runtime.shutdown_background();
    result
}

/// Raises the node's limit of descriptors to the maximum: each instance takes up to some thousand. Instances themselves get the limit
/// that the node was started with.
pub fn raise_descriptor_limit() {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    // The soft limit may always be raised to the maximum.
    let _ = rustix::process::setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}
