//! Identities in a fabric, and the protocol between an instance and its node.
//!
//! * [`identity`]: VIDs, processes, and how they appear as LID, GID and QPN.
//! * [`directory`]: values that processes of a fabric publish for each other.
//! * [`attach`]: the messages between a process of an instance and the node of its host.
//! * [`link`]: the request of a node to another for a link between two processes.
//! * [`session`]: further commands in an instance; [`stream`]: a byte stream over messages that may be lost.
//! * [`traffic`]: counts of bytes and messages.
//! * [`seqpacket`]: the socket that carries these messages and file descriptors.
//! * [`device_file`]: the device file and sysfs entries that programs look for.
//! * [`netns`]: the network namespaces in which these sockets are.
//! * [`network`]: the networks that instances are plugged into.

pub mod attach;
pub mod device_file;
pub mod directory;
pub mod identity;
pub mod link;
pub mod netns;
pub mod network;
pub mod seqpacket;
pub mod session;
pub mod stream;
pub mod traffic;

pub use identity::{Epoch, FabricId, InstanceId, NoVid, ProcessId, Vid};
pub use network::NetworkKind;

/// The features that identify a userfaultfd of the RDMA library in `/proc/PID/fdinfo`. The library opens one while it converts
/// pages into shared ones, and closes it before the process is dumped. It needs two of the features
/// (`UFFD_FEATURE_WP_HUGETLBFS_SHMEM`, `UFFD_FEATURE_MOVE`); the third one (`UFFD_FEATURE_EXACT_ADDRESS`) has no effect on it.
pub const PAGE_TURNER_FEATURES: u64 = 1 << 16 | 1 << 12 | 1 << 11;

/// The directory that a node locks while it dumps an instance, shared by all nodes on the machine
/// (`private::lock`). The last lab to end removes it.
pub const DUMP_LOCK: &str = "/run/transhume/dump";

/// The name of the cgroups of a container whose files are in `folder`, by which a restarted node finds them.
#[must_use]
pub fn cgroup_name(folder: &std::path::Path) -> String {
    format!("transhume{}", folder.display().to_string().replace('/', "-"))
}
