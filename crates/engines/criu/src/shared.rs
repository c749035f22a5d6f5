//! The parts of this engine that do not depend on CRIU, and that the engine for virtual machines uses too.
//!
//! * [`start`]: starts [`init`](crate::init) with a command, in a network namespace and a PID namespace of its own.
//! * [`Link`], [`Bridge`]: the network device of an instance, and the host's bridge. [`netlink`]: the kernel's interface for both.
//! * [`Task`], [`TaskId`]: a process, identified by its PID and start time.
//! * [`cgroup`]: limits of processes, and counters of out-of-memory kills. [`Shortage`]: their result.
//! * [`FileSystems`]: the identity of a file among hosts.
//! * [`descriptor_limit`], [`memory_available`]: resources of the host.

pub use crate::criu::check::identity::FileSystems;
pub use crate::linux::cgroup;
pub use crate::linux::files::absent_is_fine;
pub use crate::linux::spawn::{descriptor_limit, without_real_time};
pub use crate::linux::task::{Task, TaskId, tree};
pub use crate::process::host::memory_available;
pub use crate::process::launch::start;
pub use crate::process::network::bridge::Bridge;
pub use crate::process::network::link::{Link, index_of};
pub use crate::process::network::netlink;
pub use crate::report::{Identity, Shortage};
