//! The daemon that knows where every instance is, and that alone decides moves.
//!
//! ```text
//!   command line ── JSON lines ──▶ requests ──┐
//!                                             ▼
//!   nodes ══ TLS ══ nodes ◀──▶ cluster: moves::Coordinator ──▶ store
//! ```
//!
//! * [`cluster`]: feeds the state machine of the moves and does what it says.
//! * [`nodes`]: the nodes' connections.
//! * [`server`]: the socket of the command line; [`requests`], [`moving`], [`group`], [`drain`], [`checkpoint`], [`restore`], [`ending`],
//!   [`output`], [`exec`]: what it can ask for.
//! * [`estimate`]: how long a move will take.
//! * [`hosts`]: which hosts there are. [`placement`]: which labels instances have. [`planning`]: where they go. [`cooling`]: which have moved and are left alone.
//! * [`network`]: the overlay.
//! * [`admission`]: machines that have no certificate yet. [`removal`]: hosts that take no part any more. [`members`], [`tokens`]: what is
//!   known of both.
//! * [`session`]: a command that is run in an instance, without IO.
//! * [`directory`]: what processes tell each other of themselves.
//! * [`log`]: what has happened. [`statistics`]: how often, for Prometheus.
//! * [`follow`]: what a user sees of a move, and the report at its end.
//!
//! It may be killed at any time: what it has decided is in the store, and the rest is undone.

mod admission;
mod checkpoint;
mod cluster;
mod cooling;
mod directory;
mod drain;
mod ending;
mod estimate;
mod exec;
mod failure;
mod follow;
mod group;
mod hosts;
mod instances;
mod log;
mod members;
mod moving;
mod names;
mod network;
mod nodes;
mod output;
mod placement;
mod planning;
mod removal;
mod requests;
mod restore;
mod server;
mod session;
mod statistics;
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

use admission::Admission;
use cluster::Cluster;
use server::SocketFile;

/// How a coordinator is to run.
#[derive(Clone, Debug)]
pub struct CoordinatorOptions {
    /// Where nodes connect.
    pub listen: SocketAddr,
    /// Where the command line connects.
    pub socket: PathBuf,
    /// Where Prometheus reads metrics, if anywhere.
    pub metrics: Option<SocketAddr>,
    /// The directory with its certificate.
    pub pki: PathBuf,
    /// The directory for what it must remember.
    pub state: PathBuf,
    /// Lets machines join by tokens. `pki` must have the authority's key then.
    pub enrolment: Option<Enrolment>,
    /// For how long ordinary moves leave an instance alone after a move, if it does not say that itself.
    pub cool_down: Duration,
}

/// What a coordinator is told that admits machines by tokens.
#[derive(Clone, Debug)]
pub struct Enrolment {
    /// The host around which the overlay is laid out as a star, unless it was laid out before.
    pub center: HostName,
}

/// Why a coordinator does not run.
#[derive(Debug, thiserror::Error)]
pub enum CoordinatorError {
    /// It has no usable certificate.
    #[error(transparent)]
    Pki(#[from] PkiError),
    /// Its certificate cannot be used.
    #[error("the coordinator's certificate cannot be used: issue it anew ({0})")]
    Certificate(#[from] rpc::TlsError),
    /// Its records cannot be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The tokens of a release before cannot be noted.
    #[error("the tokens in {}: {failure}", file.display())]
    Tokens {
        /// Where they are.
        file: PathBuf,
        /// Why.
        failure: api::Failure,
    },
    /// A file or a socket cannot be used.
    #[error("{what}: {source}")]
    Io {
        /// What was to be done.
        what: String,
        /// Why it failed.
        source: std::io::Error,
    },
}

impl CoordinatorError {
    /// What helps, where the text does not say it.
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

/// Runs the coordinator until it fails. If the future is dropped, its socket's file is removed.
pub async fn serve(options: CoordinatorOptions) -> CoordinatorError {
    match begin(options).await {
        Ok((cluster, _socket)) => cluster.broken().await.into(),
        Err(error) => error,
    }
}

/// Runs the coordinator on threads of its own until SIGTERM or SIGINT tells it to end.
///
/// # Errors
/// If it cannot begin, or can no longer write what it must remember.
pub fn run(options: CoordinatorOptions) -> Result<(), CoordinatorError> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(CoordinatorError::io("the coordinator's threads"))?;
    let result = runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate()).map_err(CoordinatorError::io("signals"))?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(CoordinatorError::io("signals"))?;
        tokio::select! {
            error = serve(options) => Err(error),
            _ = terminate.recv() => Ok(()),
            _ = interrupt.recv() => Ok(()),
        }
    });
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
    let cluster = Cluster::open(&options.state.join("coordinator.redb"))?;
    checkpoint::clear_up(&cluster);
    cluster.lock().cooling.set_usual(options.cool_down);
    if let Some(enrolment) = options.enrolment {
        let admission = Admission::open(options.listen, options.pki, enrolment.center)?;
        cluster.admit_by(admission);
        let file = options.state.join("tokens");
        let taken_over = admission::take_over(&cluster, &file);
        taken_over.map_err(|failure| CoordinatorError::Tokens { file, failure })?;
    }
    let listener = listen(options.listen).await?;
    let metrics = match options.metrics {
        Some(address) => Some(listen(address).await?),
        None => None,
    };
    let (socket, file) = server::listen(&options.socket)
        .map_err(CoordinatorError::io(options.socket.display().to_string()))?;
    tokio::spawn(cluster.clone().tick());
    let log = cluster.lock().log.clone();
    tokio::spawn(log.write());
    tokio::spawn(network::await_nodes(cluster.clone()));
    let endpoint = endpoint.behind(cluster.gate.clone());
    tokio::spawn(nodes::accept(cluster.clone(), endpoint, listener));
    tokio::spawn(server::accept(cluster.clone(), socket));
    if let Some(listener) = metrics {
        tokio::spawn(statistics::serve(cluster.clone(), listener));
    }
    tracing::info!("the coordinator listens on {} and {}", options.listen, options.socket.display());
    Ok((cluster, file))
}
