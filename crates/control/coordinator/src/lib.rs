//! The coordinator: the daemon that knows where every instance is, and alone decides moves.
//!
//! ```text
//!   command line ── JSON lines ──▶ server, requests ─┐ commands
//!                                                    ▼
//!   nodes ══ TLS ══ nodes ◀───────▶ features ◀──▶ core: moves::Coordinator ──▶ journal
//! ```
//!
//! * [`core`]: the task that owns the state machine of the moves and its journal, and the view for all other tasks. [`open`]:
//!   builds it from the store (ADR 0045).
//! * [`nodes`]: the nodes' connections.
//! * [`server`]: the socket of the command line; [`requests`], [`moving`], [`group`], [`drain`], [`checkpoint`], [`restore`], [`ending`],
//!   [`output`], [`exec`]: the requests that it handles.
//! * [`estimate`]: estimates how long a move will take.
//! * [`hosts`]: the known hosts. [`placement`]: labels of instances. [`planning`]: the cluster as the planner sees it.
//!   [`cooling`]: the cool-down after a move. [`improve`]: searches for plans. [`apply`], [`plans`]: carries them out. [`auto`]: the loop
//!   that plans by itself. [`loads`]: what instances need. [`owned`]: the view of a search.
//! * [`network`]: the overlay.
//! * [`admission`]: machines join by tokens. [`removal`]: removes hosts and revokes their certificates. [`members`], [`tokens`]: the stored
//!   state of both.
//! * [`session`]: a command of `transhume exec`, as a state machine without IO.
//! * [`directory`]: the directories of the fabrics.
//! * [`events`], [`occurrences`]: the event log. [`statistics`], [`prometheus`]: metrics.
//! * [`follow`], [`follows`]: the events of moves for their users, and the final reports. [`lifecycle`]: instances that start, end, or have
//!   ended. [`drains`]: the drained hosts.
//!
//! The coordinator may be killed at any time: its decisions are in the store, and everything undecided is rolled back.

mod address;
mod admission;
mod apply;
mod auto;
mod checkpoint;
mod client;
mod cooling;
mod core;
mod directory;
mod drain;
mod drains;
mod ending;
mod estimate;
mod events;
mod exec;
mod failure;
mod follow;
mod follows;
mod group;
mod hosts;
mod improve;
mod instances;
mod lifecycle;
mod loads;
mod members;
mod moving;
mod names;
mod network;
mod nodes;
mod occurrences;
mod open;
mod output;
mod owned;
mod placement;
mod planning;
mod plans;
mod prometheus;
mod removal;
mod requests;
mod restore;
mod server;
mod session;
mod statistics;
mod telemetry;
#[cfg(test)]
mod tests;
mod tokens;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use moves::HostName;
use rpc::pki::{Identity, PkiError};
use rpc::{COORDINATOR, Endpoint};
use store::StoreError;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use crate::core::Cluster;
use admission::{Admission, Enrolled};
use cooling::Cooling;
use members::Members;
use server::SocketFile;

/// Configuration of a coordinator.
#[derive(Clone, Debug)]
pub struct CoordinatorOptions {
    /// Address for connections of nodes.
    pub listen: SocketAddr,
    /// Socket for the command line.
    pub socket: PathBuf,
    /// Address of the metrics for Prometheus, if any.
    pub metrics: Option<SocketAddr>,
    /// The directory with the coordinator's certificate.
    pub pki: PathBuf,
    /// The directory of the coordinator's durable state.
    pub state: PathBuf,
    /// Admission of machines by tokens. `pki` must contain the authority's key then.
    pub enrolment: Option<Enrolment>,
    /// The default cool-down, for instances that set none of their own.
    pub cool_down: Duration,
}

/// Configuration of the admission by tokens.
#[derive(Clone, Debug)]
pub struct Enrolment {
    /// The center of the overlay's star topology, unless the overlay was laid out before.
    pub center: HostName,
}

/// Why a coordinator cannot run.
#[derive(Debug, thiserror::Error)]
pub enum CoordinatorError {
    /// The certificate directory is not usable.
    #[error(transparent)]
    Pki(#[from] PkiError),
    /// The certificate is invalid.
    #[error("the coordinator's certificate is not usable, issue a new one: {0}")]
    Certificate(#[from] rpc::TlsError),
    /// The store cannot be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The tokens of an earlier release cannot be imported.
    #[error("cannot import the tokens in {}: {failure}", file.display())]
    Tokens {
        /// The file with the tokens.
        file: PathBuf,
        /// Why they cannot be imported.
        failure: api::Failure,
    },
    /// A file or a socket is not usable.
    #[error("{what}: {source}")]
    Io {
        /// The failed operation.
        what: String,
        /// The cause.
        source: std::io::Error,
    },
}

impl CoordinatorError {
    /// The remedy, if the message does not contain it.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::Store(error) => error.remedy(),
            Self::Io { source, .. } => rpc::listen_remedy(source),
            _ => "",
        }
    }

    fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }
}

/// Runs the coordinator until it fails. Dropping the future removes the socket file.
pub async fn serve(options: CoordinatorOptions) -> CoordinatorError {
    match begin(options).await {
        Ok((cluster, _socket)) => cluster.broken().await.into(),
        Err(error) => error,
    }
}

/// Runs the coordinator on its own threads until SIGTERM or SIGINT.
///
/// # Errors
/// If it cannot start, or can no longer write to its store.
pub fn run(options: CoordinatorOptions) -> Result<(), CoordinatorError> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(CoordinatorError::io("starting the coordinator's threads"))?;
    let aborts = rpc::daemon::abort_on_panic();
    let result = runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate()).map_err(CoordinatorError::io("signals"))?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(CoordinatorError::io("signals"))?;
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

async fn listen(address: SocketAddr) -> Result<TcpListener, CoordinatorError> {
    TcpListener::bind(address).await.map_err(CoordinatorError::io(format!("listening on {address}")))
}

async fn begin(options: CoordinatorOptions) -> Result<(Arc<Cluster>, SocketFile), CoordinatorError> {
    let identity = Identity::load(&options.pki, COORDINATOR)?;
    let endpoint = match &options.enrolment {
        Some(_) => Endpoint::welcoming(identity)?,
        None => Endpoint::new(identity)?,
    };
    private::directory(&options.state).map_err(CoordinatorError::io(options.state.display().to_string()))?;
    let cluster = open::open(&options.state.join("coordinator.redb"))?;
    let cool_down = options.cool_down;
    cluster.edit(move |state| state.get_mut::<Cooling>().set_usual(cool_down)).await;
    checkpoint::clear_up(&cluster).await;
    if let Some(enrolment) = options.enrolment {
        let admission = Admission::open(options.listen, options.pki, enrolment.center)?;
        let admission = Arc::new(admission);
        cluster.edit(move |state| state.get_mut::<Enrolled>().admit_by(admission)).await;
        let file = options.state.join("tokens");
        let taken_over = admission::take_over(&cluster, &file).await;
        taken_over.map_err(|failure| CoordinatorError::Tokens { file, failure })?;
    }
    let listener = listen(options.listen).await?;
    let metrics = match options.metrics {
        Some(address) => Some(listen(address).await?),
        None => None,
    };
    let (socket, file) = server::listen(&options.socket)
        .map_err(CoordinatorError::io(options.socket.display().to_string()))?;
    let log = cluster.view().log().clone();
    tokio::spawn(log.write());
    tokio::spawn(network::layout::await_nodes(cluster.clone()));
    let endpoint = endpoint.behind(cluster.view().get::<Members>().gate().clone());
    tokio::spawn(nodes::accept(cluster.clone(), endpoint, listener));
    apply::resume(&cluster);
    tokio::spawn(auto::run(cluster.clone()));
    tokio::spawn(server::accept(cluster.clone(), socket));
    if let Some(listener) = metrics {
        tokio::spawn(prometheus::serve(cluster.clone(), listener));
    }
    tracing::info!("the coordinator listens on {} and {}", options.listen, options.socket.display());
    Ok((cluster, file))
}
