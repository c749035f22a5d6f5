use serde::{Deserialize, Serialize};

/// A token by which machines can join, or could. The token itself is kept nowhere.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Token {
    /// Its number: each has a higher one than those before.
    pub id: u64,
    /// When it was made, in milliseconds since 1970; not known of those that a former release has made.
    pub made_ms: Option<u64>,
    /// Until when it is good, by the coordinator's clock, if it is not revoked.
    pub expires_ms: u64,
    /// Whether it is good.
    pub state: TokenState,
    /// The hosts that have joined by it, in the order of names. Any number can.
    pub hosts: Vec<String>,
}

/// Whether machines can join by a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenState {
    /// They can.
    Good,
    /// Its time is over.
    Expired,
    /// A user has revoked it, or a host was removed that may know it.
    Revoked,
}

/// What was done to remove a host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostRemoved {
    /// The host.
    pub host: String,
    /// The tokens that were good until then, and which the host may know: by these nobody joins any more.
    pub revoked_tokens: Vec<u64>,
    /// The instances that are lost with it, in the order of names.
    pub lost_instances: Vec<String>,
    /// Hosts whose nodes have not said that they know of it, in the order of names. Those that are away believe the host's
    /// certificate until they are connected again.
    pub untold: Vec<String>,
}
