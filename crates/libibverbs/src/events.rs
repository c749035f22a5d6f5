//! Queues of events with a descriptor that is readable while there are any, and the counting of
//! acknowledgements.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// A lock whose poison is ignored: no panic leaves this library, so none is seen.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An eventfd. It reaches nothing outside the process, so that it is carried by a checkpoint.
pub(crate) struct EventFd(OwnedFd);

impl EventFd {
    /// `flags`: those of `eventfd`; always close-on-exec.
    pub(crate) fn new(flags: libc::c_int) -> io::Result<Self> {
        // SAFETY: no memory is passed.
        let fd = unsafe { libc::eventfd(0, flags | libc::EFD_CLOEXEC) };
        if fd == -1 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and ours alone.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Adds one. The counter holds more than can ever be queued, so that this does not wait.
    pub(crate) fn signal(&self) {
        let one = 1u64;
        // SAFETY: eight readable bytes are passed.
        unsafe { libc::write(self.fd(), (&raw const one).cast(), 8) };
    }

    /// Takes one (all, if not a semaphore); waits for it unless the descriptor is non-blocking.
    pub(crate) fn wait(&self) -> io::Result<()> {
        let mut value = 0u64;
        // SAFETY: eight writable bytes are passed.
        let got = unsafe { libc::read(self.fd(), (&raw mut value).cast(), 8) };
        if got == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Takes one if there is one, whatever flags the program has set on the descriptor.
    pub(crate) fn take(&self) {
        let mut value = 0u64;
        let part = libc::iovec { iov_base: (&raw mut value).cast(), iov_len: 8 };
        // SAFETY: one vector of eight writable bytes is passed.
        unsafe { libc::preadv2(self.fd(), &raw const part, 1, -1, libc::RWF_NOWAIT) };
    }
}

/// Events for a program that may block on, poll or select the descriptor.
pub(crate) struct EventQueue<T> {
    ready: EventFd,
    events: Mutex<VecDeque<T>>,
}

impl<T> EventQueue<T> {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { ready: EventFd::new(libc::EFD_SEMAPHORE)?, events: Mutex::default() })
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.ready.fd()
    }

    pub(crate) fn push(&self, event: T) {
        lock(&self.events).push_back(event);
        self.ready.signal();
    }

    /// The oldest event. `taken` sees it before anybody can [`Self::forget`] it.
    pub(crate) fn next(&self, taken: impl Fn(&T)) -> io::Result<T> {
        loop {
            self.ready.wait()?;
            let mut events = lock(&self.events);
            if let Some(event) = events.pop_front() {
                taken(&event);
                return Ok(event);
            }
        }
    }

    /// Drops the events that are `of` an object which is about to go.
    pub(crate) fn forget(&self, of: impl Fn(&T) -> bool) {
        let mut events = lock(&self.events);
        let before = events.len();
        events.retain(|event| !of(event));
        for _ in events.len()..before {
            self.ready.take();
        }
    }
}

/// Counts events that a program took and has not acknowledged; destroying the object waits for it.
#[derive(Default)]
pub(crate) struct Acks {
    outstanding: Mutex<i64>,
    settled: Condvar,
}

impl Acks {
    pub(crate) fn taken(&self) {
        *lock(&self.outstanding) += 1;
    }

    pub(crate) fn acknowledge(&self, events: u32) {
        let mut outstanding = lock(&self.outstanding);
        *outstanding -= i64::from(events);
        if *outstanding <= 0 {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn is_ready(queue: &EventQueue<u32>) -> bool {
        let mut entry = libc::pollfd { fd: queue.fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one live pollfd is passed.
        (unsafe { libc::poll(&raw mut entry, 1, 0) }) == 1
    }

    #[test]
    fn the_descriptor_is_readable_while_events_are_queued() {
        let queue = EventQueue::new().unwrap();
        assert!(!is_ready(&queue));
        queue.push(1);
        queue.push(2);
        assert_eq!(queue.next(|_| ()).unwrap(), 1);
        assert!(is_ready(&queue));
        assert_eq!(queue.next(|_| ()).unwrap(), 2);
        assert!(!is_ready(&queue));
    }

    #[test]
    fn forgotten_events_leave_nothing_to_read() {
        let queue = EventQueue::new().unwrap();
        for event in [1, 2, 1] {
            queue.push(event);
        }
        queue.forget(|event| *event == 1);
        assert_eq!(queue.next(|_| ()).unwrap(), 2);
        assert!(!is_ready(&queue));
    }

    #[test]
    fn waiting_ends_with_the_last_acknowledgement() {
        let acks = Acks::default();
        acks.taken();
        acks.taken();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| acks.wait());
            acks.acknowledge(2);
            waiter.join().unwrap();
        });
    }
}
