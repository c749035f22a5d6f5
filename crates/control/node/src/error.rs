//! Why a node cannot run.

use moves::InvalidHostName;
use rpc::pki::PkiError;
use store::StoreError;

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
    /// The device of its options cannot be plugged in.
    #[error("{}", rpc::wire::split_reason(.0).0)]
    Device(String),
}

impl NodeError {
    pub(crate) fn io(what: impl Into<String>, source: std::io::Error) -> Self {
        Self::Io { what: what.into(), source }
    }

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
