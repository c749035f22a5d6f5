//! Machines that have no certificate yet, and get one for the secret of a join token.
//!
//! Of a token only a hash of its secret is kept, with the time until which it is good. Whoever has no secret of a token costs
//! a handshake and a hash: what else he sends is looked at only after that.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use api::Failure;
use moves::HostName;
use overlay::topology::MAX_NODES;
use rpc::enrol::{self, Answer, Certificates, LIMIT, MAX_REQUEST, VERSION};
use rpc::pki::{self, CertifyError, PkiError};
use rpc::token::{Fingerprint, JoinToken, Secret};
use rpc::wire::reason;
use rpc::{Stream, frame};
use serde::{Deserialize, Serialize};
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

use crate::cluster::Cluster;

/// The most tokens that are remembered; the oldest go first. Those that have expired are told from those that never were.
const MAX_TOKENS: usize = 64;

/// The longest that a token may be good.
const MAX_LIFETIME: Duration = Duration::from_secs(366 * 24 * 60 * 60);

/// What machines without a certificate are let in by.
pub struct Admission {
    listen: SocketAddr,
    pki: PathBuf,
    file: PathBuf,
    center: HostName,
    authority: Fingerprint,
    /// The latest last.
    tokens: Mutex<Vec<Known>>,
}

/// What is known of a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Known {
    hash: [u8; 32],
    /// In seconds since 1970.
    good_until: u64,
}

impl Admission {
    /// With the tokens in `file`, and the authority in `pki`. The coordinator listens at `listen`.
    pub fn open(listen: SocketAddr, pki: PathBuf, file: PathBuf, center: HostName) -> Result<Self, PkiError> {
        let authority = pki::fingerprint(&pki::authority(&pki)?);
        let authority =
            authority.map_err(|error| PkiError::Unusable { path: pki.clone(), reason: error.to_string() })?;
        let read = fs::read(&file).and_then(|bytes| postcard::from_bytes(&bytes).map_err(io::Error::other));
        let tokens = read.unwrap_or_else(|error| {
            if error.kind() != io::ErrorKind::NotFound {
                tracing::warn!("{}: {error}; no token that was made before is good", file.display());
            }
            Vec::new()
        });
        Ok(Self { listen, pki, file, center, authority, tokens: Mutex::new(tokens) })
    }

    /// The host around which the overlay is laid out at first.
    pub fn center(&self) -> &HostName {
        &self.center
    }

    /// A token that is good for `lifetime_s` seconds from `now` on. It is noted when this returns.
    pub fn new_token(&self, lifetime_s: u64, now: SystemTime) -> Result<JoinToken, Failure> {
        if lifetime_s > MAX_LIFETIME.as_secs() {
            let days = MAX_LIFETIME.as_secs() / (24 * 60 * 60);
            return Err(Failure::new("that is too long for a token", format!("{days} days are the most")));
        }
        let secret = Secret::random();
        let secret = secret.map_err(|error| Failure::new(format!("random numbers: {error}"), ""))?;
        let mut tokens = self.lock();
        let mut changed = tokens.clone();
        changed.drain(..(changed.len() + 1).saturating_sub(MAX_TOKENS));
        let good_until = seconds(now).saturating_add(lifetime_s);
        changed.push(Known { hash: *blake3::hash(&secret.0).as_bytes(), good_until });
        self.note(&changed).map_err(|error| {
            Failure::new(format!("{}: {error}", self.file.display()), "make room, and try again")
        })?;
        *tokens = changed;
        Ok(JoinToken { coordinator: self.listen, authority: self.authority, secret })
    }

    fn note(&self, tokens: &[Known]) -> io::Result<()> {
        let bytes = postcard::to_stdvec(tokens).map_err(io::Error::other)?;
        private::replace_durably(&self.file, &bytes)
    }

    /// What a machine gets that asks at `now`, or why it gets nothing.
    fn admit(&self, request: &enrol::Request, now: SystemTime) -> Result<(HostName, Certificates), String> {
        if request.version != VERSION {
            let what = "the coordinator is of another release than this machine";
            return Err(reason(what, "install the same release on all machines"));
        }
        // One after the other: of two that want the same name one gets it.
        let tokens = self.lock();
        let new_one = format!("`transhume net token` on {} prints a new one", self.listen.ip());
        match good_until(&tokens, &request.secret) {
            None => return Err(reason("the coordinator does not know this token", &new_one)),
            Some(until) if until <= seconds(now) => {
                return Err(reason("the token has expired", &new_one));
            }
            Some(_) => {}
        }
        if self.hosts() >= MAX_NODES {
            return Err(reason(&format!("{MAX_NODES} machines have joined, and no more can"), ""));
        }
        pki::certify(&self.pki, &request.signing_request).map_err(|error| match &error {
            CertifyError::Taken(host) => {
                let (copy, here) = (self.pki.join(format!("{host}.pem")), self.listen.ip());
                let way_out = format!(
                    "choose another name with `--name`, or free this one, if that machine is no more: `rm {}` on {here}",
                    copy.display()
                );
                reason(&error.to_string(), &way_out)
            }
            CertifyError::NoHost => reason(
                &error.to_string(),
                "choose another name with `--name`: of small letters, digits, `-` and `.`, and not `coordinator`",
            ),
            CertifyError::Pki(error) => {
                tracing::warn!("no certificate is issued: {error}");
                reason("the coordinator cannot issue certificates", "its log says why")
            }
        })
    }

    /// How many have certificates.
    fn hosts(&self) -> usize {
        let entries = fs::read_dir(&self.pki).into_iter().flatten().flatten();
        entries.filter(|entry| entry.path().extension().is_some_and(|kind| kind == "pem")).count()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Known>> {
        self.tokens.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Until when a secret is good, if there is a token with it. How long this takes does not depend on the secret: hashes are
/// compared as a whole, all of them.
fn good_until(tokens: &[Known], secret: &[u8]) -> Option<u64> {
    let asked = blake3::hash(secret);
    let same = tokens.iter().filter(|known| asked == blake3::Hash::from_bytes(known.hash));
    same.fold(None, |_, known| Some(known.good_until))
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Lets somebody without a certificate ask for one. Nothing else is listened to.
pub async fn serve(cluster: &Arc<Cluster>, mut stream: Stream) -> io::Result<()> {
    let from = stream.peer_address()?;
    let request = timeout(LIMIT, frame::receive_within(&mut stream, MAX_REQUEST)).await?;
    let request: enrol::Request = request
        .map_err(|error| io::Error::other(format!("it has no certificate and asks for none: {error}")))?;
    let cluster = cluster.clone();
    let answer = move || {
        let admission = cluster.admission.get().ok_or_else(|| io::Error::other("it has no certificate"))?;
        Ok::<_, io::Error>(admission.admit(&request, SystemTime::now()))
    };
    // It reads and writes files.
    let answer = match tokio::task::spawn_blocking(answer).await.map_err(io::Error::other)?? {
        Ok((host, certificates)) => {
            tracing::info!("{from} has joined as {host}");
            Answer::Granted(certificates)
        }
        Err(reason) => Answer::Refused { reason },
    };
    let told = async {
        frame::send(&mut stream, &answer).await?;
        stream.shutdown().await
    };
    timeout(LIMIT, told).await??;
    match answer {
        Answer::Granted(_) => Ok(()),
        Answer::Refused { reason } => Err(io::Error::other(rpc::wire::split_reason(&reason).0.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const DAY: u64 = 24 * 60 * 60;

    fn open(directory: &Path) -> Admission {
        let listen = "192.0.2.1:7700".parse().unwrap();
        let center = HostName::new("a").unwrap();
        Admission::open(listen, directory.join("pki"), directory.join("tokens"), center).unwrap()
    }

    fn admission() -> (tempfile::TempDir, Admission) {
        let directory = tempfile::tempdir().unwrap();
        pki::create_authority(&directory.path().join("pki")).unwrap();
        let admission = open(directory.path());
        (directory, admission)
    }

    fn request(secret: [u8; 16], key: &str, name: &str) -> enrol::Request {
        let signing_request = pki::signing_request(key, name).unwrap();
        enrol::Request { version: VERSION, secret, signing_request }
    }

    fn now() -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000)
    }

    #[test]
    fn a_token_lets_in_until_it_expires_also_after_a_restart() {
        let (directory, admission) = admission();
        let token = admission.new_token(DAY, now()).unwrap();
        let key = pki::new_key().unwrap();
        let again = open(directory.path());
        for (admission, name) in [(&admission, "b"), (&again, "c")] {
            let last = now() + Duration::from_secs(DAY - 1);
            let (host, certificates) = admission.admit(&request(token.secret.0, &key, name), last).unwrap();
            assert_eq!(host.as_str(), name);
            assert_eq!(pki::fingerprint(&certificates.authority).unwrap(), token.authority);
        }
        let late = now() + Duration::from_secs(DAY);
        let refused = admission.admit(&request(token.secret.0, &key, "d"), late).unwrap_err();
        assert!(refused.contains("expired") && refused.contains("`transhume net token` on 192.0.2.1"));
        assert!(!directory.path().join("pki/d.pem").exists());
    }

    #[test]
    fn a_wrong_secret_gets_nothing_whatever_else_is_sent() {
        let (directory, admission) = admission();
        let mut secret = admission.new_token(DAY, now()).unwrap().secret.0;
        secret[15] ^= 1;
        let refused = admission.admit(&request(secret, &pki::new_key().unwrap(), "b"), now()).unwrap_err();
        assert!(refused.contains("does not know this token"), "{refused}");
        let nonsense = enrol::Request { version: VERSION, secret, signing_request: vec![1, 2, 3] };
        assert_eq!(admission.admit(&nonsense, now()), Err(refused));
        assert!(!directory.path().join("pki/b.pem").exists());
    }

    #[test]
    fn a_name_is_the_first_ones_who_may_ask_again() {
        let (_directory, admission) = admission();
        let secret = admission.new_token(DAY, now()).unwrap().secret.0;
        let (first, second) = (pki::new_key().unwrap(), pki::new_key().unwrap());
        let granted = admission.admit(&request(secret, &first, "b"), now()).unwrap();
        assert_eq!(admission.admit(&request(secret, &first, "b"), now()), Ok(granted));
        let refused = admission.admit(&request(secret, &second, "b"), now()).unwrap_err();
        assert!(refused.contains("`b`") && refused.contains("--name"), "{refused}");
        for name in ["coordinator", "B"] {
            let refused = admission.admit(&request(secret, &second, name), now()).unwrap_err();
            assert!(refused.contains("no host's certificate"), "{refused}");
        }
    }

    #[test]
    fn tokens_are_kept_as_hashes_and_so_many_only() {
        let (directory, admission) = admission();
        let tokens: Vec<_> = (0..MAX_TOKENS + 1).map(|_| admission.new_token(DAY, now()).unwrap()).collect();
        let noted = fs::read(directory.path().join("tokens")).unwrap();
        let is_noted = |secret: &[u8]| noted.windows(16).any(|window| window == secret);
        assert!(tokens.iter().all(|token| !is_noted(&token.secret.0)));
        let key = pki::new_key().unwrap();
        let admit = |token: &JoinToken| admission.admit(&request(token.secret.0, &key, "b"), now());
        assert!(admit(&tokens[0]).unwrap_err().contains("does not know this token"));
        assert!(admit(&tokens[1]).is_ok() && admit(&tokens[MAX_TOKENS]).is_ok());
        assert!(admission.new_token(MAX_LIFETIME.as_secs() + 1, now()).is_err());
    }

    #[test]
    fn another_release_is_told_so() {
        let (_directory, admission) = admission();
        let mut request = request([0; 16], &pki::new_key().unwrap(), "b");
        request.version += 1;
        assert!(admission.admit(&request, now()).unwrap_err().contains("another release"));
    }
}
