//! What the kernel tells and does, whatever engine asks: nothing here knows of CRIU, of containers or of a move.
//!
//! * [`task`], [`pending`], [`call`]: processes, the signals that wait for their threads, and their system calls;
//! * [`sockets`], [`orphans`]: sockets, and connections that no process has any more;
//! * [`mounts`], [`mountinfo`]: mount namespaces, and the mounts that a process sees;
//! * [`maps`]: the mappings of a process;
//! * [`files`]: files and file systems;
//! * [`helper`], [`spawn`]: programs that do a part of the work, and what they have of the node.

pub mod call;
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
