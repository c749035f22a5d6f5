//! Join tokens. Only a hash of each token's secret is stored.

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use api::TokenState;
use rpc::token::Secret;
use serde::{Deserialize, Serialize};

/// The limit of remembered tokens; the oldest are dropped first. Expired tokens are kept, to distinguish them from unknown ones.
pub const MAX_TOKENS: usize = 64;

/// A stored token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Token {
    hash: [u8; 32],
    /// In seconds since 1970.
    made: Option<u64>,
    good_until: u64,
    is_revoked: bool,
    /// Hosts that have joined by it.
    hosts: BTreeSet<String>,
}

/// Why a token's secret is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Objection {
    Unknown,
    Expired,
    Revoked,
}

impl Token {
    /// A token whose secret has this hash, valid from `made` on.
    pub fn new(hash: [u8; 32], made: Option<SystemTime>, good_until: u64) -> Self {
        Self { hash, made: made.map(seconds), good_until, is_revoked: false, hosts: BTreeSet::new() }
    }

    fn state(&self, now: SystemTime) -> TokenState {
        match self.is_revoked {
            true => TokenState::Revoked,
            false if self.good_until <= seconds(now) => TokenState::Expired,
            false => TokenState::Good,
        }
    }

    /// A revoked copy of the token.
    #[must_use]
    pub fn revoked(&self) -> Self {
        Self { is_revoked: true, ..self.clone() }
    }

    /// A copy of the token that lists `host` as joined.
    #[must_use]
    pub fn used_by(&self, host: &str) -> Self {
        let mut used = self.clone();
        used.hosts.insert(host.to_owned());
        used
    }

    /// The token with this number, as users see it.
    pub fn describe(&self, id: u64, now: SystemTime) -> api::Token {
        let in_ms = |seconds: u64| seconds.saturating_mul(1000);
        api::Token {
            id,
            made_ms: self.made.map(in_ms),
            expires_ms: in_ms(self.good_until),
            state: self.state(now),
            hosts: self.hosts.iter().cloned().collect(),
        }
    }
}

/// The hash of a secret.
pub fn hash(secret: &Secret) -> [u8; 32] {
    *blake3::hash(&secret.0).as_bytes()
}

/// The number of the token with this hash. All hashes are compared in full, so the duration does not depend on the hash.
pub fn find(tokens: &BTreeMap<u64, Token>, hash: [u8; 32]) -> Option<u64> {
    let asked = blake3::Hash::from_bytes(hash);
    let same = tokens.iter().filter(|(_, known)| asked == blake3::Hash::from_bytes(known.hash));
    same.fold(None, |_, (number, _)| Some(*number))
}

/// The number of the token with this secret, if it is valid at `now`.
pub fn check(tokens: &BTreeMap<u64, Token>, secret: Secret, now: SystemTime) -> Result<u64, Objection> {
    let number = find(tokens, hash(&secret)).ok_or(Objection::Unknown)?;
    match tokens[&number].state(now) {
        TokenState::Good => Ok(number),
        TokenState::Expired => Err(Objection::Expired),
        TokenState::Revoked => Err(Objection::Revoked),
    }
}

/// The tokens that are valid at `now`.
pub fn good(tokens: &BTreeMap<u64, Token>, now: SystemTime) -> impl Iterator<Item = (u64, &Token)> {
    let good = tokens.iter().filter(move |(_, token)| token.state(now) == TokenState::Good);
    good.map(|(number, token)| (*number, token))
}

pub fn seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
