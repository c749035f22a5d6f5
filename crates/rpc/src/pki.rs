//! The cluster's certificate authority, as files in a directory.
//!
//! | file | |
//! |---|---|
//! | `authority.pem`, `authority.key` | the authority; the key is needed only to issue |
//! | `NAME.pem`, `NAME.key` | a host's, or the coordinator's |
//!
//! A host needs `authority.pem` and its own two files, and no others. Certificates do not expire; to shut a
//! host out, make a new authority and issue anew for the others.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};

const AUTHORITY: &str = "authority";

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    /// A file cannot be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A certificate or key is not where it should be.
    #[error(
        "{} is missing: issue it with `transhume pki`, or say with `--pki` in which folder it is",
        .0.display()
    )]
    Missing(PathBuf),
    /// A file is there already, and is not replaced.
    #[error("{} exists already; choose another directory, or remove it first", .0.display())]
    Exists(PathBuf),
    /// A file does not hold what it should.
    #[error("{} holds no usable certificate or key: {reason}", path.display())]
    Unusable {
        /// Which.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A name that no certificate can have.
    #[error("{0:?} cannot be a host's name: use letters, digits, '-', '_' and '.'")]
    BadName(String),
    /// Keys or certificates cannot be made.
    #[error("no certificate was made: {0}")]
    Generation(#[from] rcgen::Error),
}

/// Makes a new authority in `directory`, which is made if it does not exist.
///
/// # Errors
/// If there is one already, or files cannot be written.
pub fn create_authority(directory: &Path) -> Result<(), PkiError> {
    fs::create_dir_all(directory).map_err(|source| PkiError::File { path: directory.into(), source })?;
    let key = KeyPair::generate()?;
    let certificate = authority_parameters()?.self_signed(&key)?;
    write_pair(directory, AUTHORITY, &certificate.pem(), &key.serialize_pem())
}

/// Issues a certificate for `name` (a host, or [`COORDINATOR`](crate::COORDINATOR)) by the authority in
/// `directory`, and puts it there.
///
/// # Errors
/// If there is no authority, `name` has a certificate already, or files cannot be written.
pub fn issue(directory: &Path, name: &str) -> Result<(), PkiError> {
    check_name(name)?;
    let path = directory.join(format!("{AUTHORITY}.key"));
    let pem = fs::read_to_string(&path).map_err(|source| PkiError::File { path: path.clone(), source })?;
    let authority_key =
        KeyPair::from_pem(&pem).map_err(|error| PkiError::Unusable { path, reason: error.to_string() })?;
    let issuer = Issuer::new(authority_parameters()?, authority_key);
    let key = KeyPair::generate()?;
    let mut parameters = CertificateParams::new(vec![name.to_owned()])?;
    parameters.distinguished_name = common_name(name);
    parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    parameters.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    let certificate = parameters.signed_by(&key, &issuer)?;
    write_pair(directory, name, &certificate.pem(), &key.serialize_pem())
}

/// Who somebody is, and whom he believes.
pub struct Identity {
    pub(crate) name: String,
    pub(crate) certificate: CertificateDer<'static>,
    pub(crate) key: PrivateKeyDer<'static>,
    pub(crate) authority: CertificateDer<'static>,
}

impl Identity {
    /// The identity of `name` from `directory`.
    ///
    /// # Errors
    /// If a file is missing or unusable.
    pub fn load(directory: &Path, name: &str) -> Result<Self, PkiError> {
        check_name(name)?;
        let certificate = read(&directory.join(format!("{name}.pem")), CertificateDer::from_pem_slice)?;
        let key = read(&directory.join(format!("{name}.key")), PrivateKeyDer::from_pem_slice)?;
        let authority = read(&directory.join(format!("{AUTHORITY}.pem")), CertificateDer::from_pem_slice)?;
        Ok(Self { name: name.to_owned(), certificate, key, authority })
    }
}

fn read<T, E: ToString>(path: &Path, parse: impl FnOnce(&[u8]) -> Result<T, E>) -> Result<T, PkiError> {
    let bytes = fs::read(path).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => PkiError::Missing(path.into()),
        _ => PkiError::File { path: path.into(), source },
    })?;
    parse(&bytes).map_err(|error| PkiError::Unusable { path: path.into(), reason: error.to_string() })
}

fn check_name(name: &str) -> Result<(), PkiError> {
    match ServerName::try_from(name) {
        Ok(ServerName::DnsName(_)) if name != AUTHORITY => Ok(()),
        _ => Err(PkiError::BadName(name.to_owned())),
    }
}

fn authority_parameters() -> Result<CertificateParams, PkiError> {
    let mut parameters = CertificateParams::new(Vec::new())?;
    parameters.distinguished_name = common_name("transhume cluster authority");
    parameters.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    Ok(parameters)
}

fn common_name(name: &str) -> DistinguishedName {
    let mut distinguished = DistinguishedName::new();
    distinguished.push(DnType::CommonName, name);
    distinguished
}

fn write_pair(directory: &Path, name: &str, certificate: &str, key: &str) -> Result<(), PkiError> {
    write_new(&directory.join(format!("{name}.key")), key, 0o600)?;
    write_new(&directory.join(format!("{name}.pem")), certificate, 0o644)
}

fn write_new(path: &Path, text: &str, mode: u32) -> Result<(), PkiError> {
    let opened = OpenOptions::new().write(true).create_new(true).mode(mode).open(path);
    let written = opened.and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|source| match source.kind() {
        io::ErrorKind::AlreadyExists => PkiError::Exists(path.into()),
        _ => PkiError::File { path: path.into(), source },
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn keys_are_their_owners_alone() {
        let directory = tempfile::tempdir().unwrap();
        create_authority(directory.path()).unwrap();
        issue(directory.path(), "h1").unwrap();
        for key in ["authority.key", "h1.key"] {
            let mode = fs::metadata(directory.path().join(key)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
        }
        assert!(Identity::load(directory.path(), "h1").is_ok());
    }

    #[test]
    fn nothing_is_overwritten() {
        let directory = tempfile::tempdir().unwrap();
        create_authority(directory.path()).unwrap();
        assert!(matches!(create_authority(directory.path()), Err(PkiError::Exists(_))));
    }

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        create_authority(directory.path()).unwrap();
        for name in ["../h1", "", "authority", "a b", "10.0.0.1"] {
            assert!(matches!(issue(directory.path(), name), Err(PkiError::BadName(_))), "{name}");
        }
    }
}
