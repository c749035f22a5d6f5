//! Why a certificate is not believed, in words for those who run the hosts.

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

/// Whether others, who know `authority` and have a clock that says `now`, believe that the owner of `certificate` is `name`.
///
/// # Errors
/// If not: why, with the way out.
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

/// Users read these errors; rustls writes its own for programmers.
pub fn in_our_words(error: io::Error) -> io::Error {
    let said = match tls_error(&error) {
        Some(Error::InvalidCertificate(why)) => {
            format!("the other end's certificate is not believed: {}", reason(why))
        }
        Some(Error::NoCertificatesPresented) => "the other end shows no certificate".into(),
        Some(Error::AlertReceived(alert)) => match told(*alert) {
            Some(why) => format!("the other end does not believe this host's certificate: {why}"),
            None => return error,
        },
        _ => return error,
    };
    io::Error::new(error.kind(), said)
}

/// In our words if who is at `address` turned out not to be `peer`; else the error as it is.
pub fn of_another(error: io::Error, address: SocketAddr, peer: &str) -> io::Error {
    use CertificateError::{NotValidForName, NotValidForNameContext};
    let is_another = |error: &Error| {
        matches!(error, Error::InvalidCertificate(NotValidForName | NotValidForNameContext { .. }))
    };
    let said = match peer {
        _ if !tls_error(&error).is_some_and(is_another) => return error,
        COORDINATOR => format!(
            "at {address} is another host than the coordinator, by its certificate: see where that listens"
        ),
        host => format!(
            "at {address} is another host than `{host}`, by its certificate: if `{host}` is gone, `transhume host remove {host}` where the coordinator is; else each host needs the one that was issued for its own name"
        ),
    };
    io::Error::new(error.kind(), said)
}

/// In our words if who has dialled says that the certificate is bad; else the error as it is. He says the same if it is good, and for
/// another name than the one he looks for.
pub fn of_dialler(error: io::Error) -> io::Error {
    match tls_error(&error) {
        Some(Error::AlertReceived(AlertDescription::BadCertificate)) => io::Error::new(
            error.kind(),
            "the other end looks for another host at this address, or does not believe this host's certificate: if one was here that is gone, \
             `transhume host remove NAME` where the coordinator is, and `transhume hosts` lists it; else issue this one's certificate anew with \
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
                "it expired on {end}, and this host's clock says {now}: issue it anew, or set the clock if that is wrong"
            )
        }
        CertificateError::NotValidYetContext { time, not_before } => {
            let (now, begin) = (date(*time), date(*not_before));
            format!(
                "it begins on {begin}, and this host's clock says {now}: set the clock if that is wrong, or issue it anew"
            )
        }
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "it was not issued by the authority of this host's `authority.pem`: take both from the same folder of `transhume pki`"
                .into()
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "it is for another name: each host needs the one that was issued for its own".into()
        }
        error => format!("{error}: issue it anew with `transhume pki`"),
    }
}

/// What the other end found, where an alert is about a certificate.
fn told(alert: AlertDescription) -> Option<&'static str> {
    match alert {
        // Also said of what is not yet valid.
        AlertDescription::CertificateExpired => Some(
            "by its clock that has expired, or is not yet valid: issue it anew, or set the clock that is wrong",
        ),
        AlertDescription::UnknownCA | AlertDescription::DecryptError => {
            Some("it knows another authority: take both hosts' files from the same folder of `transhume pki`")
        }
        AlertDescription::BadCertificate
        | AlertDescription::CertificateUnknown
        | AlertDescription::CertificateRequired
        | AlertDescription::UnsupportedCertificate => Some("issue it anew with `transhume pki`"),
        _ => None,
    }
}

/// The day, as 2026-11-23.
fn date(time: UnixTime) -> String {
    const LAST: u64 = 253_402_300_799;
    let since = Duration::from_secs(time.as_secs().min(LAST));
    (rcgen::date_time_ymd(1970, 1, 1) + since).date().to_string()
}
