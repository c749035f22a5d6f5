//! Queues of events with a descriptor that is readable while there are any.

use std::collections::VecDeque;
use std::io;
use std::os::fd::RawFd;
use std::sync::Mutex;

use crate::{EventFd, lock};

/// Events for a program that may block on, poll or select the descriptor.
///
/// The descriptor is no semaphore that counts them: a checkpoint carries what an eventfd holds, but not that it is one. So
/// whoever takes from the queue leaves the descriptor as the queue is then.
#[derive(Debug)]
pub struct EventQueue<T> {
    ready: EventFd,
    events: Mutex<VecDeque<T>>,
}

impl<T> EventQueue<T> {
    /// An empty one.
    ///
    /// # Errors
    /// Those of `eventfd`.
    pub fn new() -> io::Result<Self> {
        Ok(Self { ready: EventFd::new(0)?, events: Mutex::default() })
    }

    /// For the program.
    #[must_use]
    pub fn fd(&self) -> RawFd {
        self.ready.fd()
    }

    /// Adds the newest event.
    pub fn push(&self, event: T) {
        let mut events = lock(&self.events);
        events.push_back(event);
        self.ready.signal();
    }

    /// The oldest event; waits for it unless the program has made the descriptor non-blocking. `taken` sees it before
    /// anybody can [`Self::withdraw`] it.
    ///
    /// # Errors
    /// `EAGAIN`, `EINTR`.
    pub fn next(&self, taken: impl Fn(&T)) -> io::Result<T> {
        loop {
            self.ready.wait()?;
            let mut events = lock(&self.events);
            let oldest = events.pop_front();
            self.show(&events);
            if let Some(event) = oldest {
                taken(&event);
                return Ok(event);
            }
        }
    }

    /// Takes out the events that are `of` an object which is about to go.
    pub fn withdraw(&self, of: impl Fn(&T) -> bool) -> Vec<T> {
        let mut events = lock(&self.events);
        let (withdrawn, left): (Vec<_>, Vec<_>) = events.drain(..).partition(of);
        events.extend(left);
        self.show(&events);
        withdrawn
    }

    /// Makes the descriptor readable just if there are events.
    fn show(&self, events: &VecDeque<T>) {
        if events.is_empty() { self.ready.clear() } else { self.ready.signal() }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, mpsc};
    use std::thread;
    use std::time::Duration;

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
    fn withdrawn_events_leave_nothing_to_read() {
        let queue = EventQueue::new().unwrap();
        for event in [1, 2, 1] {
            queue.push(event);
        }
        assert_eq!(queue.withdraw(|event| *event == 1), [1, 1]);
        assert_eq!(queue.next(|_| ()).unwrap(), 2);
        assert!(!is_ready(&queue));
        queue.push(1);
        assert_eq!(queue.withdraw(|event| *event == 1), [1]);
        assert!(!is_ready(&queue));
    }

    #[test]
    fn threads_that_wait_get_each_event_once() {
        const EVENTS: u32 = 20_000;
        const LIMIT: Duration = Duration::from_secs(20);
        let queue = Arc::new(EventQueue::new().unwrap());
        let (sender, taken) = mpsc::channel();
        for _ in 0..4 {
            let (queue, sender) = (queue.clone(), sender.clone());
            thread::spawn(move || while sender.send(queue.next(|_| ()).unwrap()).is_ok() {});
        }
        (0..EVENTS).for_each(|event| queue.push(event));
        let mut taken: Vec<_> = (0..EVENTS).map(|_| taken.recv_timeout(LIMIT).unwrap()).collect();
        taken.sort_unstable();
        assert!(taken.into_iter().eq(0..EVENTS));
        assert!(!is_ready(&queue));
    }
}
