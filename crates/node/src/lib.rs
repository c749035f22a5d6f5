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
//! * [`agent`]: feeds the state machine of the moves and does what it says.
//! * [`operations`]: what the state machine can ask for, with engine and broker. [`no_engine`]: the engine of a host without
//!   instances.
//! * [`control`]: the connection to the coordinator. [`output`]: what it asks of what instances have written. [`removed`]: whom it
//!   says that this node is to believe no more.
//! * [`linking`]: what it decides about links between hosts. [`links`]: their connections. [`images`]: images from host to host, and
//!   [`precopy`] before them. [`peers`]: both's connections.
//! * [`network`]: the overlay. [`metrics`]: how it is, for Prometheus.
//! * [`state`], [`directory`]: what the node keeps in files, and in memory. [`names`]: what instances are called.
//!
//! The node may be killed at any time: instances are not its children and run on, what it must
//! know is in its files, and processes attach to it again when it is back.

mod agent;
mod cancel;
mod control;
mod directory;
mod ended;
mod fetching;
mod images;
mod instances;
mod left_behind;
mod linking;
mod links;
mod listener;
#[cfg(test)]
mod many_peers;
mod metrics;
mod names;
mod network;
mod no_engine;
mod node;
mod operations;
mod output;
mod peers;
mod precopy;
mod removed;
mod state;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use engines::Engine;
use moves::InvalidHostName;
pub use network::Nics;
use overlay_io::offloads::Offloads;
use rpc::pki::PkiError;
use rustix::process::{Resource, Rlimit};
use store::StoreError;
use tokio::signal::unix::{SignalKind, signal};

/// The file in the folder of a node's state that containers have as `/etc/hosts`.
pub const HOSTS: &str = "hosts";

/// How a node is to run.
pub struct NodeOptions {
    /// The host's name: that of its certificate.
    pub name: String,
    /// Where other nodes reach it.
    pub listen: SocketAddr,
    /// Where the coordinator listens.
    pub join: SocketAddr,
    /// What the overlay may leave to the kernel, if that does it right.
    pub offloads: Offloads,
    /// Where Prometheus reads metrics, if anywhere.
    pub metrics: Option<SocketAddr>,
    /// The directory with the host's certificate.
    pub pki: PathBuf,
    /// The directory for what the node must remember; its own alone.
    pub state: PathBuf,
    /// What runs the instances; none if this host takes part in the overlay alone.
    pub engine: Option<Box<dyn Engine>>,
    /// How long an instance's first process may take to say that the command runs. Without its word it counts
    /// as running.
    pub start_patience: Duration,
    /// The instances' devices on the overlay: what the engine plugs in.
    pub nics: Nics,
    /// A network device that is plugged into the overlay as soon as that joins this host. Without it the node fails.
    pub device: Option<Device>,
    /// How many bytes of memory a second leave for a move at the most, of each instance that runs meanwhile.
    pub move_bandwidth: Option<u64>,
    /// Called with what a user wants to know.
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
    /// What it was called before, if it was.
    pub former: Option<String>,
}

/// How far a node is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The coordinator cannot be reached: why, in words. Another attempt follows.
    Unreachable(String),
    /// It is connected to the coordinator.
    Connected,
    /// The connection to the coordinator is lost. Another attempt follows.
    Lost,
    /// [`NodeOptions::device`] is plugged in and up.
    Plugged,
}

/// Why a node does not run.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// Its name is none.
    #[error(transparent)]
    Name(#[from] InvalidHostName),
    /// It has no usable certificate.
    #[error(transparent)]
    Pki(#[from] PkiError),
    /// Its certificate cannot be used.
    #[error("the host's certificate cannot be used: issue it anew ({0})")]
    Certificate(#[from] rpc::TlsError),
    /// Its records cannot be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// What is left of its instances cannot be found out.
    #[error("{0}")]
    Engine(#[from] engines::Error),
    /// A file or a socket cannot be used.
    #[error("{what}: {source}")]
    Io {
        /// What was to be done.
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
    /// What helps, where the text does not say it.
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
/// If it cannot begin, or can no longer write what it must remember.
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

/// Lets the node open as many descriptors as it may: each instance takes some thousand at most. Instances
/// themselves get the limit that the node was started with.
pub fn raise_descriptor_limit() {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    // It always may be raised so far.
    let _ = rustix::process::setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}
