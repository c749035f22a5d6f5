//! Admission: machines without a certificate get one in exchange for the secret of a join token.
//!
//! A client without a valid token secret costs one handshake and one hash: the coordinator verifies the secret before it parses the rest of the request.
//! [`members`](crate::members) stores the tokens.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use api::{Event, Failure};
use moves::HostName;
use overlay::topology::MAX_NODES;
use rpc::enrol::{self, Answer, Certificates, LIMIT, MAX_REQUEST, VERSION};
use rpc::pki::{self, Applicant, CertifyError, PkiError};
use rpc::removed::KeyId;
use rpc::token::{Fingerprint, JoinToken, Secret};
use rpc::wire::reason;
use rpc::{Stream, frame};
use serde::Deserialize;
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

use crate::cluster::{Cluster, Inner};
use crate::failure;
use crate::tokens::{self, Objection, Token};

/// The longest lifetime of a token.
const MAX_LIFETIME: Duration = Duration::from_secs(366 * 24 * 60 * 60);

/// State of the admission of machines without a certificate.
pub struct Admission {
    listen: SocketAddr,
    pki: PathBuf,
    center: HostName,
    authority: Fingerprint,
    /// Serialises admissions; revoking a token and removing a host hold it too.
    turn: Mutex<()>,
}

impl Admission {
    /// Opens the authority in `pki`. The coordinator listens at `listen`.
    pub fn open(listen: SocketAddr, pki: PathBuf, center: HostName) -> Result<Self, PkiError> {
        let authority = pki::fingerprint(&pki::authority(&pki)?);
        let authority =
            authority.map_err(|error| PkiError::Unusable { path: pki.clone(), reason: error.to_string() })?;
        Ok(Self { listen, pki, center, authority, turn: Mutex::new(()) })
    }

    /// The center of the overlay's first topology.
    pub fn center(&self) -> &HostName {
        &self.center
    }

    /// Blocks admissions while the returned guard lives.
    pub fn pause(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The key in the certificate of `host`, if it has joined by a token.
    pub fn key_of(&self, host: &HostName) -> Option<KeyId> {
        pki::key_of(&self.pki, host)
    }

    /// Deletes the copy of the certificate of `host`, so that its name is free.
    pub fn forget(&self, host: &HostName) {
        // A copy that remains only takes disk space: the next host with this name overwrites it.
        if let Err(error) = pki::forget(&self.pki, host) {
            tracing::warn!("cannot delete the certificate copy of removed host {host}: {error}");
        }
    }

    /// The remedy that tells a user how to create a new token.
    pub fn way_to_a_token(&self) -> String {
        format!("create a new token with `transhume net token` on {}", self.listen.ip())
    }

    /// Creates and stores a token that is valid for `lifetime_s` seconds from `now`. Returns its number, too.
    fn new_token(
        &self,
        cluster: &Cluster,
        lifetime_s: u64,
        now: SystemTime,
    ) -> Result<(u64, JoinToken), Failure> {
        if lifetime_s > MAX_LIFETIME.as_secs() {
            let days = MAX_LIFETIME.as_secs() / (24 * 60 * 60);
            return Err(Failure::new(
                "the token lifetime is too long",
                format!("choose at most {days} days"),
            ));
        }
        let secret = Secret::random();
        let secret = secret.map_err(|error| {
            Failure::new(format!("cannot get random bytes from the kernel: {error}"), "try again")
        })?;
        let good_until = tokens::seconds(now).saturating_add(lifetime_s);
        let token = Token::new(tokens::hash(&secret), Some(now), good_until);
        let inner = &mut *cluster.lock();
        let number = inner.note_token(cluster, token)?;
        Ok((number, JoinToken { coordinator: self.listen, authority: self.authority, secret }))
    }

    /// Answers a join request at time `now`: a certificate, or the reason for the refusal.
    fn admit(
        &self,
        cluster: &Cluster,
        request: &enrol::Request,
        now: SystemTime,
    ) -> Result<(HostName, Certificates), String> {
        if request.version != VERSION {
            let what = "the coordinator runs another release than this machine";
            return Err(reason(what, "install the same release on all machines"));
        }
        // If two machines ask for the same name, one of them gets it.
        let _turn = self.pause();
        let checked = cluster.lock().members.check_secret(Secret(request.secret), now);
        let token = checked.map_err(|objection| self.refuse(objection))?;
        let applicant = Applicant::of(&request.signing_request).map_err(|error| self.explain(&error))?;
        let (host, key) = (applicant.host().clone(), applicant.key());
        let is_free = cluster.lock().members.is_free(&host, key).map_err(|_| {
            reason("this key belongs to a removed host", "join with a new key: use another state directory")
        })?;
        if self.enrolled().len() >= MAX_NODES {
            return Err(reason(
                &format!("the cluster is full: {MAX_NODES} machines have joined"),
                "remove a host that is not needed: `transhume host remove HOST`",
            ));
        }
        let certificates =
            pki::certify(&self.pki, &applicant, is_free).map_err(|error| self.explain(&error))?;
        let noted = cluster.lock().has_joined(cluster, token, &host, key);
        noted.map_err(|failure| reason(&failure.message, &failure.remedy))?;
        Ok((host, certificates))
    }

    fn refuse(&self, objection: Objection) -> String {
        let what = match objection {
            Objection::Unknown => "the coordinator does not know this token",
            Objection::Expired => "the token has expired",
            Objection::Revoked => "the token was revoked",
        };
        reason(what, &self.way_to_a_token())
    }

    fn explain(&self, error: &CertifyError) -> String {
        match error {
            CertifyError::Taken(host) => {
                let remedy = format!(
                    "choose another name with `--name`; if the old machine is gone, free its name with `transhume host remove {host}` on {}, then create a new token",
                    self.listen.ip()
                );
                reason(&error.to_string(), &remedy)
            }
            CertifyError::NoHost => reason(
                &error.to_string(),
                "choose another name with `--name`: lower-case letters, digits, `-` and `.`; `coordinator` is reserved",
            ),
            CertifyError::Pki(error) => {
                tracing::warn!("cannot issue a certificate: {error}");
                reason("the coordinator cannot issue certificates", "see the coordinator's log")
            }
        }
    }

    /// The hosts that have joined by a token.
    pub fn enrolled(&self) -> BTreeSet<HostName> {
        pki::certified(&self.pki)
    }
}

impl Inner {
    fn note_token(&mut self, cluster: &Cluster, token: Token) -> Result<u64, Failure> {
        self.check_whole()?;
        self.store.ready().map_err(|error| failure::of_store(&error))?;
        let noted = self.members.add_token(&self.store, token);
        noted.map_err(|error| cluster.not_written(self, error))
    }

    /// Records that `host` got a certificate for `key` by the token with this number.
    fn has_joined(
        &mut self,
        cluster: &Cluster,
        token: u64,
        host: &HostName,
        key: KeyId,
    ) -> Result<(), Failure> {
        self.check_whole()?;
        let noted = self.members.joined(&self.store, token, host, key);
        let is_heir = noted.map_err(|error| cluster.not_written(self, error))?;
        self.enrolled.insert(host.clone());
        if is_heir {
            self.tell_removed(cluster);
        }
        Ok(())
    }
}

/// The format in which an earlier release stored a token.
#[derive(Deserialize)]
struct Before {
    hash: [u8; 32],
    good_until: u64,
}

/// Imports the tokens that an earlier release stored in `file`, then deletes the file.
pub fn take_over(cluster: &Cluster, file: &Path) -> Result<(), Failure> {
    let Ok(bytes) = fs::read(file) else { return Ok(()) };
    let known: Vec<Before> = postcard::from_bytes(&bytes).unwrap_or_else(|error| {
        tracing::warn!(
            "cannot read {}: {error}; tokens from the earlier release are invalid",
            file.display()
        );
        Vec::new()
    });
    let inner = &mut *cluster.lock();
    for Before { hash, good_until } in known {
        inner.note_token(cluster, Token::new(hash, None, good_until))?;
    }
    if let Err(error) = fs::remove_file(file) {
        tracing::warn!("cannot delete {}: {error}", file.display());
    }
    Ok(())
}

/// Creates a token.
pub fn new_token(cluster: &Cluster, lifetime_s: u64) -> Result<Event, Failure> {
    let admission = cluster.admission.get().ok_or_else(failure::no_tokens)?;
    let (id, token) = admission.new_token(cluster, lifetime_s, SystemTime::now())?;
    Ok(Event::Token { id, token: token.to_string(), lifetime_s })
}

/// Lists the tokens.
pub fn tokens(cluster: &Cluster) -> Result<Event, Failure> {
    cluster.admission.get().ok_or_else(failure::no_tokens)?;
    Ok(Event::Tokens(cluster.lock().members.tokens(SystemTime::now())))
}

/// Revokes a token.
pub fn revoke(cluster: &Cluster, token: &str) -> Result<Event, Failure> {
    let admission = cluster.admission.get().ok_or_else(failure::no_tokens)?;
    let _nobody_joins = admission.pause();
    let inner = &mut *cluster.lock();
    inner.check_whole()?;
    let number = inner.members.find(token).ok_or_else(|| failure::no_token(token))?;
    let revoked = inner.members.revoke(&inner.store, number);
    revoked.map_err(|error| cluster.not_written(inner, error))?;
    let tokens = inner.members.tokens(SystemTime::now());
    let token =
        tokens.into_iter().find(|token| token.id == number).ok_or_else(|| failure::no_token(token))?;
    Ok(Event::TokenRevoked(token))
}

/// Serves a connection without a certificate. It accepts join requests only.
pub async fn serve(cluster: &Arc<Cluster>, mut stream: Stream) -> io::Result<()> {
    let from = stream.peer_address()?;
    let request = timeout(LIMIT, frame::receive_within(&mut stream, MAX_REQUEST)).await?;
    let request: enrol::Request = request.map_err(|error| {
        io::Error::other(format!("the client has no certificate and sent no join request: {error}"))
    })?;
    let cluster = cluster.clone();
    let answer = move || {
        let admission = cluster.admission.get().ok_or_else(|| {
            io::Error::other("the client has no certificate, and this coordinator has no join tokens")
        })?;
        Ok::<_, io::Error>(admission.admit(&cluster, &request, SystemTime::now()))
    };
    // Issuing a certificate reads and writes files.
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
    use crate::hosts;

    const DAY: u64 = 24 * 60 * 60;

    /// A coordinator that admits machines.
    struct World {
        directory: tempfile::TempDir,
        cluster: Arc<Cluster>,
    }

    impl World {
        fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            pki::create_authority(&directory.path().join("pki")).unwrap();
            let cluster = open(directory.path());
            Self { directory, cluster }
        }

        /// The same coordinator after a restart.
        fn again(self) -> Self {
            let Self { directory, cluster } = self;
            drop(cluster);
            let cluster = open(directory.path());
            Self { directory, cluster }
        }

        fn admission(&self) -> &Admission {
            self.cluster.admission.get().unwrap()
        }

        fn new_token(&self) -> JoinToken {
            self.admission().new_token(&self.cluster, DAY, now()).unwrap().1
        }

        fn admit_at(
            &self,
            request: &enrol::Request,
            now: SystemTime,
        ) -> Result<(HostName, Certificates), String> {
            self.admission().admit(&self.cluster, request, now)
        }

        fn admit(&self, request: &enrol::Request) -> Result<(HostName, Certificates), String> {
            self.admit_at(request, now())
        }
    }

    fn open(directory: &Path) -> Arc<Cluster> {
        let listen = "192.0.2.1:7700".parse().unwrap();
        let center = HostName::new("a").unwrap();
        let cluster = Cluster::open(&directory.join("store")).unwrap();
        cluster.admit_by(Admission::open(listen, directory.join("pki"), center).unwrap());
        cluster
    }

    fn request(secret: [u8; 16], key: &str, name: &str) -> enrol::Request {
        let signing_request = pki::signing_request(key, name).unwrap();
        enrol::Request { version: VERSION, secret, signing_request }
    }

    fn now() -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000)
    }

    #[tokio::test]
    async fn a_token_lets_in_until_it_expires_also_after_a_restart() {
        let world = World::new();
        let token = world.new_token();
        let key = pki::new_key().unwrap();
        let last = now() + Duration::from_secs(DAY - 1);
        let admit = |world: &World, name| {
            let (host, certificates) = world.admit_at(&request(token.secret.0, &key, name), last).unwrap();
            assert_eq!(host.as_str(), name);
            assert_eq!(pki::fingerprint(&certificates.authority).unwrap(), token.authority);
        };
        admit(&world, "b");
        let world = world.again();
        assert_eq!(hosts::list(&world.cluster.lock()).len(), 1, "it need not have been connected");
        admit(&world, "c");
        let late = now() + Duration::from_secs(DAY);
        let refused = world.admit_at(&request(token.secret.0, &key, "d"), late).unwrap_err();
        assert!(refused.contains("expired") && refused.contains("`transhume net token` on 192.0.2.1"));
        assert!(!world.directory.path().join("pki/d.pem").exists());
    }

    #[tokio::test]
    async fn a_token_that_was_revoked_lets_nobody_in_who_is_not_in() {
        let world = World::new();
        let (kept, token) = (world.new_token(), world.new_token());
        let key = pki::new_key().unwrap();
        let granted = world.admit(&request(token.secret.0, &key, "b")).unwrap();
        for text in ["2", &token.to_string()] {
            let Event::TokenRevoked(revoked) = revoke(&world.cluster, text).unwrap() else {
                panic!("{text}")
            };
            assert_eq!((revoked.id, revoked.state), (2, api::TokenState::Revoked));
            assert_eq!(revoked.hosts, ["b"]);
        }
        let refused = world.admit(&request(token.secret.0, &key, "c")).unwrap_err();
        assert!(refused.contains("was revoked") && refused.contains("`transhume net token` on 192.0.2.1"));
        assert!(!world.directory.path().join("pki/c.pem").exists());
        assert_eq!(world.admit(&request(kept.secret.0, &key, "b")).unwrap(), granted, "who has joined stays");
        for unknown in ["3", "b", &JoinToken { secret: Secret([1; 16]), ..token }.to_string()] {
            assert!(revoke(&world.cluster, unknown).unwrap_err().remedy.contains("token list"), "{unknown}");
        }
    }

    #[tokio::test]
    async fn a_wrong_secret_gets_nothing_whatever_else_is_sent() {
        let world = World::new();
        let mut secret = world.new_token().secret.0;
        secret[15] ^= 1;
        let refused = world.admit(&request(secret, &pki::new_key().unwrap(), "b")).unwrap_err();
        assert!(refused.contains("does not know this token"), "{refused}");
        let nonsense = enrol::Request { version: VERSION, secret, signing_request: vec![1, 2, 3] };
        assert_eq!(world.admit(&nonsense), Err(refused));
        assert!(!world.directory.path().join("pki/b.pem").exists());
    }

    #[tokio::test]
    async fn a_name_is_the_first_ones_who_may_ask_again() {
        let world = World::new();
        let secret = world.new_token().secret.0;
        let (first, second) = (pki::new_key().unwrap(), pki::new_key().unwrap());
        let granted = world.admit(&request(secret, &first, "b")).unwrap();
        assert_eq!(world.admit(&request(secret, &first, "b")), Ok(granted));
        let refused = world.admit(&request(secret, &second, "b")).unwrap_err();
        assert!(refused.contains("`b`") && refused.contains("--name"), "{refused}");
        for name in ["coordinator", "B"] {
            let refused = world.admit(&request(secret, &second, name)).unwrap_err();
            assert!(refused.contains("not for a host's certificate"), "{refused}");
        }
    }

    #[tokio::test]
    async fn tokens_are_kept_as_hashes() {
        let world = World::new();
        let token = world.new_token();
        let noted = fs::read(world.directory.path().join("store")).unwrap();
        let is_noted = |bytes: &[u8]| noted.windows(bytes.len()).any(|window| window == bytes);
        assert!(is_noted(&tokens::hash(&token.secret)) && !is_noted(&token.secret.0));
        let too_long = MAX_LIFETIME.as_secs() + 1;
        assert!(world.admission().new_token(&world.cluster, too_long, now()).is_err());
    }

    #[tokio::test]
    async fn tokens_that_a_release_before_has_made_are_good() {
        let world = World::new();
        let (secret, file) = ([7; 16], world.directory.path().join("tokens"));
        let before = vec![(tokens::hash(&Secret(secret)), tokens::seconds(now()) + DAY)];
        fs::write(&file, postcard::to_stdvec(&before).unwrap()).unwrap();
        take_over(&world.cluster, &file).unwrap();
        assert!(!file.exists());
        take_over(&world.cluster, &file).unwrap();
        let Event::Tokens(tokens) = tokens(&world.cluster).unwrap() else { panic!("it lists others") };
        assert_eq!(tokens.iter().map(|token| (token.id, token.made_ms)).collect::<Vec<_>>(), [(1, None)]);
        world.admit(&request(secret, &pki::new_key().unwrap(), "b")).unwrap();
        fs::write(&file, "nonsense").unwrap();
        take_over(&world.cluster, &file).unwrap();
    }

    #[tokio::test]
    async fn another_release_is_told_so() {
        let world = World::new();
        let mut request = request([0; 16], &pki::new_key().unwrap(), "b");
        request.version += 1;
        assert!(world.admit(&request).unwrap_err().contains("another release"));
    }
}
