//! The durable state of a joined machine.
//!
//! | file | contents |
//! |---|---|
//! | `pki` | certificates and keys, written atomically: if it exists, the machine has joined; its file `removed` says that they were revoked |
//! | `settings.json` | the machine's settings |
//! | `join.key` | the key of a join request, until the machine has joined |
//! | `coordinator`, `node` | durable state of these daemons |

use std::fs::{self, File};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rpc::enrol::{self, EnrolError};
use rpc::pki::{self, Identity, PkiError};
use rpc::token::{Fingerprint, JoinToken};
use rpc::wire::split_reason;
use rpc::{COORDINATOR, Endpoint};
use serde::{Deserialize, Serialize};

use crate::failure::{Failure, Result};

/// How long a previous process may take to release the directory: a killed one needs a moment.
const PATIENCE: Duration = Duration::from_secs(3);

/// The settings of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Its name.
    pub name: String,
    /// Its role.
    pub role: Role,
    /// The listening address of the coordinator on the first machine, or of the node on others.
    pub listen: SocketAddr,
    /// The name of its network device.
    pub device: String,
    /// The former name of the device.
    pub former_device: Option<String>,
    /// The device's address with its prefix.
    pub address: Option<String>,
    /// The device's MTU in bytes, unless it is the default.
    #[serde(default)]
    pub mtu: Option<u32>,
    /// The names of disabled offloads.
    #[serde(default)]
    pub without: Vec<String>,
    /// The address of the metrics, if any.
    #[serde(default)]
    pub metrics: Option<SocketAddr>,
}

/// The role of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// It runs the coordinator.
    First,
    /// It has joined.
    Joined {
        /// The address of the coordinator.
        coordinator: SocketAddr,
    },
}

/// The state directory, locked by this process while this value lives.
pub struct Folder {
    path: PathBuf,
    _lock: File,
}

impl Folder {
    /// Locks the directory at `path`, and creates it if necessary.
    pub fn take(path: PathBuf) -> Result<Self> {
        let lock = private::lock::take(&path, PATIENCE).map_err(|error| in_folder(&path, error))?;
        let lock = lock.ok_or_else(|| {
            Failure::new(
                format!("another `transhume net up` uses the state directory {}", path.display()),
                "stop it first, or choose another directory with `--state`",
            )
        })?;
        Ok(Self { path, _lock: lock })
    }

    /// The directory of certificates and keys.
    pub fn pki(&self) -> PathBuf {
        self.path.join("pki")
    }

    /// The state directory of the daemon `name`.
    pub fn of_daemon(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    fn settings_file(&self) -> PathBuf {
        self.path.join("settings.json")
    }

    /// The settings, if the machine has joined.
    pub fn settings(&self) -> Result<Option<Settings>> {
        if !self.pki().exists() {
            return Ok(None);
        }
        let file = self.settings_file();
        let read = fs::read(&file).and_then(|bytes| serde_json::from_slice(&bytes).map_err(io::Error::from));
        read.map(Some).map_err(|error| {
            Failure::new(
                format!("{}: {error}", file.display()),
                format!("delete the state with `rm -r {}`, then join again", self.path.display()),
            )
        })
    }

    fn removal_file(&self) -> PathBuf {
        self.pki().join("removed")
    }

    /// Records that the network has removed this machine, with the coordinator's reason.
    pub fn note_removal(&self, reason: &str) -> Result<()> {
        let noted = private::replace_durably(&self.removal_file(), reason.as_bytes());
        noted.map_err(|error| in_folder(&self.path, error))
    }

    /// The recorded removal, if any.
    pub fn removal(&self) -> Option<Failure> {
        let reason = fs::read_to_string(self.removal_file()).ok()?;
        let (what, help) = split_reason(&reason);
        Some(api::Failure::new(what, help.unwrap_or_default()).into())
    }

    /// Writes the settings.
    pub fn note(&self, settings: &Settings) -> Result<()> {
        let text = serde_json::to_vec(settings).map_err(io::Error::from)?;
        private::replace_durably(&self.settings_file(), &text).map_err(|error| in_folder(&self.path, error))
    }

    /// The fingerprint of the authority that issued this machine's certificate.
    pub fn authority(&self) -> Result<Fingerprint> {
        let pem = pki::authority(&self.pki()).map_err(failed)?;
        pki::fingerprint(&pem).map_err(|error| Failure::new(format!("authority.pem: {error}"), ""))
    }

    /// Creates a new network with this machine as the first.
    pub fn found(&self, settings: &Settings) -> Result<()> {
        self.complete(settings, |pki| {
            pki::create_authority(pki)?;
            pki::issue(pki, COORDINATOR)?;
            pki::issue(pki, &settings.name)
        })
    }

    /// Joins a network with `token`.
    pub async fn join(&self, settings: &Settings, token: &JoinToken) -> Result<()> {
        let key = self.join_key()?;
        let request = pki::signing_request(&key, &settings.name).map_err(failed)?;
        let certificates = enrol::enrol(token, request).await.map_err(explain)?;
        self.complete(settings, |pki| pki::install(pki, &settings.name, &key, &certificates))?;
        // The new certificate is in use.
        let _removed = fs::remove_file(self.join_key_file());
        Ok(())
    }

    /// The key of the join request. It stays the same until an answer has come: with another key, the coordinator would see another machine.
    fn join_key(&self) -> Result<String> {
        let file = self.join_key_file();
        if let Ok(key) = fs::read_to_string(&file)
            && pki::signing_request(&key, "any").is_ok()
        {
            return Ok(key);
        }
        let key = pki::new_key().map_err(failed)?;
        private::replace_durably(&file, key.as_bytes()).map_err(|error| in_folder(&self.path, error))?;
        Ok(key)
    }

    fn join_key_file(&self) -> PathBuf {
        self.path.join("join.key")
    }

    /// Has `fill` write certificates and keys to a temporary directory, and renames it when everything else is complete.
    fn complete(
        &self,
        settings: &Settings,
        fill: impl FnOnce(&Path) -> std::result::Result<(), PkiError>,
    ) -> Result<()> {
        let (fresh, old) = (self.path.join("pki.new"), self.path.join("pki.old"));
        let failed_io = |error| in_folder(&self.path, error);
        // A killed process may have left these directories.
        discard(&fresh).and_then(|()| discard(&old)).map_err(failed_io)?;
        private::directory(&fresh).map_err(failed_io)?;
        fill(&fresh).map_err(failed)?;
        usable(&fresh, &settings.name)?;
        self.note(settings)?;
        let place = || {
            sync(&fresh)?;
            if self.pki().exists() {
                fs::rename(self.pki(), &old)?;
            }
            fs::rename(&fresh, self.pki())?;
            private::sync_folder_of(&self.pki())?;
            discard(&old)
        };
        place().map_err(failed_io)
    }
}

/// Deletes a directory, if it exists.
fn discard(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Checks that certificate and key match.
fn usable(pki: &Path, name: &str) -> Result<()> {
    let identity = Identity::load(pki, name).map_err(failed)?;
    let endpoint = Endpoint::new(identity);
    endpoint.map(drop).map_err(|error| Failure::new(format!("the certificate is not usable: {error}"), ""))
}

/// Writes a directory's contents to disk.
fn sync(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        File::open(entry?.path())?.sync_all()?;
    }
    File::open(folder)?.sync_all()
}

fn in_folder(path: &Path, error: io::Error) -> Failure {
    let help = match error.kind() {
        io::ErrorKind::PermissionDenied => "choose another directory with `--state`",
        _ => "check the free space, or choose another directory with `--state`",
    };
    Failure::new(format!("{}: {error}", path.display()), help)
}

fn failed(error: PkiError) -> Failure {
    let help = match error {
        PkiError::BadName(_) => "choose another name with `--name`",
        _ => "",
    };
    Failure::new(error.to_string(), help)
}

/// Why this machine cannot join, with the remedy.
fn explain(error: EnrolError) -> Failure {
    let help = match &error {
        EnrolError::Silent(address, _) => format!(
            "check that `transhume net up` runs there and that no firewall blocks TCP port {}",
            address.port()
        ),
        EnrolError::Stranger(..) => {
            "use a new token from `transhume net token` on that machine; the token may be from an old network"
                .into()
        }
        EnrolError::Refused(reason) => {
            let (what, help) = split_reason(reason);
            return api::Failure::new(what, help.unwrap_or_default()).into();
        }
    };
    Failure::new(error.to_string(), help)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> Settings {
        Settings {
            name: "a".into(),
            role: Role::First,
            listen: "192.0.2.1:7700".parse().unwrap(),
            device: "transhume0".into(),
            former_device: None,
            address: Some("10.88.0.1/24".into()),
            mtu: Some(1300),
            without: vec!["kernel".into()],
            metrics: Some("127.0.0.1:9464".parse().unwrap()),
        }
    }

    #[test]
    fn reads_settings_of_earlier_releases() {
        let (_directory, folder) = folder();
        folder.found(&settings()).unwrap();
        let noted = r#"{"name":"a","role":"first","listen":"192.0.2.1:7700","device":"transhume0","former_device":null,
            "address":"10.88.0.1/24"}"#;
        fs::write(folder.settings_file(), noted).unwrap();
        let expected = Settings { mtu: None, without: vec![], metrics: None, ..settings() };
        assert_eq!(folder.settings().unwrap(), Some(expected));
    }

    fn folder() -> (tempfile::TempDir, Folder) {
        let directory = tempfile::tempdir().unwrap();
        let folder = Folder::take(directory.path().join("net")).unwrap();
        (directory, folder)
    }

    #[test]
    fn settings_survive_reopening() {
        let (directory, folder) = folder();
        assert_eq!(folder.settings().unwrap(), None);
        folder.found(&settings()).unwrap();
        let other = private::lock::try_take(&directory.path().join("net"));
        assert!(other.unwrap().is_none(), "only one process may lock it");
        drop(folder);
        let folder = Folder::take(directory.path().join("net")).unwrap();
        assert_eq!(folder.settings().unwrap(), Some(settings()));
        assert!(folder.authority().is_ok());
    }

    #[test]
    fn remains_of_a_killed_process_are_no_network() {
        let (_directory, folder) = folder();
        // A process killed after it wrote some certificates, and one killed after it wrote the settings.
        private::directory(&folder.path.join("pki.new")).unwrap();
        pki::create_authority(&folder.path.join("pki.new")).unwrap();
        folder.note(&settings()).unwrap();
        assert_eq!(folder.settings().unwrap(), None);
        let other = Settings { name: "b".into(), ..settings() };
        folder.found(&other).unwrap();
        assert_eq!(folder.settings().unwrap(), Some(other));
    }

    #[test]
    fn join_key_stays_until_joined() {
        let (_directory, folder) = folder();
        let key = folder.join_key().unwrap();
        assert_eq!(folder.join_key().unwrap(), key);
        fs::write(folder.join_key_file(), "half of").unwrap();
        assert_ne!(folder.join_key().unwrap(), key);
    }

    #[test]
    fn removal_is_recorded_until_new_certificates() {
        let (directory, folder) = folder();
        folder.found(&settings()).unwrap();
        assert!(folder.removal().is_none());
        folder.note_removal("host `a` was removed\njoin again").unwrap();
        drop(folder);
        let folder = Folder::take(directory.path().join("net")).unwrap();
        let removal = folder.removal().unwrap().to_string();
        assert_eq!(removal, "transhume: host `a` was removed\n  join again");
        // Remains of a killed process.
        fs::create_dir(folder.path.join("pki.old")).unwrap();
        fs::write(folder.path.join("pki.old/a.pem"), "").unwrap();
        let before = fs::read(folder.pki().join("a.key")).unwrap();
        folder.found(&settings()).unwrap();
        assert!(folder.removal().is_none() && !folder.path.join("pki.old").exists());
        assert_ne!(fs::read(folder.pki().join("a.key")).unwrap(), before);
        assert_eq!(folder.settings().unwrap(), Some(settings()));
    }

    #[test]
    fn settings_that_cannot_be_read_names_the_remedy() {
        let (_directory, folder) = folder();
        folder.found(&settings()).unwrap();
        fs::write(folder.settings_file(), "{").unwrap();
        let failure = folder.settings().unwrap_err().to_string();
        assert!(failure.contains("settings.json") && failure.contains("`rm -r "), "{failure}");
    }
}
