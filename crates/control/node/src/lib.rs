//! The daemon of one host.
//!
//! Each component has its own state and locks. A component uses only those below it: it gets handles to them in its constructor. Where a
//! lower one has to call an upper one, the upper one implements a trait of the lower one ([`agent::Performer`], `broker::Observer`,
//! `broker::Peers`).
//!
//! ```text
//!                   node                       makes and connects all components
//!            ┌────────┼─────────┐
//!         control  listener  metrics           connections from the coordinator, from other nodes, from Prometheus
//!            │        │         │
//!          moves      │         │              operations of moves, sides, images, pre-copy, post-copy
//!            │        │         │
//!          links      │         │              links between processes of different hosts
//!            │        │         │
//!        instances    │         │              engines, instances, their output; the broker below them
//!            └────────┼─────────┘
//!                  network                     this host's part of the overlay
//!                     │
//!                   agent                      the state machine of moves and its records
//!                     │
//!        uplink, dialer, directory, names      messages to the coordinator, connections to nodes, known places
//! ```
//!
//! Other files: [`options`], [`error`], [`progress`]: what users of this crate see. [`sockets`]: the sockets at which a node listens.
//! [`cancel`]: ends an operation early. [`lock`]: locks.
//!
//! The node may be killed at any time: instances are not its children and run on, its state is in files, and processes attach to it
//! again when it is back.

mod agent;
mod cancel;
mod control;
mod dialer;
mod directory;
mod error;
mod instances;
mod links;
mod listener;
mod lock;
#[cfg(test)]
mod many_peers;
mod metrics;
mod moves;
mod names;
mod network;
mod node;
mod options;
mod progress;
mod sockets;
mod telemetry;
mod uplink;

use rustix::process::{Resource, Rlimit};
use tokio::signal::unix::{SignalKind, signal};

pub use self::error::NodeError;
pub use self::network::{Device, Nics};
pub use self::options::{HOSTS, NodeOptions};
pub use self::progress::Progress;

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
