//! Enrolment: a machine with a join token gets a certificate.
//!
//! ```text
//! machine, without a certificate          coordinator, known by the token's fingerprint
//!  │ Request{secret, CSR} ─────────────────▶│ hash of the secret known and not expired, name free
//!  │◀──────────── Granted{certificate, …}   │   or Refused{reason}
//! ```
//!
//! The machine's private key stays on the machine. The connection ends after the answer and carries nothing else.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use crate::token::JoinToken;
use crate::{frame, pinned, pki};

/// Incremented when a message changes its meaning or layout.
pub const VERSION: u16 = 1;

/// The longest request in bytes, to bound the memory for unauthenticated clients.
pub const MAX_REQUEST: usize = 4096;

/// Time limit for each message.
pub const LIMIT: Duration = Duration::from_secs(5);

/// The machine's request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// [`VERSION`] of the sender.
    pub version: u16,
    /// The secret of the token.
    pub secret: [u8; 16],
    /// A certificate signing request in DER, for the host's name only.
    pub signing_request: Vec<u8>,
}

/// The coordinator's answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// The machine has joined.
    Granted(Certificates),
    /// The machine was refused.
    Refused {
        /// The reason, as [`wire::reason`](crate::wire::reason) makes it.
        reason: String,
    },
}

/// The certificates of a machine, in PEM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Certificates {
    /// Its own.
    pub own: String,
    /// The authority's.
    pub authority: String,
}

/// Why a machine got no certificate.
#[derive(Debug, thiserror::Error)]
pub enum EnrolError {
    /// No answer.
    #[error("{0} does not answer: {1}")]
    Silent(SocketAddr, #[source] io::Error),
    /// The server is not the coordinator of the token.
    #[error("the server at {0} is not the coordinator of this token: {1}")]
    Stranger(SocketAddr, #[source] io::Error),
    /// The coordinator refused.
    #[error("{0}")]
    Refused(String),
}

impl EnrolError {
    fn of_connecting(address: SocketAddr, error: io::Error) -> Self {
        let is_about_tls = error.get_ref().is_some_and(|inner| inner.is::<rustls::Error>());
        if is_about_tls { Self::Stranger(address, error) } else { Self::Silent(address, error) }
    }
}

/// Requests a certificate with `signing_request`, which is in DER.
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
            let error = io::Error::other("its certificate authority differs from the token's");
            Err(EnrolError::Stranger(address, error))
        }
    }
}
