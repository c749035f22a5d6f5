//! Who is who in a fabric, and what an instance and its node say to each other.
//!
//! * [`identity`]: VIDs, processes, and how they appear as LID, GID and QPN.
//! * [`directory`]: what processes of a fabric tell each other of themselves.
//! * [`attach`]: the messages between a process of an instance and the node of its host.
//! * [`link`]: what nodes ask each other for when processes of two hosts want a link.
//! * [`session`]: further commands in an instance, and [`stream`], by which none of their bytes is lost.
//! * [`seqpacket`]: the socket that carries these messages, with descriptors beside them.
//! * [`device_file`]: what programs look for before they believe in a device.
//! * [`netns`]: the network namespaces in which these sockets are.
//! * [`network`]: what the network devices in them are plugged into.

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

pub use identity::{Epoch, FabricId, InstanceId, NoVid, ProcessId, Vid};
pub use network::NetworkKind;

/// What a library's userfaultfds are known by in `/proc/PID/fdinfo`. Each is open while the library turns pages into
/// shared ones, and closed before the process is checkpointed. The bits ask for what is needed
/// (`UFFD_FEATURE_WP_HUGETLBFS_SHMEM`, `UFFD_FEATURE_MOVE`) and for what does no harm (`UFFD_FEATURE_EXACT_ADDRESS`).
pub const PAGE_TURNER_FEATURES: u64 = 1 << 16 | 1 << 12 | 1 << 11;

/// The directory that a node locks while it dumps an instance, shared by all nodes on the machine
/// (`private::lock`). The end of the last lab removes it.
pub const DUMP_LOCK: &str = "/run/transhume/dump";

/// What the cgroups of a container are called that has its files in `folder`: so they are found again by whoever knows that.
#[must_use]
pub fn cgroup_name(folder: &std::path::Path) -> String {
    format!("transhume{}", folder.display().to_string().replace('/', "-"))
}
