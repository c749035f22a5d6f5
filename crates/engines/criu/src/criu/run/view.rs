//! The mount namespace in which CRIU runs.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;

use crate::criu::rpc::Request;
use crate::linux::mounts;

/// The mount namespace of CRIU: that of the instance which CRIU dumps or restores.
pub enum View {
    /// The node's own.
    OfTheNode,
    /// The instance's own.
    OfTheInstance(File),
    /// A new one, for an instance that will be restored.
    New,
}

impl View {
    /// The view for a request, for an instance that may have file systems of its own.
    pub fn of(request: Request, has_own_root: bool) -> io::Result<Self> {
        match request {
            _ if has_own_root => Ok(Self::OfTheNode),
            Request::Dump { pid } => File::open(format!("/proc/{pid}/ns/mnt")).map(Self::OfTheInstance),
            Request::Restore { .. } => Ok(Self::New),
        }
    }

    /// Moves a forked process into it. Makes system calls only.
    pub fn enter(&self) -> io::Result<()> {
        match self {
            Self::OfTheNode => Ok(()),
            Self::OfTheInstance(namespace) => mounts::enter(namespace.as_fd()),
            Self::New => mounts::have_own(),
        }
    }
}
