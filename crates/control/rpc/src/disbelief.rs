//! Explains to operators why a certificate is rejected.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::{AlertDescription, CertificateError, Error, RootCertStore};

use crate::COORDINATOR;

/// Checks whether other hosts with this `authority`, whose clock says `now`, accept `certificate` for `name`.
///
/// # Errors
/// If they do not: the reason, with the remedy.
pub fn of_own(
    certificate: &CertificateDer<'_>,
    authority: &CertificateDer<'_>,
    name: &str,
    now: UnixTime,
) -> Result<(), String> {
    let general = |error: &dyn ToString| Error::General(error.to_string());
    let verify = || {
        let mut roots = RootCertStore::empty();
        roots.add(authority.clone().into_owned())?;
        let (roots, provider) = (Arc::new(roots), Arc::new(rustls::crypto::ring::default_provider()));
        let server = WebPkiServerVerifier::builder_with_provider(roots.clone(), provider.clone()).build();
        let client = WebPkiClientVerifier::builder_with_provider(roots, provider).build();
        let name = ServerName::try_from(name).map_err(|error| general(&error))?;
        let server = server.map_err(|error| general(&error))?;
        server.verify_server_cert(certificate, &[], &name, &[], now)?;
        client.map_err(|error| general(&error))?.verify_client_cert(certificate, &[], now)
    };
    match verify() {
        Ok(_) => Ok(()),
        Err(Error::InvalidCertificate(error)) => Err(reason(&error)),
        Err(error) => Err(error.to_string()),
    }
}

/// Converts rustls' errors, which are for programmers, to messages for operators.
pub fn in_our_words(error: io::Error) -> io::Error {
    let said = match tls_error(&error) {
        Some(Error::InvalidCertificate(why)) => {
            format!("the peer's certificate is rejected: {}", reason(why))
        }
        Some(Error::NoCertificatesPresented) => "the peer has no certificate".into(),
        Some(Error::AlertReceived(alert)) => match told(*alert) {
            Some(why) => format!("the peer rejects this host's certificate: {why}"),
            None => return error,
        },
        _ => return error,
    };
    io::Error::new(error.kind(), said)
}

/// Explains that the host at `address` is not `peer`; other errors stay as they are.
pub fn of_another(error: io::Error, address: SocketAddr, peer: &str) -> io::Error {
    use CertificateError::{NotValidForName, NotValidForNameContext};
    let is_another = |error: &Error| {
        matches!(error, Error::InvalidCertificate(NotValidForName | NotValidForNameContext { .. }))
    };
    let said = match peer {
        _ if !tls_error(&error).is_some_and(is_another) => return error,
        COORDINATOR => {
            format!("the certificate of {address} is not the coordinator's: check the coordinator's address")
        }
        host => format!(
            "the certificate of {address} is not that of `{host}`: if `{host}` is gone, run `transhume host remove {host}` on the coordinator's machine, else give each host the certificate for its own name"
        ),
    };
    io::Error::new(error.kind(), said)
}

/// Explains that a dialling peer rejects this host's certificate; other errors stay as they are. The peer sends the same alert if the certificate is valid for
/// another name than the expected one.
pub fn of_dialler(error: io::Error) -> io::Error {
    match tls_error(&error) {
        Some(Error::AlertReceived(AlertDescription::BadCertificate)) => io::Error::new(
            error.kind(),
            "the peer expects another host at this address, or rejects this host's certificate: if this address belonged to a host that is gone, \
             run `transhume host remove NAME` on the coordinator's machine (`transhume hosts` lists it), else issue a new certificate for this host with \
             `transhume pki`",
        ),
        _ => error,
    }
}

fn tls_error(error: &io::Error) -> Option<&Error> {
    error.get_ref()?.downcast_ref()
}

fn reason(error: &CertificateError) -> String {
    match error {
        CertificateError::ExpiredContext { time, not_after } => {
            let (now, end) = (date(*time), date(*not_after));
            format!(
                "it expired on {end}, and this host's clock says {now}: issue a new one, or correct the clock"
            )
        }
        CertificateError::NotValidYetContext { time, not_before } => {
            let (now, begin) = (date(*time), date(*not_before));
            format!(
                "it is valid from {begin}, and this host's clock says {now}: correct the clock, or issue a new one"
            )
        }
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "it was not issued by the authority in this host's `authority.pem`: copy both from the same directory of `transhume pki`"
                .into()
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "it is for another name: give each host the certificate for its own name".into()
        }
        error => format!("{error}: issue a new one with `transhume pki`"),
    }
}

/// The peer's finding, if its alert is about a certificate.
fn told(alert: AlertDescription) -> Option<&'static str> {
    match alert {
        // This alert also reports a certificate that is not yet valid.
        AlertDescription::CertificateExpired => Some(
            "by its clock, the certificate has expired or is not yet valid: issue a new one, or correct the clock",
        ),
        AlertDescription::UnknownCA | AlertDescription::DecryptError => Some(
            "it has another authority: copy both hosts' files from the same directory of `transhume pki`",
        ),
        AlertDescription::BadCertificate
        | AlertDescription::CertificateUnknown
        | AlertDescription::CertificateRequired
        | AlertDescription::UnsupportedCertificate => Some("issue a new one with `transhume pki`"),
        _ => None,
    }
}

/// The date, as 2026-11-23.
fn date(time: UnixTime) -> String {
    const LAST: u64 = 253_402_300_799;
    let since = Duration::from_secs(time.as_secs().min(LAST));
    (rcgen::date_time_ymd(1970, 1, 1) + since).date().to_string()
}
