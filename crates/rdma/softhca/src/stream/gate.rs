//! Gates in shared memory that make direct mappings void, and the passing of memfds beside a link.
//!
//! ```text
//!  initiator                         owner
//!  inside = 1                        count += 1
//!  ── fence of the compiler ──       ── fence of all processes ──
//!  count as it was? copy : go back   inside = 0? go on : wait
//!  inside = 0 (release)              (acquire)
//!  unless abandoned: go back         too long: abandoned
//! ```
//!
//! The owner's fence serves both sides (see [`crate::asymmetric`]), so at least one of the two sees the other.

use std::any::Any;
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use waiting::Uncancelled;

use crate::asymmetric::{Among, light_fence};

// Values of `inside`.
const OUTSIDE: u32 = 0;
const INSIDE: u32 = 1;
/// The owner has stopped waiting for the one inside.
const ABANDONED: u32 = 2;

/// Memory that holds a gate, mapped as long as this value exists.
pub(super) type Keeper = Arc<dyn Any + Send + Sync>;

/// A gate in shared memory.
#[derive(Clone)]
pub struct Gate {
    shown: *const Shown,
    _keeper: Keeper,
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Gate").field(&self.count()).finish()
    }
}

#[repr(C, align(128))]
struct Line(AtomicU32);

#[repr(C)]
struct Shown {
    count: Line,
    inside: Line,
}

// SAFETY: all access is atomic, and the memory is shared by design.
unsafe impl Send for Gate {}

impl Gate {
    /// Bytes of shared memory.
    pub(super) const SIZE: usize = size_of::<Shown>();

    /// # Safety
    /// `at` points to `SIZE` mapped, writable, aligned bytes of `keeper`'s.
    pub(super) unsafe fn new(at: *mut u8, keeper: Keeper) -> Self {
        Self { shown: at.cast(), _keeper: keeper }
    }

    #[inline]
    fn shown(&self) -> &Shown {
        // SAFETY: it is mapped, as `new` demands, and holds nothing but atomics.
        unsafe { &*self.shown }
    }

    pub(crate) fn count(&self) -> u32 {
        self.shown().count.0.load(Ordering::Relaxed)
    }

    /// Voids all direct mappings, and waits until no initiator is inside. False after some 50 ms: one that is inside is
    /// stopped, or violates the protocol.
    pub(super) fn close(&self) -> bool {
        const SPINS: u32 = 10_000;
        const NAPS: u32 = 500;
        const NAP: Duration = Duration::from_micros(50);
        self.shown().count.0.fetch_add(1, Ordering::Relaxed);
        Among::Processes.fence();
        let is_empty = || self.shown().inside.0.load(Ordering::Acquire) != INSIDE;
        let emptied = |_| {
            std::hint::spin_loop();
            is_empty()
        };
        let emptied_later = |_| {
            std::thread::sleep(NAP);
            is_empty()
        };
        let left = is_empty() || (0..SPINS).any(emptied) || (0..NAPS).any(emptied_later);
        left || self.change_inside(INSIDE, ABANDONED).is_err()
    }

    /// Goes inside, if the gate's count is still `count`.
    #[inline]
    pub(crate) fn enter(&self, count: u32) -> bool {
        self.shown().inside.0.store(INSIDE, Ordering::Relaxed);
        light_fence();
        let open = self.shown().count.0.load(Ordering::Acquire) == count;
        if !open {
            self.shown().inside.0.store(OUTSIDE, Ordering::Release);
        }
        open
    }

    /// Goes outside. False if the owner has given up waiting: copied bytes have no effect, in either direction.
    #[inline]
    pub(crate) fn leave(&self, count: u32) -> bool {
        light_fence();
        if self.shown().count.0.load(Ordering::Acquire) == count {
            // A thread that closes the gate from now on finds all copied bytes.
            self.shown().inside.0.store(OUTSIDE, Ordering::Release);
            return true;
        }
        let left_in_time = self.change_inside(INSIDE, OUTSIDE).is_ok();
        self.shown().inside.0.store(OUTSIDE, Ordering::Release);
        left_in_time
    }

    fn change_inside(&self, from: u32, to: u32) -> Result<u32, u32> {
        self.shown().inside.0.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire)
    }
}

/// A descriptor and its name on their way over a Unix socket.
pub(super) struct PassedMemory;

/// Room for one descriptor in ancillary data.
#[repr(C, align(8))]
struct Ancillary([u8; 24]);

impl PassedMemory {
    pub fn send(socket: BorrowedFd<'_>, id: u64, memory: BorrowedFd<'_>) -> io::Result<()> {
        let _whole = Uncancelled::new();
        let mut name = id.to_le_bytes();
        let mut part = libc::iovec { iov_base: name.as_mut_ptr().cast(), iov_len: name.len() };
        let mut ancillary = Ancillary([0; 24]);
        let header = message(&mut part, &mut ancillary);
        // SAFETY: the ancillary data has room for one header with one descriptor, and is aligned for it.
        let sent = unsafe {
            let control = libc::CMSG_FIRSTHDR(&raw const header);
            (*control).cmsg_level = libc::SOL_SOCKET;
            (*control).cmsg_type = libc::SCM_RIGHTS;
            (*control).cmsg_len = libc::CMSG_LEN(size_of::<i32>() as u32) as usize;
            libc::CMSG_DATA(control).cast::<i32>().write_unaligned(memory.as_raw_fd());
            let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
            libc::sendmsg(socket.as_raw_fd(), &raw const header, flags)
        };
        match usize::try_from(sent) {
            Ok(8) => Ok(()),
            Ok(_) => Err(io::ErrorKind::WriteZero.into()),
            Err(_) => Err(io::Error::last_os_error()),
        }
    }

    pub fn receive(socket: BorrowedFd<'_>) -> io::Result<(u64, OwnedFd)> {
        let _whole = Uncancelled::new();
        let mut name = [0; 8];
        let mut part = libc::iovec { iov_base: name.as_mut_ptr().cast(), iov_len: name.len() };
        let mut ancillary = Ancillary([0; 24]);
        let mut header = message(&mut part, &mut ancillary);
        // Room for one and not a byte more: the kernel drops further descriptors of a peer, rather than keep
        // them open. SAFETY: it only computes.
        header.msg_controllen = unsafe { libc::CMSG_LEN(size_of::<i32>() as u32) } as usize;
        let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
        // SAFETY: the header names live memory.
        let received = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, flags) };
        if received < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has filled in the header; a descriptor in it is ours from now on.
        let memory = unsafe {
            let control = libc::CMSG_FIRSTHDR(&raw const header);
            let holds_one = !control.is_null()
                && (*control).cmsg_type == libc::SCM_RIGHTS
                && (*control).cmsg_len == libc::CMSG_LEN(size_of::<i32>() as u32) as usize;
            holds_one.then(|| OwnedFd::from_raw_fd(libc::CMSG_DATA(control).cast::<i32>().read_unaligned()))
        };
        match memory {
            Some(memory) if received == 8 => Ok((u64::from_le_bytes(name), memory)),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

fn message(part: &mut libc::iovec, ancillary: &mut Ancillary) -> libc::msghdr {
    // SAFETY: a msghdr of zeros is valid and empty.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = part;
    header.msg_iovlen = 1;
    header.msg_control = ancillary.0.as_mut_ptr().cast();
    header.msg_controllen = size_of::<Ancillary>();
    header
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn an_initiator_that_stays_too_long_finds_the_gate_abandoned() {
        let memory: Keeper = Arc::new([const { Line(AtomicU32::new(0)) }; 2]);
        let at = Arc::as_ptr(&memory).cast::<u8>().cast_mut();
        // SAFETY: the memory holds two lines, as a gate does, and is kept.
        let gate = unsafe { Gate::new(at, Arc::clone(&memory)) };
        assert!(gate.enter(0) && gate.leave(0));
        assert!(gate.enter(0));
        assert!(!gate.close(), "a peer is inside");
        assert!(!gate.leave(0));
        assert!(!gate.enter(0), "it is closed");
        assert!(gate.enter(1) && gate.leave(1));
        assert!(gate.close());
    }

    #[test]
    fn descriptors_passed_beside_a_memfd_are_closed() {
        use std::io::Read;
        use std::os::unix::net::UnixStream;

        let (near, far) = UnixStream::pair().unwrap();
        let (mut kept, passed) = UnixStream::pair().unwrap();
        let memory = UnixStream::pair().unwrap().0;
        kept.set_nonblocking(true).unwrap();
        fabric::seqpacket::send(near.as_fd(), &7u64.to_le_bytes(), &[memory.as_fd(), passed.as_fd()])
            .unwrap();
        drop(passed);
        let received = PassedMemory::receive(far.as_fd());
        assert!(received.is_ok_and(|(id, _)| id == 7));
        assert_eq!(kept.read(&mut [0]).unwrap(), 0, "the other end is closed");
    }

    #[test]
    fn an_initiator_that_leaves_while_the_owner_waits_has_succeeded() {
        let memory: Keeper = Arc::new([const { Line(AtomicU32::new(0)) }; 2]);
        let at = Arc::as_ptr(&memory).cast::<u8>().cast_mut();
        // SAFETY: as above.
        let gate = unsafe { Gate::new(at, Arc::clone(&memory)) };
        assert!(gate.enter(0));
        std::thread::scope(|scope| {
            let owner = gate.clone();
            let closed = scope.spawn(move || owner.close());
            while gate.count() == 0 {
                std::hint::spin_loop();
            }
            assert_eq!(gate.leave(0), closed.join().unwrap());
        });
    }
}
