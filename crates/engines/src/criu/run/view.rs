//! The mount namespace in which CRIU runs.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;

use crate::criu::rpc::Request;
use crate::linux::mounts;

/// What CRIU sees of file systems, which is what the instance sees that it dumps or restores.
pub enum View {
    /// What the node sees.
    OfTheNode,
    /// What the instance sees, in its mount namespace.
    OfTheInstance(File),
    /// What an instance sees that is yet to come.
    New,
}

impl View {
    /// That for a request, for an instance that may have file systems of its own.
    pub fn of(request: Request, has_own_root: bool) -> io::Result<Self> {
        match request {
            _ if has_own_root => Ok(Self::OfTheNode),
            Request::Dump { pid } => File::open(format!("/proc/{pid}/ns/mnt")).map(Self::OfTheInstance),
            Request::Restore { .. } => Ok(Self::New),
        }
    }

    /// Lets a forked process see it. It makes system calls only.
    pub fn enter(&self) -> io::Result<()> {
        match self {
            Self::OfTheNode => Ok(()),
            Self::OfTheInstance(namespace) => mounts::enter(namespace.as_fd()),
            Self::New => mounts::have_own(),
        }
    }
}
