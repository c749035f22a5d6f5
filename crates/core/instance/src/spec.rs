//! The specification of an instance.

use std::fmt;
use std::net::Ipv4Addr;
use std::path::PathBuf;

use fabric::NetworkKind;
use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::seed::Seed;

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
    /// Its network device.
    pub network: Network,
    /// The network that its device is plugged into.
    pub network_kind: NetworkKind,
    /// Its workload.
    pub workload: Workload,
}

impl InstanceSpec {
    /// The program of a process instance or a container.
    #[must_use]
    pub fn program(&self) -> Option<&Program> {
        match &self.workload {
            Workload::Process(program) | Workload::Container(Container { program, .. }) => Some(program),
            Workload::Vm(_) => None,
        }
    }

    /// The container, if it is one.
    #[must_use]
    pub fn container(&self) -> Option<&Container> {
        match &self.workload {
            Workload::Container(container) => Some(container),
            Workload::Process(_) | Workload::Vm(_) => None,
        }
    }
}

/// The process tree, container or virtual machine that an instance runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Workload {
    /// A tree of processes that shares its host's files.
    Process(Program),
    /// A tree of processes with its own root file system.
    Container(Container),
    /// A virtual machine.
    Vm(VmSpec),
}

impl Workload {
    /// The kind of this workload.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Self::Process(_) => Kind::Process,
            Self::Container(_) => Kind::Container,
            Self::Vm(_) => Kind::Vm,
        }
    }
}

/// The kinds of workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Kind {
    /// See [`Workload::Process`].
    Process,
    /// See [`Workload::Container`].
    Container,
    /// See [`Workload::Vm`].
    Vm,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Process => "process",
            Self::Container => "container",
            Self::Vm => "virtual machine",
        })
    }
}

/// The command of a process instance or a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
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
    /// Whether the command has a standard input, fed by a session; otherwise it is `/dev/null`.
    pub stdin: bool,
}

impl Program {
    /// `command` with an empty environment, run by root in the root directory.
    pub fn new<S: Into<String>>(command: impl IntoIterator<Item = S>) -> Self {
        Self {
            command: command.into_iter().map(Into::into).collect(),
            environment: Vec::new(),
            directory: "/".into(),
            user: 0,
            group: 0,
            groups: Vec::new(),
            limits: Vec::new(),
            stdin: false,
        }
    }
}

/// A program with its own root file system, and the settings that an OCI runtime applies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Container {
    /// The program that runs in it.
    pub program: Program,
    /// The root file system, which stays unchanged. The instance writes to a layer above it, which travels.
    pub root: Root,
    /// The runtime's configuration: `config.json` of the OCI runtime specification, in which root, process and namespaces
    /// are replaced.
    pub config: String,
    /// Whether the drop-in libraries hide the libraries of these names in the root file system.
    pub rdma: bool,
}

impl Container {
    /// The image that its root file system comes from, unless that is a directory of the host.
    #[must_use]
    pub fn image(&self) -> Option<&ContainerImage> {
        match &self.root {
            Root::Image(image) => Some(image),
            Root::Directory(_) => None,
        }
    }
}

/// The root file system of a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Root {
    /// A directory with the same contents on each host, which must not change.
    Directory(PathBuf),
    /// The files of an image.
    Image(ContainerImage),
}

/// An image of a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerImage {
    /// Its source on each host: the directory and tag of an image layout, or an image of podman.
    pub source: String,
    /// The digest of its files.
    pub root: Digest,
}

/// A virtual machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmSpec {
    /// Its processors.
    pub cpus: u32,
    /// Its memory, in bytes.
    pub memory: u64,
    /// Its machine type, such as `pc-q35-7.2`; the default is that of the first host's emulator.
    pub machine: Option<String>,
    /// Its CPU model, such as `Nehalem`; the default is one that every emulator has.
    pub cpu_model: Option<String>,
    /// How its processors are executed; the default is KVM where the first host has it.
    pub accelerator: Option<Accelerator>,
    /// The kernel that it boots; without a kernel it boots the first disk.
    pub boot: Option<Boot>,
    /// Its disks, in order.
    pub disks: Vec<Disk>,
    /// Whether it has a display, which its host offers by VNC.
    pub vnc: bool,
    /// Its seed disk, the last one.
    pub seed: Option<Seed>,
}

/// How the processors of a virtual machine are executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Accelerator {
    /// By the host's processors.
    Kvm,
    /// By translation of their instructions.
    Tcg,
}

/// A kernel that a virtual machine boots without a boot loader (direct kernel boot).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Boot {
    /// The kernel's file, the same on each host: a machine that reboots loads it again.
    pub kernel: PathBuf,
    /// The file of its initial RAM disk, the same on each host.
    pub initrd: Option<PathBuf>,
    /// Its arguments, besides those for console and network.
    pub append: String,
}

/// A disk of a virtual machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disk {
    /// Its file, at the same path on each host.
    pub path: PathBuf,
    /// Whether all hosts share the file. Otherwise its contents travel.
    pub is_shared: bool,
    /// Its format, if the user states it.
    #[serde(default)]
    pub format: Option<DiskFormat>,
}

/// The format of a disk's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DiskFormat {
    /// The disk's blocks as they are.
    Raw,
    /// QEMU's own format.
    Qcow2,
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
    fn a_name_is_usable_as_a_file_name() {
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
