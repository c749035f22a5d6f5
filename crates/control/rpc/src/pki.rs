//! The cluster's certificate authority, as files in a directory.
//!
//! | file | |
//! |---|---|
//! | `authority.pem`, `authority.key` | the authority; the key is needed only to issue |
//! | `NAME.pem`, `NAME.key` | a host's, or the coordinator's |
//!
//! A host needs `authority.pem` and its own two files only. Certificates do not expire and have no start date, so
//! that wrong clocks do not matter; [`removed`](crate::removed) revokes them. Certificates of another authority may be used too,
//! and may expire.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use moves::HostName;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, PublicKeyData, SanType,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};

use crate::COORDINATOR;
use crate::disbelief;
use crate::enrol::Certificates;
use crate::removed::KeyId;
use crate::token::Fingerprint;

const AUTHORITY: &str = "authority";

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    /// A file cannot be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A certificate or key is missing.
    #[error(
        "{} is missing: issue it with `transhume pki`, or pass its directory with `--pki`",
        .0.display()
    )]
    Missing(PathBuf),
    /// A file exists already and is not replaced.
    #[error("{} already exists: choose another directory, or delete the file", .0.display())]
    Exists(PathBuf),
    /// A file has invalid contents.
    #[error("{} does not contain a usable certificate or key: {reason}", path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// The reason, with the remedy.
        reason: String,
    },
    /// An invalid name for a certificate.
    #[error(
        "{0:?} is not a valid host name: use letters, digits, '-', '_' and dots, and do not end with a number"
    )]
    BadName(String),
    /// The creation of keys or certificates failed.
    #[error("cannot create a certificate: {0}")]
    Generation(#[from] rcgen::Error),
}

/// The reason and remedy for a file with invalid contents.
const DAMAGED: &str = "it is damaged: copy it again, or issue a new one with `transhume pki`";

/// Creates a new authority in `directory`, which is created if it does not exist.
///
/// # Errors
/// If there is one already, or files cannot be written.
pub fn create_authority(directory: &Path) -> Result<(), PkiError> {
    fs::create_dir_all(directory).map_err(|source| PkiError::File { path: directory.into(), source })?;
    let key = KeyPair::generate()?;
    let certificate = authority_parameters()?.self_signed(&key)?;
    write_pair(directory, AUTHORITY, &certificate.pem(), &key.serialize_pem())
}

/// Issues a certificate for `name` (a host, or [`COORDINATOR`](crate::COORDINATOR)) with the authority in
/// `directory`, and stores it there.
///
/// # Errors
/// If there is no authority, `name` has a certificate already, or files cannot be written.
pub fn issue(directory: &Path, name: &str) -> Result<(), PkiError> {
    check_name(name)?;
    let key = KeyPair::generate()?;
    let certificate = parameters(name)?.signed_by(&key, &issuer(directory)?)?;
    write_pair(directory, name, &certificate.pem(), &key.serialize_pem())
}

/// Creates the key for a certificate request, in PEM.
///
/// # Errors
/// If the creation fails.
pub fn new_key() -> Result<String, PkiError> {
    Ok(KeyPair::generate()?.serialize_pem())
}

/// Makes a certificate signing request for `name`, in DER. `key` is in PEM.
///
/// # Errors
/// If the name or the key is invalid.
pub fn signing_request(key: &str, name: &str) -> Result<Vec<u8>, PkiError> {
    check_name(name)?;
    let parameters = CertificateParams::new(vec![name.to_owned()])?;
    Ok(parameters.serialize_request(&KeyPair::from_pem(key)?)?.der().to_vec())
}

/// Why a valid applicant gets no certificate.
#[derive(Debug, thiserror::Error)]
pub enum CertifyError {
    /// The request is not for exactly one valid host name, with a key of the supported kind.
    #[error("the signing request is not for a host's certificate")]
    NoHost,
    /// Another host has the name.
    #[error("a host `{0}` already exists")]
    Taken(HostName),
    /// An error of the authority or its directory.
    #[error(transparent)]
    Pki(#[from] PkiError),
}

/// An applicant: the requested name, and the key that the request proves.
pub struct Applicant {
    host: HostName,
    key: rcgen::PublicKey,
}

impl Applicant {
    /// Verifies `signing_request`, and takes only the name and the key from it.
    ///
    /// # Errors
    /// [`CertifyError::NoHost`].
    pub fn of(signing_request: &[u8]) -> Result<Self, CertifyError> {
        let parsed = CertificateSigningRequestParams::from_der(&signing_request.into());
        let request = parsed.map_err(|_| CertifyError::NoHost)?;
        let host = sole_name(&request.params).ok_or(CertifyError::NoHost)?;
        if request.public_key.algorithm() != &rcgen::PKCS_ECDSA_P256_SHA256 {
            return Err(CertifyError::NoHost);
        }
        Ok(Self { host, key: request.public_key })
    }

    /// The name.
    #[must_use]
    pub fn host(&self) -> &HostName {
        &self.host
    }

    /// The key.
    #[must_use]
    pub fn key(&self) -> KeyId {
        KeyId::of(&self.key.subject_public_key_info())
    }
}

/// Issues a certificate to `applicant` with the authority in `directory`, and stores a copy there. A repeated request with the same key
/// gets the same certificate; one with another key fails, unless the name `is_free`.
///
/// # Errors
/// See [`CertifyError`].
pub fn certify(directory: &Path, applicant: &Applicant, is_free: bool) -> Result<Certificates, CertifyError> {
    let Applicant { host, key } = applicant;
    let path = copy_of(directory, host);
    let issued = match fs::read_to_string(&path) {
        Ok(issued) => Some(issued),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(source) => return Err(PkiError::File { path, source }.into()),
    };
    let own = match issued {
        Some(issued) if public_key(&path, &issued)? == key.subject_public_key_info() => issued,
        Some(_) if !is_free => return Err(CertifyError::Taken(host.clone())),
        _ => {
            let signed = parameters(host.as_str())?.signed_by(key, &issuer(directory)?);
            let own = signed.map_err(PkiError::from)?.pem();
            let kept = private::replace_durably(&path, own.as_bytes());
            kept.map_err(|source| PkiError::File { path, source })?;
            own
        }
    };
    Ok(Certificates { own, authority: authority(directory)? })
}

/// The key in the stored certificate of `host` in `directory`, if there is one.
#[must_use]
pub fn key_of(directory: &Path, host: &HostName) -> Option<KeyId> {
    let path = copy_of(directory, host);
    let issued = fs::read_to_string(&path).ok()?;
    Some(KeyId::of(&public_key(&path, &issued).ok()?))
}

/// The hosts with stored certificates in `directory`.
#[must_use]
pub fn certified(directory: &Path) -> BTreeSet<HostName> {
    let paths = fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    let copies = paths.filter(|path| path.extension().is_some_and(|kind| kind == "pem"));
    let names = copies.filter_map(|path| HostName::new(path.file_stem()?.to_str()?).ok());
    names.filter(|host| check_name(host.as_str()).is_ok() && host.as_str() != COORDINATOR).collect()
}

/// Deletes the stored certificate of `host` in `directory`, if there is one.
///
/// # Errors
/// If it cannot be deleted.
pub fn forget(directory: &Path, host: &HostName) -> Result<(), PkiError> {
    let path = copy_of(directory, host);
    match fs::remove_file(&path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(PkiError::File { path, source }),
        _ => Ok(()),
    }
}

fn copy_of(directory: &Path, host: &HostName) -> PathBuf {
    directory.join(format!("{host}.pem"))
}

/// The name in a signing request, if it is a single host name. Names are compared without regard to case, so all are in
/// lower case.
fn sole_name(parameters: &CertificateParams) -> Option<HostName> {
    let [SanType::DnsName(name)] = &parameters.subject_alt_names[..] else { return None };
    let name = name.as_str();
    let fits = check_name(name).is_ok() && name != COORDINATOR && name == name.to_ascii_lowercase();
    HostName::new(name).ok().filter(|_| fits)
}

/// The public key in a certificate, in DER.
fn public_key(path: &Path, certificate: &str) -> Result<Vec<u8>, PkiError> {
    let unusable = |reason: String| PkiError::Unusable { path: path.into(), reason };
    let der = CertificateDer::from_pem_slice(certificate.as_bytes())
        .map_err(|error| unusable(error.to_string()))?;
    let parsed = webpki::EndEntityCert::try_from(&der).map_err(|error| unusable(error.to_string()))?;
    Ok(parsed.subject_public_key_info().to_vec())
}

/// The certificate of the authority in `directory`, in PEM.
///
/// # Errors
/// If there is none.
pub fn authority(directory: &Path) -> Result<String, PkiError> {
    let path = directory.join(format!("{AUTHORITY}.pem"));
    fs::read_to_string(&path).map_err(|source| PkiError::File { path, source })
}

/// The fingerprint of a certificate in PEM.
///
/// # Errors
/// If it is malformed.
pub fn fingerprint(certificate: &str) -> Result<Fingerprint, rustls::pki_types::pem::Error> {
    Ok(Fingerprint::of(&CertificateDer::from_pem_slice(certificate.as_bytes())?))
}

/// Stores the certificates and the key, which is in PEM, in `directory`, where [`Identity::load`] finds them.
///
/// # Errors
/// If files cannot be written.
pub fn install(directory: &Path, name: &str, key: &str, certificates: &Certificates) -> Result<(), PkiError> {
    check_name(name)?;
    let files = [
        (format!("{name}.key"), key),
        (format!("{name}.pem"), &certificates.own),
        (format!("{AUTHORITY}.pem"), &certificates.authority),
    ];
    for (file, text) in files {
        let path = directory.join(file);
        private::replace_durably(&path, text.as_bytes()).map_err(|source| PkiError::File { path, source })?;
    }
    Ok(())
}

fn issuer(directory: &Path) -> Result<Issuer<'static, KeyPair>, PkiError> {
    let path = directory.join(format!("{AUTHORITY}.key"));
    let pem = fs::read_to_string(&path).map_err(|source| PkiError::File { path: path.clone(), source })?;
    let key =
        KeyPair::from_pem(&pem).map_err(|error| PkiError::Unusable { path, reason: error.to_string() })?;
    Ok(Issuer::new(authority_parameters()?, key))
}

/// The contents of a host's certificate except its key.
fn parameters(name: &str) -> Result<CertificateParams, PkiError> {
    let mut parameters = always_valid(vec![name.to_owned()])?;
    parameters.distinguished_name = common_name(name);
    parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    parameters.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    Ok(parameters)
}

/// A party's certificate, key and authority.
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
    /// If a file is missing or unusable, or other hosts would reject the certificate.
    pub fn load(directory: &Path, name: &str) -> Result<Self, PkiError> {
        let identity = Self::read(directory, name)?;
        let Self { certificate, authority, key, .. } = &identity;
        let unusable = |file: &str, reason| PkiError::Unusable { path: directory.join(file), reason };
        if webpki::anchor_from_trusted_cert(authority).is_err() {
            return Err(unusable(&format!("{AUTHORITY}.pem"), DAMAGED.into()));
        }
        let own = format!("{name}.pem");
        disbelief::of_own(certificate, authority, name, UnixTime::now())
            .map_err(|reason| unusable(&own, reason))?;
        if !is_key_of(key, certificate) {
            let reason =
                format!("it does not match {own}: copy both again, or issue new ones with `transhume pki`");
            return Err(unusable(&format!("{name}.key"), reason));
        }
        Ok(identity)
    }

    /// Likewise, without checking whether other hosts would accept it.
    ///
    /// # Errors
    /// If a file is missing or unusable.
    pub fn read(directory: &Path, name: &str) -> Result<Self, PkiError> {
        check_name(name)?;
        let certificate = read(&directory.join(format!("{name}.pem")), CertificateDer::from_pem_slice)?;
        let key = read(&directory.join(format!("{name}.key")), PrivateKeyDer::from_pem_slice)?;
        let authority = read(&directory.join(format!("{AUTHORITY}.pem")), CertificateDer::from_pem_slice)?;
        Ok(Self { name: name.to_owned(), certificate, key, authority })
    }
}

fn read<T, E>(path: &Path, parse: impl FnOnce(&[u8]) -> Result<T, E>) -> Result<T, PkiError> {
    let bytes = fs::read(path).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => PkiError::Missing(path.into()),
        _ => PkiError::File { path: path.into(), source },
    })?;
    parse(&bytes).map_err(|_| PkiError::Unusable { path: path.into(), reason: DAMAGED.into() })
}

/// Whether `key` matches `certificate`; true for kinds of keys that are not supported here.
fn is_key_of(key: &PrivateKeyDer<'_>, certificate: &CertificateDer<'_>) -> bool {
    let (Ok(key), Ok(certificate)) = (KeyPair::try_from(key), webpki::EndEntityCert::try_from(certificate))
    else {
        return true;
    };
    key.subject_public_key_info() == certificate.subject_public_key_info().as_ref()
}

fn check_name(name: &str) -> Result<(), PkiError> {
    match ServerName::try_from(name) {
        Ok(ServerName::DnsName(_)) if name != AUTHORITY => Ok(()),
        _ => Err(PkiError::BadName(name.to_owned())),
    }
}

fn authority_parameters() -> Result<CertificateParams, PkiError> {
    let mut parameters = always_valid(Vec::new())?;
    parameters.distinguished_name = common_name("transhume cluster authority");
    parameters.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    Ok(parameters)
}

/// Parameters for a validity that no clock is outside of: a machine without a battery-backed clock starts in 1970, and RFC 5280 (section 4.1.2.5) defines the last
/// second of 9999 as "no expiration".
fn always_valid(names: Vec<String>) -> Result<CertificateParams, PkiError> {
    let mut parameters = CertificateParams::new(names)?;
    parameters.not_before = rcgen::date_time_ymd(1970, 1, 1);
    parameters.not_after = rcgen::date_time_ymd(9999, 12, 31) + Duration::from_secs(24 * 60 * 60 - 1);
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
    fn key_files_are_accessible_to_their_owner_only() {
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
    fn the_file_that_is_wrong_is_named() {
        let directory = tempfile::tempdir().unwrap();
        create_authority(directory.path()).unwrap();
        issue(directory.path(), "h1").unwrap();
        issue(directory.path(), "h2").unwrap();
        let another_key = fs::read_to_string(directory.path().join("h2.key")).unwrap();
        let no_certificate = "-----BEGIN CERTIFICATE-----\nMAAw\n-----END CERTIFICATE-----\n";
        let cut = "-----BEGIN CERTIFICATE-----\nMAAw\n";
        let wrong = [
            ("authority.pem", no_certificate, "it is damaged"),
            ("authority.pem", cut, "it is damaged"),
            ("h1.pem", "", "it is damaged"),
            ("h1.key", &another_key, "it does not match h1.pem"),
        ];
        for (file, text, why) in wrong {
            let path = directory.path().join(file);
            let right = fs::read(&path).unwrap();
            fs::write(&path, text).unwrap();
            let error = Identity::load(directory.path(), "h1").err().unwrap().to_string();
            assert!(error.contains(&format!("/{file} ")) && error.contains(why), "{error}");
            fs::write(&path, right).unwrap();
        }
        assert!(Identity::load(directory.path(), "h1").is_ok());
    }

    /// An authority, and the key of an applicant.
    fn authority_and_key() -> (tempfile::TempDir, String) {
        let directory = tempfile::tempdir().unwrap();
        create_authority(directory.path()).unwrap();
        (directory, new_key().unwrap())
    }

    /// The answer to a signing request.
    fn certified(
        directory: &Path,
        request: &[u8],
        is_free: bool,
    ) -> Result<(HostName, Certificates), CertifyError> {
        let applicant = Applicant::of(request)?;
        Ok((applicant.host().clone(), certify(directory, &applicant, is_free)?))
    }

    #[test]
    fn applicant_gets_a_usable_identity_for_its_own_key() {
        let (directory, key) = authority_and_key();
        let (host, certificates) =
            certified(directory.path(), &signing_request(&key, "h1").unwrap(), false).unwrap();
        assert_eq!(host.as_str(), "h1");
        let own = tempfile::tempdir().unwrap();
        install(own.path(), "h1", &key, &certificates).unwrap();
        let identity = Identity::load(own.path(), "h1").unwrap();
        crate::Endpoint::new(identity).unwrap();
        assert!(!directory.path().join("h1.key").exists());
    }

    #[test]
    fn a_name_is_certified_for_one_key_only() {
        let (directory, key) = authority_and_key();
        let ask =
            |key: &str, name: &str| certified(directory.path(), &signing_request(key, name).unwrap(), false);
        let first = ask(&key, "h1").unwrap();
        assert_eq!(ask(&key, "h1").unwrap(), first);
        let other = new_key().unwrap();
        assert!(matches!(ask(&other, "h1"), Err(CertifyError::Taken(_))));
        issue(directory.path(), "h2").unwrap();
        assert!(matches!(ask(&key, "h2"), Err(CertifyError::Taken(_))));
    }

    #[test]
    fn a_name_that_is_free_again_is_given_to_another_key() {
        let (directory, key) = authority_and_key();
        let other = new_key().unwrap();
        let ask =
            |key: &str, is_free| certified(directory.path(), &signing_request(key, "h1").unwrap(), is_free);
        let first = ask(&key, false).unwrap();
        let host = &first.0;
        let had = key_of(directory.path(), host).unwrap();
        assert!(matches!(ask(&other, false), Err(CertifyError::Taken(_))));
        let second = ask(&other, true).unwrap();
        assert_ne!(key_of(directory.path(), host).unwrap(), had);
        assert_eq!(ask(&other, true).unwrap(), second, "a repeated request gets the same");
        forget(directory.path(), host).unwrap();
        forget(directory.path(), host).unwrap();
        assert_eq!(key_of(directory.path(), host), None);
        ask(&key, false).unwrap();
    }

    #[test]
    fn only_one_name_of_a_host_is_certified_and_nothing_else_that_is_asked_for() {
        let (directory, key) = authority_and_key();
        let key = KeyPair::from_pem(&key).unwrap();
        let ask = |names: &[&str]| {
            let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
            let mut parameters = CertificateParams::new(names).unwrap();
            parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            let request = parameters.serialize_request(&key).unwrap();
            certified(directory.path(), request.der(), false)
        };
        for names in
            [&[][..], &["h1", "h2"], &["coordinator"], &["authority"], &["COORDINATOR"], &["10.0.0.1"]]
        {
            assert!(matches!(ask(names), Err(CertifyError::NoHost)), "{names:?}");
        }
        assert!(matches!(Applicant::of(b"not a request"), Err(CertifyError::NoHost)));
        let (_, certificates) = ask(&["h1"]).unwrap();
        let der = CertificateDer::from_pem_slice(certificates.own.as_bytes()).unwrap();
        // As a CA certificate, it would be rejected as an end entity's.
        let authority = CertificateDer::from_pem_slice(certificates.authority.as_bytes()).unwrap();
        disbelief::of_own(&der, &authority, "h1", UnixTime::now()).unwrap();
    }

    #[test]
    fn a_request_that_was_changed_certifies_nothing_else() {
        let (directory, key) = authority_and_key();
        let request = signing_request(&key, "h1").unwrap();
        for at in 0..request.len() {
            let mut changed = request.clone();
            changed[at] ^= 1;
            // Bytes outside the signed part may encode the same contents differently.
            if let Ok((host, certificates)) = certified(directory.path(), &changed, false) {
                let key = KeyPair::from_pem(&key).unwrap().subject_public_key_info();
                let certified = public_key(Path::new("h1.pem"), &certificates.own).unwrap();
                assert_eq!((host.as_str(), certified), ("h1", key), "byte {at}");
            }
        }
    }

    /// Extreme clock values: time counts from 1970, and the kernel's clock ends in 2232.
    const CLOCKS: [u64; 4] = [0, 1, 1_800_000_000, 8_277_292_036];

    #[test]
    fn certificates_are_valid_at_any_clock_value() {
        let (directory, key) = authority_and_key();
        issue(directory.path(), "h1").unwrap();
        let issued = Identity::load(directory.path(), "h1").unwrap();
        let (_, joined) = certified(directory.path(), &signing_request(&key, "h2").unwrap(), false).unwrap();
        let joined = CertificateDer::from_pem_slice(joined.own.as_bytes()).unwrap();
        for seconds in CLOCKS {
            let clock = UnixTime::since_unix_epoch(Duration::from_secs(seconds));
            for (name, certificate) in [("h1", &issued.certificate), ("h2", &joined)] {
                disbelief::of_own(certificate, &issued.authority, name, clock).unwrap();
            }
        }
    }

    #[test]
    fn rejects_names_that_contain_paths() {
        let directory = tempfile::tempdir().unwrap();
        create_authority(directory.path()).unwrap();
        for name in ["../h1", "", "authority", "a b", "10.0.0.1"] {
            assert!(matches!(issue(directory.path(), name), Err(PkiError::BadName(_))), "{name}");
        }
    }
}
