//! How a machine with a join token gets a certificate.
//!
//! ```text
//! machine, without a certificate          coordinator, known by the token's fingerprint
//!  │ Request{secret, CSR} ─────────────────▶│ hash of the secret known and not expired, name free
//!  │◀──────────── Granted{certificate, …}   │   or Refused{reason}
//! ```
//!
//! The machine's private key stays there. The connection ends after the answer, and nothing else can be said on it.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use crate::token::JoinToken;
use crate::{frame, pinned, pki};

/// Raised when a message changes its meaning or layout.
pub const VERSION: u16 = 1;

/// The longest request, in bytes: one who may be anybody takes no more room than that.
pub const MAX_REQUEST: usize = 4096;

/// How long each side may take to say something.
pub const LIMIT: Duration = Duration::from_secs(5);

/// What the machine says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// [`VERSION`] of the sender.
    pub version: u16,
    /// The token's.
    pub secret: [u8; 16],
    /// A certificate signing request in DER, for the host's name alone.
    pub signing_request: Vec<u8>,
}

/// What the coordinator says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// The machine may join.
    Granted(Certificates),
    /// It may not.
    Refused {
        /// Why, as [`wire::reason`](crate::wire::reason) makes it.
        reason: String,
    },
}

/// What a machine needs beside its key, in PEM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Certificates {
    /// Its own.
    pub own: String,
    /// The authority's.
    pub authority: String,
}

/// Why a machine has no certificate.
#[derive(Debug, thiserror::Error)]
pub enum EnrolError {
    /// Nobody is there.
    #[error("{0} does not answer: {1}")]
    Silent(SocketAddr, #[source] io::Error),
    /// Somebody else is there.
    #[error("what answers at {0} is not the coordinator of this token: {1}")]
    Stranger(SocketAddr, #[source] io::Error),
    /// The coordinator refuses.
    #[error("{0}")]
    Refused(String),
}

impl EnrolError {
    fn of_connecting(address: SocketAddr, error: io::Error) -> Self {
        let is_about_tls = error.get_ref().is_some_and(|inner| inner.is::<rustls::Error>());
        if is_about_tls { Self::Stranger(address, error) } else { Self::Silent(address, error) }
    }
}

/// Gets a certificate for `signing_request`, which is in DER.
///
/// # Errors
/// See [`EnrolError`].
pub async fn enrol(token: &JoinToken, signing_request: Vec<u8>) -> Result<Certificates, EnrolError> {
    let address = token.coordinator;
    let silent = |error: io::Error| EnrolError::Silent(address, error);
    let tcp = pinned::dial(address).await.map_err(silent)?;
    let connected = pinned::connect(tcp, token.authority).await;
    let mut stream = connected.map_err(|error| EnrolError::of_connecting(address, error))?;
    let request = Request { version: VERSION, secret: token.secret.0, signing_request };
    let talk = async {
        frame::send(&mut stream, &request).await?;
        frame::receive::<Answer>(&mut stream).await
    };
    match timeout(LIMIT, talk).await.map_err(|late| silent(late.into()))?.map_err(silent)? {
        Answer::Refused { reason } => Err(EnrolError::Refused(reason)),
        Answer::Granted(certificates)
            if pki::fingerprint(&certificates.authority).is_ok_and(|is| is == token.authority) =>
        {
            Ok(certificates)
        }
        Answer::Granted(_) => {
            let error = io::Error::other("the authority that it names is another one");
            Err(EnrolError::Stranger(address, error))
        }
    }
}
