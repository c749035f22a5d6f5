//! Synchronisation for the drop-in libraries: waiting, locks, fork and cancellation.
//!
//! * [`EventFd`]: wakes a thread, or makes a descriptor readable that a program polls.
//! * [`EventQueue`]: events of a program with such a descriptor.
//! * [`Acks`]: an object is not destroyed before the program has acknowledged its events.
//! * [`lock`]: a lock without poison.
//! * [`futex`]: to sleep until a word changes.
//! * [`HeldInFork`]: holds a lock across `fork`.
//! * [`OneAtATime`]: a lock that `fork` does not wait for. [`PerProcess`]: a value that a child makes again. [`MadeOnce`]: made once, without a lock.
//! * [`SignalsBlocked`]: defers signal handlers of the program.
//! * [`start_thread`]: starts a thread of a library.
//! * [`Uncancelled`], [`uncancelled`]: defers cancellation, except where the program waits: in [`cancellable`], with the
//!   needed values in [`keep`].

mod acks;
mod cancellation;
mod event_fd;
mod event_queue;
pub mod futex;
mod held_in_fork;
mod one_at_a_time;
mod per_process;
mod signals;
mod threads;

use std::io;
use std::os::fd::RawFd;
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub use acks::Acks;
pub use cancellation::{Uncancelled, cancellable, keep, sleep, uncancelled};
pub use event_fd::EventFd;
pub use event_queue::EventQueue;
pub use held_in_fork::HeldInFork;
use libc::pollfd;
pub use one_at_a_time::OneAtATime;
pub use per_process::{MadeOnce, PerProcess, begin_generation, generation};
pub use signals::SignalsBlocked;
pub use threads::start_thread;

/// A lock that ignores poisoning: no panic leaves the libraries, so none is seen.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The flags to `poll` for a readable descriptor.
#[must_use]
pub fn reads_of(fd: RawFd) -> pollfd {
    pollfd { fd, events: libc::POLLIN, revents: 0 }
}

/// Waits until something is true of one of the descriptors, and notes it there. `None`: for as long as it takes.
///
/// # Errors
/// Those of `ppoll`, `EINTR` among them.
pub fn poll(descriptors: &mut [pollfd], timeout: Option<Duration>) -> io::Result<()> {
    let timeout = timeout.map(|timeout| libc::timespec {
        tv_sec: timeout.as_secs().cast_signed(),
        tv_nsec: timeout.subsec_nanos().into(),
    });
    let timeout = timeout.as_ref().map_or(ptr::null(), ptr::from_ref);
    let count = descriptors.len() as libc::nfds_t;
    // SAFETY: `count` live entries and a live timeout, or none, are passed.
    if unsafe { cancellation::ppoll(descriptors.as_mut_ptr(), count, timeout, ptr::null()) } == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Like [`poll`], for callers that check everything afterwards and wait again. The kernel refuses to poll more descriptors than the program may
/// open, which is none in some sandboxes: then this returns after short sleeps, without using up a processor.
///
/// # Errors
/// `EINTR`.
pub fn poll_or_nap(descriptors: &mut [pollfd], timeout: Option<Duration>) -> io::Result<()> {
    const NAP: Duration = Duration::from_millis(1);
    match poll(descriptors, timeout) {
        Err(error) if error.kind() != io::ErrorKind::Interrupted => {
            sleep(timeout.map_or(NAP, |timeout| timeout.min(NAP)));
            Ok(())
        }
        polled => polled,
    }
}

/// Makes a descriptor non-blocking.
///
/// # Errors
/// Those of `fcntl`.
pub fn set_nonblocking(fd: RawFd) -> io::Result<()> {
    // SAFETY: no memory is passed.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    // SAFETY: as above.
    if flags == -1 || unsafe { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) } == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
