//! The transport of a link: a reliable stream of bytes in both directions.
//!
//! * `tcp`: a connected socket, between hosts.
//! * `shm`: a ring in shared memory for each direction, on one host or within one process.
//! * `ring`: such a ring. * `gate`: revokes direct mappings. * `carrier`: the stream that a link holds.

mod carrier;
mod gate;
mod ring;
mod shm;
mod tcp;

use std::any::Any;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};

use libc::iovec;

pub use gate::Gate;
pub use shm::{Shm, create_shm_pair, shm_stream};
pub use tcp::tcp_stream;

pub(crate) use carrier::Carrier;
pub(crate) use ring::Front;
pub(crate) use shm::loopback;

/// A descriptor to sleep on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waitable {
    /// Owned by the device: never close it, and stop using it once `waitables_version` changes.
    pub fd: RawFd,
    /// Wake when it can be read.
    pub readable: bool,
    /// Wake when it can be written. That the other end is gone wakes in any case.
    pub writable: bool,
}

/// The readiness that a link waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interest {
    /// Bytes that arrive.
    pub reads: bool,
    /// Room for more bytes.
    pub writes: bool,
}

/// A reliable, non-blocking stream.
///
/// # Safety
/// An implementation touches only the memory that the vectors name, and keeps no pointer to it.
pub unsafe trait Stream: Any + Send {
    /// Sends a prefix of `from`, and returns the number of bytes.
    ///
    /// # Errors
    /// `WouldBlock` when there is no room; anything else ends the link.
    ///
    /// # Safety
    /// The vectors name readable memory.
    unsafe fn write(&mut self, from: &[iovec]) -> io::Result<usize>;

    /// Receives available bytes, at most as many as `into` has room for. `Ok(0)`: the peer has closed.
    ///
    /// # Errors
    /// `WouldBlock` when nothing is there; anything else ends the link.
    ///
    /// # Safety
    /// The vectors name writable memory that no Rust reference covers.
    unsafe fn read(&mut self, into: &[iovec]) -> io::Result<usize>;

    /// True if every write is a call of the system, so that one should carry much.
    fn gathers(&self) -> bool {
        false
    }

    /// True if surely nothing is there to read. Cheap; meant for spinning.
    fn is_quiet(&self) -> bool {
        false
    }

    /// False if the peer has ended, and left nothing that one is interested in. Called now and then, not when spinning.
    fn is_alive(&self, interest: Interest) -> bool {
        let _ = interest;
        true
    }

    /// The descriptors to sleep on, if the stream supports that.
    fn waitables(&self, interest: Interest, add: &mut dyn FnMut(Waitable)) {
        let _ = (interest, add);
    }

    /// All descriptors that reach the peer: it may rely on the end of a resource with its descriptor.
    fn descriptors(&self, add: &mut dyn FnMut(RawFd)) {
        let _ = add;
    }

    /// Announces that no thread polls from now on. False if there is work already.
    fn prepare_to_sleep(&mut self, interest: Interest) -> bool {
        let _ = interest;
        true
    }

    /// Takes the announcement back.
    fn awake(&mut self) {}

    /// Takes in all that woke us, whether anything is there to read or not.
    fn drain_wakes(&mut self) {}

    /// The peer, if it is on this host and can share memory.
    fn neighbour(&self) -> Option<&dyn Neighbour> {
        None
    }
}

/// A peer on the same host that may access our memory directly, and we its memory.
///
/// Each side has a gate. Its owner opens direct mappings to its memory under the gate's count; the other side
/// is inside while it copies. Closing counts on, so that all direct mappings are void.
pub trait Neighbour {
    /// Hands `memory` to the peer, under the name `id`.
    ///
    /// # Errors
    /// `WouldBlock` when too many are on their way; otherwise the errors of `sendmsg`.
    fn send_memory(&self, id: u64, memory: BorrowedFd<'_>) -> io::Result<()>;

    /// The next memory that the peer has handed over.
    ///
    /// # Errors
    /// `WouldBlock` when there is none; otherwise the errors of `recvmsg`.
    fn receive_memory(&self) -> io::Result<(u64, OwnedFd)>;

    /// The count of our own gate.
    fn gate(&self) -> u32;

    /// Closes our own gate, and waits until the peer is not inside. False if it stays too long.
    fn close_gate(&self) -> bool;

    /// The peer's gate.
    fn peer_gate(&self) -> Gate;
}
