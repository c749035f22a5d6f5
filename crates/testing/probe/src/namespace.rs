//! Sockets of another network namespace.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::thread;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Calls `make` on a thread that is in the network namespace of the file `namespace`
/// (`/run/netns/NAME`, `/proc/PID/ns/net`). A socket stays in the namespace it was made in.
///
/// # Errors
/// Those of opening the file, of `setns` (which needs root) and of `make`.
pub fn inside<T: Send>(namespace: &Path, make: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    let file = File::open(namespace)?;
    let entered = || {
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?;
        make()
    };
    thread::scope(|scope| scope.spawn(entered).join())
        .unwrap_or_else(|_panic| Err(io::Error::other("the thread in the namespace panicked")))
}
