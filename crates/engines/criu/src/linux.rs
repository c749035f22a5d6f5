//! Interfaces of the kernel. Nothing here depends on CRIU, containers or moves.
//!
//! * [`task`], [`pending`], [`call`]: processes, pending signals and system calls of their threads;
//! * [`sockets`], [`orphans`]: socket options, and closed connections with unsent data;
//! * [`mounts`], [`mountinfo`]: mount namespaces, and the mounts of a process;
//! * [`cgroup`]: cgroups of both versions: limits, members, and counters of out-of-memory kills;
//! * [`maps`]: the mappings of a process;
//! * [`files`]: files and file systems;
//! * [`helper`], [`spawn`]: helper programs, and the state of the node that a child does not inherit.

pub mod call;
pub mod cgroup;
pub mod files;
pub mod helper;
pub mod maps;
pub mod mountinfo;
pub mod mounts;
pub mod orphans;
pub mod pending;
pub mod sockets;
pub mod spawn;
pub mod task;
