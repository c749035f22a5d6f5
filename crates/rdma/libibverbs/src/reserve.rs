//! A reserved socket for the next connection to a node.
//!
//! A program may use up its descriptors, and take each that becomes free. It can be moved nevertheless, and keeps its connections.

use std::io;
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, Ordering};

use fabric::seqpacket;

/// One that is not connected, or none.
#[derive(Debug)]
pub(crate) struct Reserve(AtomicI32);

const NONE: RawFd = -1;

impl Default for Reserve {
    fn default() -> Self {
        Self(AtomicI32::new(NONE))
    }
}

impl Reserve {
    /// The one that is there, or a new one.
    ///
    /// # Errors
    /// The errors of `socket`.
    pub(crate) fn take(&self) -> io::Result<OwnedFd> {
        self.kept().map_or_else(seqpacket::unconnected, Ok)
    }

    /// The one that is there.
    pub(crate) fn kept(&self) -> Option<OwnedFd> {
        let fd = self.0.swap(NONE, Ordering::Relaxed);
        // SAFETY: the taker of the number owns it.
        (fd != NONE).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Keeps `socket`, which is not connected.
    pub(crate) fn put(&self, socket: OwnedFd) {
        let before = self.0.swap(socket.into_raw_fd(), Ordering::Relaxed);
        // SAFETY: as in `kept`.
        drop((before != NONE).then(|| unsafe { OwnedFd::from_raw_fd(before) }));
    }

    /// Makes one, if none is there and the process may have one more.
    pub(crate) fn fill(&self) {
        if self.0.load(Ordering::Relaxed) == NONE
            && let Ok(socket) = seqpacket::unconnected()
        {
            self.put(socket);
        }
    }
}

impl Drop for Reserve {
    fn drop(&mut self) {
        drop(self.kept());
    }
}
