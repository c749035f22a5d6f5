//! Queues of events with a descriptor that is readable while there are any.

use std::collections::VecDeque;
use std::io;
use std::os::fd::RawFd;
use std::sync::Mutex;

use waiting::{EventFd, lock};

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
}
