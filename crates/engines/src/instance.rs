//! What an instance is made of.

use std::fmt;
use std::net::Ipv4Addr;
use std::path::PathBuf;

use fabric::NetworkKind;
use oci_image::Digest;
use serde::{Deserialize, Serialize};

/// What an instance is called: unique in its cluster, and fit to be a file name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct InstanceName(String);

impl InstanceName {
    /// The longest name, in bytes.
    pub const MAX: usize = 63;

    /// `None` unless `name` is 1 to [`Self::MAX`] lower-case letters, digits and hyphens, and
    /// starts with a letter.
    #[must_use]
    pub fn new(name: &str) -> Option<Self> {
        let starts = name.starts_with(|c: char| c.is_ascii_lowercase());
        let fits = name.len() <= Self::MAX;
        let plain = name.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-'));
        (starts && fits && plain).then(|| Self(name.to_owned()))
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for InstanceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Not an [`InstanceName`].
#[derive(Debug, thiserror::Error)]
#[error("`{0}` is no instance name: use 1 to 63 lower-case letters, digits and hyphens, a letter first")]
pub struct BadName(String);

impl TryFrom<String> for InstanceName {
    type Error = BadName;

    fn try_from(name: String) -> Result<Self, BadName> {
        Self::new(&name).ok_or(BadName(name))
    }
}

impl From<InstanceName> for String {
    fn from(name: InstanceName) -> Self {
        name.0
    }
}

/// Everything needed to start an instance, or to make a place for it at its destination.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstanceSpec {
    /// What it is called.
    pub name: InstanceName,
    /// The command and its arguments.
    pub command: Vec<String>,
    /// The command's whole environment, with what loads the drop-in library.
    pub environment: Vec<(String, String)>,
    /// The command's working directory.
    pub directory: PathBuf,
    /// The user as whom it runs.
    pub user: u32,
    /// The group as which it runs.
    pub group: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// Resource limits other than the node's own.
    pub limits: Vec<ResourceLimit>,
    /// Its network device.
    pub network: Network,
    /// What it has beside processes, if it is a container.
    #[serde(default)]
    pub container: Option<Container>,
    /// What its network device is plugged into. What was written before it was there is read as if it said the bridge.
    #[serde(default)]
    pub network_kind: NetworkKind,
    /// The image of which the container's root file system is made, if that is no directory of the host's. What
    /// was written before it was there is read as if there were none.
    #[serde(default)]
    pub image: Option<ContainerImage>,
    /// Whether the command has a standard input, which a session brings; else that is `/dev/null`. The last field: what was
    /// written before it was there is read as if it had none.
    #[serde(default)]
    pub stdin: bool,
}

/// A root file system of an instance's own, and what else an OCI runtime gives it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Container {
    /// The root file system: a directory that is on each host, the same on all, and that nobody changes. What the instance
    /// writes lies in a layer above it, which travels. Empty if there is an image.
    pub rootfs: PathBuf,
    /// The runtime's configuration: `config.json` of the OCI runtime specification, in which root, process and namespaces
    /// are replaced.
    pub config: String,
    /// Whether the drop-in libraries lie over those that the root file system has of their names.
    #[serde(default)]
    pub rdma: bool,
}

/// An image of a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerImage {
    /// Where each host has it, as [`oci_image::Source`] reads it.
    pub source: String,
    /// What its files are known by.
    pub root: Digest,
}

/// A resource limit, as `setrlimit` takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResourceLimit {
    /// `RLIMIT_*`.
    pub resource: u32,
    /// What holds now; `u64::MAX` is unlimited.
    pub soft: u64,
    /// How far the program may raise it.
    pub hard: u64,
}

/// An instance's network device: `eth0`, the same on each host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Network {
    /// `eth0`'s MAC, unique on its network: the end of a link at the host's bridge is named after its last four bytes.
    pub mac: [u8; 6],
    /// `eth0`'s address.
    pub address: Ipv4Addr,
    /// The address' prefix length.
    pub prefix: u8,
    /// `eth0`'s MTU, in bytes.
    pub mtu: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_fit_to_be_a_file_name() {
        assert!(InstanceName::new("job-7").is_some());
        for bad in ["", "..", "a/b", "-x", "7up", "Job", &"a".repeat(64)] {
            assert!(InstanceName::new(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn a_bad_name_from_a_peer_is_refused() {
        assert!(serde_json::from_str::<InstanceName>("\"../etc\"").is_err());
    }
}
