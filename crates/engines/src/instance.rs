//! The specification of an instance.

use std::fmt;
use std::net::Ipv4Addr;
use std::path::PathBuf;

use fabric::NetworkKind;
use oci_image::Digest;
use serde::{Deserialize, Serialize};

/// An instance's name: unique in its cluster, and usable as a file name.
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
#[error("`{0}` is not an instance name: use 1 to 63 lower-case letters, digits and hyphens, a letter first")]
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

/// Everything needed to start an instance, or to prepare it at its destination.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstanceSpec {
    /// The instance's name.
    pub name: InstanceName,
    /// The command and its arguments.
    pub command: Vec<String>,
    /// The command's whole environment, including the variables that load the drop-in library.
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
    /// The container around its processes, if it has one.
    #[serde(default)]
    pub container: Option<Container>,
    /// The network that its device is plugged into. Records of versions without this field are read as the bridge.
    #[serde(default)]
    pub network_kind: NetworkKind,
    /// The container image that the root file system comes from, unless that is a directory of the host. Records of versions without this
    /// field are read as having none.
    #[serde(default)]
    pub image: Option<ContainerImage>,
    /// Whether the command has a standard input, fed by a session; otherwise it is `/dev/null`. The last field: records of versions without
    /// it are read as having none.
    #[serde(default)]
    pub stdin: bool,
}

/// An instance's own root file system, and the settings that an OCI runtime applies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Container {
    /// The root file system: a directory with the same contents on each host, which must not change. The instance writes to a layer above
    /// it, which travels. Empty if there is an image.
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
    /// Its source on each host, as [`oci_image::Source`] parses it.
    pub source: String,
    /// The digest of its files.
    pub root: Digest,
}

/// A resource limit, as `setrlimit` takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResourceLimit {
    /// `RLIMIT_*`.
    pub resource: u32,
    /// The limit in force; `u64::MAX` is unlimited.
    pub soft: u64,
    /// The highest value to which the program may raise it.
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
