//! Gates in shared memory, and memory passed beside a link.
//!
//! ```text
//!  initiator                         owner
//!  inside = 1                        count += 1
//!  ── fence of the compiler ──       ── fence of all processes ──
//!  count as it was? copy : go back   inside = 0? go on : wait
//!  inside = 0 (release)              (acquire)
//! ```
//!
//! The owner's fence is one for both (see [`crate::asymmetric`]), so one of the two sees the other.

use std::any::Any;
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::asymmetric::{Among, light_fence};

/// Memory that a gate may be in, which stays mapped as long as this lives.
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

    pub(super) fn count(&self) -> u32 {
        self.shown().count.0.load(Ordering::Relaxed)
    }

    /// Voids all windows, and waits until nobody is inside. False after some 50 ms: who is inside has been
    /// stopped, or does not play by the rules.
    pub(super) fn close(&self) -> bool {
        const SPINS: u32 = 10_000;
        const NAPS: u32 = 500;
        const NAP: Duration = Duration::from_micros(50);
        self.shown().count.0.fetch_add(1, Ordering::Relaxed);
        Among::Processes.fence();
        let is_empty = || self.shown().inside.0.load(Ordering::Acquire) == 0;
        let emptied = |_| {
            std::hint::spin_loop();
            is_empty()
        };
        let emptied_later = |_| {
            std::thread::sleep(NAP);
            is_empty()
        };
        is_empty() || (0..SPINS).any(emptied) || (0..NAPS).any(emptied_later)
    }

    /// Goes inside, if the gate's count is still `count`.
    #[inline]
    pub(crate) fn enter(&self, count: u32) -> bool {
        self.shown().inside.0.store(1, Ordering::Relaxed);
        light_fence();
        let open = self.shown().count.0.load(Ordering::Acquire) == count;
        if !open {
            self.leave();
        }
        open
    }

    /// Goes outside.
    #[inline]
    pub(crate) fn leave(&self) {
        self.shown().inside.0.store(0, Ordering::Release);
    }
}

/// A descriptor and its name on their way over a Unix socket.
pub(super) struct PassedMemory;

/// Room for one descriptor in ancillary data.
#[repr(C, align(8))]
struct Ancillary([u8; 24]);

impl PassedMemory {
    pub fn send(socket: BorrowedFd<'_>, id: u64, memory: BorrowedFd<'_>) -> io::Result<()> {
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
        let mut name = [0; 8];
        let mut part = libc::iovec { iov_base: name.as_mut_ptr().cast(), iov_len: name.len() };
        let mut ancillary = Ancillary([0; 24]);
        let mut header = message(&mut part, &mut ancillary);
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
