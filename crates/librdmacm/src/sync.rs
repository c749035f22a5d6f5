//! Locks without poison, eventfds, and the counting of what a program has not acknowledged.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::errno::{Errno, Result, last};

/// A lock whose poison is ignored: no panic leaves this library, so none is seen.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An eventfd. It reaches nothing outside the process, so that it is carried by a checkpoint.
pub(crate) struct EventFd(OwnedFd);

impl EventFd {
    /// `flags`: those of `eventfd`; always close-on-exec.
    pub(crate) fn new(flags: libc::c_int) -> Result<Self> {
        // SAFETY: no memory is passed.
        let fd = unsafe { libc::eventfd(0, flags | libc::EFD_CLOEXEC) };
        if fd == -1 {
            return Err(last());
        }
        // SAFETY: the descriptor is new and ours alone.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Adds one.
    pub(crate) fn signal(&self) {
        let one = 1u64;
        // SAFETY: eight readable bytes are passed.
        unsafe { libc::write(self.fd(), (&raw const one).cast(), 8) };
    }

    /// Takes one (all, if not a semaphore); waits for it unless the descriptor is non-blocking.
    ///
    /// # Errors
    /// `EAGAIN`, `EINTR`.
    pub(crate) fn wait(&self) -> Result<()> {
        let mut value = 0u64;
        // SAFETY: eight writable bytes are passed.
        let got = unsafe { libc::read(self.fd(), (&raw mut value).cast(), 8) };
        if got == -1 { Err(last()) } else { Ok(()) }
    }

    /// Takes one if there is one, whatever flags the program has set on the descriptor.
    pub(crate) fn take(&self) {
        let mut value = 0u64;
        let part = libc::iovec { iov_base: (&raw mut value).cast(), iov_len: 8 };
        // SAFETY: one vector of eight writable bytes is passed.
        unsafe { libc::preadv2(self.fd(), &raw const part, 1, -1, libc::RWF_NOWAIT) };
    }
}

/// Waits until one of the descriptors is readable. `None`: for as long as it takes.
pub(crate) fn wait_readable(descriptors: &[RawFd], timeout: Option<std::time::Duration>) {
    let entry = |&fd: &RawFd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut entries: Vec<_> = descriptors.iter().map(entry).collect();
    let timeout = timeout.map(|timeout| libc::timespec {
        tv_sec: timeout.as_secs().cast_signed(),
        tv_nsec: timeout.subsec_nanos().into(),
    });
    let timeout = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let count = entries.len() as libc::nfds_t;
    // SAFETY: `count` live entries and a live timeout, or none, are passed. An early return does no harm.
    unsafe { libc::ppoll(entries.as_mut_ptr(), count, timeout, std::ptr::null()) };
}

/// Makes a descriptor non-blocking.
pub(crate) fn set_nonblocking(fd: RawFd) -> Result<()> {
    // SAFETY: no memory is passed.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    // SAFETY: as above.
    if flags == -1 || unsafe { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) } == -1 {
        return Err(Errno(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)));
    }
    Ok(())
}

/// Counts events that a program took and has not acknowledged; destroying their object waits for it.
#[derive(Default)]
pub(crate) struct Acks {
    outstanding: Mutex<u32>,
    settled: Condvar,
}

impl Acks {
    pub(crate) fn taken(&self) {
        *lock(&self.outstanding) += 1;
    }

    pub(crate) fn acknowledge(&self) {
        let mut outstanding = lock(&self.outstanding);
        *outstanding = outstanding.saturating_sub(1);
        if *outstanding == 0 {
            self.settled.notify_all();
        }
    }

    pub(crate) fn wait(&self) {
        let mut outstanding = lock(&self.outstanding);
        while *outstanding > 0 {
            outstanding = self.settled.wait(outstanding).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
