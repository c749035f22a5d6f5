use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// The number of a move, unique in the cluster; numbers only increase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct MoveId(pub u64);

impl fmt::Display for MoveId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "move {}", self.0)
    }
}

/// The name of a host, unique in the cluster: 1 to 63 letters, digits, `-`, `_` or `.`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HostName(Arc<str>);

impl HostName {
    /// Validates a host name.
    ///
    /// # Errors
    /// If `name` is not a valid host name.
    pub fn new(name: &str) -> Result<Self, InvalidHostName> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let valid = (1..=63).contains(&name.len()) && name.bytes().all(allowed);
        if valid { Ok(Self(name.into())) } else { Err(InvalidHostName { length: name.len() }) }
    }

    /// The name itself.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for HostName {
    type Error = InvalidHostName;

    fn try_from(name: String) -> Result<Self, InvalidHostName> {
        Self::new(&name)
    }
}

impl From<HostName> for String {
    fn from(host: HostName) -> Self {
        host.as_str().into()
    }
}

/// An end of a move.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Side {
    /// A host, where it runs.
    Host(HostName),
    /// The directory of a checkpoint's images, on the host at the other end: the instance is saved there and continues to run, or
    /// is restored from there.
    Images(String),
}

impl Side {
    /// The host, if it is one.
    #[must_use]
    pub fn host(&self) -> Option<&HostName> {
        match self {
            Self::Host(host) => Some(host),
            Self::Images(_) => None,
        }
    }

    /// Whether it is `host`.
    #[must_use]
    pub fn is(&self, host: &HostName) -> bool {
        self.host() == Some(host)
    }
}

impl From<HostName> for Side {
    fn from(host: HostName) -> Self {
        Self::Host(host)
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host(host) => host.fmt(f),
            Self::Images(directory) => f.write_str(directory),
        }
    }
}

/// An invalid host name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a valid host name ({length} bytes): use 1 to 63 letters, digits, '-', '_' or '.'")]
pub struct InvalidHostName {
    length: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_names_name_hosts() {
        assert!(HostName::new("h1.rack-2").is_ok());
        assert!(HostName::new("").is_err());
        assert!(HostName::new("../h1").is_err());
        assert!(HostName::new(&"h".repeat(64)).is_err());
    }
}
