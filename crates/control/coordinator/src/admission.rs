//! Admission: machines without a certificate get one in exchange for the secret of a join token.
//!
//! A client without a valid token secret costs one handshake and one hash: the coordinator verifies the secret before it parses the rest of the request.
//! [`members`](crate::members) stores the tokens.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
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
use tokio::sync::{Mutex, MutexGuard};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::core::{Cluster, Command, Feature, Owner};
use crate::failure;
use crate::members::{self, Members};
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
    pub async fn pause(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().await
    }

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
    async fn new_token(
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
        let number = cluster.run(NewToken(token)).await?;
        Ok((number, JoinToken { coordinator: self.listen, authority: self.authority, secret }))
    }

    /// Answers a join request at time `now`: a certificate, or the reason for the refusal.
    async fn admit(
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
        let _turn = self.pause().await;
        let checked = cluster.view().get::<Members>().check_secret(Secret(request.secret), now);
        let token = checked.map_err(|objection| self.refuse(objection))?;
        let applicant = Applicant::of(&request.signing_request).map_err(|error| self.explain(&error))?;
        let (host, key) = (applicant.host().clone(), applicant.key());
        let is_free = cluster.view().get::<Members>().is_free(&host, key).map_err(|_| {
            reason("this key belongs to a removed host", "join with a new key: use another state directory")
        })?;
        if self.enrolled().len() >= MAX_NODES {
            return Err(reason(
                &format!("the cluster is full: {MAX_NODES} machines have joined"),
                "remove a host that is not needed: `transhume host remove HOST`",
            ));
        }
        // It reads and writes files.
        let pki = self.pki.clone();
        let certified = spawn_blocking(move || pki::certify(&pki, &applicant, is_free)).await;
        let certified = certified.map_err(|error| reason(&error.to_string(), "try again"))?;
        let certificates = certified.map_err(|error| self.explain(&error))?;
        let noted = cluster.run(Joined { token, host: host.clone(), key }).await;
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

/// Machines without a certificate: how they are admitted, if they are, and which hosts have joined so.
#[derive(Default)]
pub struct Enrolled {
    admission: Option<Arc<Admission>>,
    hosts: BTreeSet<HostName>,
}

impl Feature for Enrolled {}

impl Enrolled {
    /// Lets machines join by tokens from now on.
    pub fn admit_by(&mut self, admission: Arc<Admission>) {
        self.hosts = admission.enrolled();
        self.admission = Some(admission);
    }

    /// How machines are admitted, if they are.
    pub fn admission(&self) -> Option<&Arc<Admission>> {
        self.admission.as_ref()
    }

    /// The hosts that have joined by a token.
    pub fn hosts(&self) -> impl Iterator<Item = &HostName> {
        self.hosts.iter()
    }

    /// Forgets that `host` has joined.
    pub fn forget(&mut self, host: &HostName) {
        self.hosts.remove(host);
    }
}

/// How machines are admitted.
///
/// # Errors
/// If they are not.
fn admission(cluster: &Cluster) -> Result<Arc<Admission>, Failure> {
    cluster.view().get::<Enrolled>().admission().cloned().ok_or_else(failure::no_tokens)
}

/// A token to be stored. The reply is its number.
struct NewToken(Token);

impl Command for NewToken {
    type Reply = Result<u64, Failure>;

    async fn run(self, owner: &mut Owner) -> Self::Reply {
        owner.view().check_whole()?;
        owner.ready().await?;
        let (number, changed) = owner.view().get::<Members>().added(self.0);
        members::note(owner, changed).await?;
        Ok(number)
    }
}

/// `host` has got a certificate for `key`, by the token with this number.
struct Joined {
    token: u64,
    host: HostName,
    key: KeyId,
}

impl Command for Joined {
    type Reply = Result<(), Failure>;

    async fn run(self, owner: &mut Owner) -> Self::Reply {
        let Self { token, host, key } = self;
        let (changed, is_heir) = owner.view().get::<Members>().joined(token, &host, key);
        members::note(owner, changed).await?;
        owner.edit(|state| state.get_mut::<Enrolled>().hosts.insert(host));
        if is_heir {
            members::tell(&owner.view());
        }
        Ok(())
    }
}

/// A token that is revoked, named by its number or its secret. The reply is the token.
struct Revoke(String);

impl Command for Revoke {
    type Reply = Result<api::Token, Failure>;

    async fn run(self, owner: &mut Owner) -> Self::Reply {
        let Self(token) = self;
        owner.view().check_whole()?;
        let number = owner.view().get::<Members>().find(&token).ok_or_else(|| failure::no_token(&token))?;
        let changed = owner.view().get::<Members>().revoked(number);
        members::note(owner, changed).await?;
        let tokens = owner.view().get::<Members>().tokens(SystemTime::now());
        tokens.into_iter().find(|token| token.id == number).ok_or_else(|| failure::no_token(&token))
    }
}

/// The format in which an earlier release stored a token.
#[derive(Deserialize)]
struct Before {
    hash: [u8; 32],
    good_until: u64,
}

/// Imports the tokens that an earlier release stored in `file`, then deletes the file.
pub async fn take_over(cluster: &Cluster, file: &Path) -> Result<(), Failure> {
    let Ok(bytes) = fs::read(file) else { return Ok(()) };
    let known: Vec<Before> = postcard::from_bytes(&bytes).unwrap_or_else(|error| {
        tracing::warn!(
            "cannot read {}: {error}; tokens from the earlier release are invalid",
            file.display()
        );
        Vec::new()
    });
    for Before { hash, good_until } in known {
        cluster.run(NewToken(Token::new(hash, None, good_until))).await?;
    }
    if let Err(error) = fs::remove_file(file) {
        tracing::warn!("cannot delete {}: {error}", file.display());
    }
    Ok(())
}

/// Creates a token.
pub async fn new_token(cluster: &Cluster, lifetime_s: u64) -> Result<Event, Failure> {
    let admission = admission(cluster)?;
    let (id, token) = admission.new_token(cluster, lifetime_s, SystemTime::now()).await?;
    Ok(Event::Token { id, token: token.to_string(), lifetime_s })
}

/// Lists the tokens.
pub fn tokens(cluster: &Cluster) -> Result<Event, Failure> {
    admission(cluster)?;
    Ok(Event::Tokens(cluster.view().get::<Members>().tokens(SystemTime::now())))
}

/// Revokes a token.
pub async fn revoke(cluster: &Cluster, token: String) -> Result<Event, Failure> {
    let admission = admission(cluster)?;
    let _nobody_joins = admission.pause().await;
    cluster.run(Revoke(token)).await.map(Event::TokenRevoked)
}

/// Serves a connection without a certificate. It accepts join requests only.
pub async fn serve(cluster: &Arc<Cluster>, mut stream: Stream) -> io::Result<()> {
    let from = stream.peer_address()?;
    let request = timeout(LIMIT, frame::receive_within(&mut stream, MAX_REQUEST)).await?;
    let request: enrol::Request = request.map_err(|error| {
        io::Error::other(format!("the client has no certificate and sent no join request: {error}"))
    })?;
    let admission = cluster.view().get::<Enrolled>().admission().cloned();
    let admission = admission.ok_or_else(|| {
        io::Error::other("the client has no certificate, and this coordinator has no join tokens")
    })?;
    let answer = match admission.admit(cluster, &request, SystemTime::now()).await {
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
mod tests;
