use serde::{Deserialize, Serialize};

/// A join token. The secret itself is not stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Token {
    /// Its number; numbers only increase.
    pub id: u64,
    /// The time of creation, in milliseconds since 1970; unknown for tokens of an earlier release.
    pub made_ms: Option<u64>,
    /// The end of its lifetime, by the coordinator's clock.
    pub expires_ms: u64,
    /// Whether it is valid.
    pub state: TokenState,
    /// The hosts that have joined with it, in the order of names; their number is not limited.
    pub hosts: Vec<String>,
}

/// The state of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenState {
    /// It is valid.
    Good,
    /// Its lifetime is over.
    Expired,
    /// A user has revoked it, or the removal of a host that may know it has.
    Revoked,
}

/// The result of the removal of a host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostRemoved {
    /// The host.
    pub host: String,
    /// The tokens that were valid until now and are revoked, because the host may know them.
    pub revoked_tokens: Vec<u64>,
    /// The instances that were lost with it, in the order of names.
    pub lost_instances: Vec<String>,
    /// Hosts whose nodes have not confirmed the removal, in the order of names. An unreachable host accepts the removed host's
    /// certificate until it reconnects.
    pub untold: Vec<String>,
}
