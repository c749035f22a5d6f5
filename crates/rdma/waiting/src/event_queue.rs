//! Queues of events with a descriptor that is readable while there are any.

use std::collections::VecDeque;
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::{EventFd, PerProcess, cancellable, generation, keep, lock, sleep};

/// Events for a program that may block on, poll or select the descriptor.
///
/// The descriptor is not a semaphore that counts them: a checkpoint keeps the value of an eventfd, but not its mode. So
/// each taker sets the descriptor according to the queue.
///
/// A forked child has an empty queue, and under the descriptor's number an eventfd of its own: it takes no wake-ups from its parent.
#[derive(Debug)]
pub struct EventQueue<T> {
    ready: EventFd,
    events: PerProcess<Mutex<VecDeque<T>>>,
    /// The value of [`generation`] when `ready` was made.
    generation: AtomicU32,
    /// Threads that are in [`Self::next`].
    readers: AtomicU32,
    /// The thread that took the last event in [`Self::next`]; 0 before the first.
    last_reader: AtomicI32,
}

impl<T> EventQueue<T> {
    /// An empty one.
    ///
    /// # Errors
    /// Those of `eventfd`.
    pub fn new() -> io::Result<Self> {
        let ready = EventFd::new(0)?;
        let generation = generation().into();
        Ok(Self {
            ready,
            events: PerProcess::default(),
            generation,
            readers: 0.into(),
            last_reader: 0.into(),
        })
    }

    /// For the program.
    #[must_use]
    pub fn fd(&self) -> RawFd {
        self.ready.fd()
    }

    fn events(&self) -> MutexGuard<'_, VecDeque<T>> {
        let events = lock(self.events.get());
        if self.generation.load(Ordering::Relaxed) != generation() && self.ready.replace_in_child() {
            self.generation.store(generation(), Ordering::Relaxed);
        }
        events
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.events().is_empty()
    }

    /// Adds the newest event.
    pub fn push(&self, event: T) {
        let mut events = self.events();
        events.push_back(event);
        self.ready.signal();
    }

    /// The oldest event; waits for it unless the program has made the descriptor non-blocking. `taken` sees it before
    /// any thread can [`Self::withdraw`] it.
    ///
    /// The program may cancel the thread meanwhile, and may abandon the queue, in which case it waits for ever.
    ///
    /// # Errors
    /// `EAGAIN`, `EINTR`.
    pub fn next(queue: &Arc<Self>, taken: impl Fn(&T)) -> io::Result<T>
    where
        T: 'static,
    {
        // In a child the descriptor has not been replaced yet.
        drop(queue.events());
        keep(Reading::of(queue), |reading| {
            loop {
                let queue = &reading.0;
                cancellable(|| queue.ready.wait())?;
                if let Some(oldest) = queue.take(&taken) {
                    queue.last_reader.store(this_thread(), Ordering::Release);
                    return Ok(oldest);
                }
            }
        })
    }

    /// The oldest event, if there is one. `taken`: as for [`Self::next`].
    pub fn take(&self, taken: impl Fn(&T)) -> Option<T> {
        let mut events = self.events();
        let oldest = events.pop_front()?;
        if events.is_empty() {
            self.ready.clear();
        }
        taken(&oldest);
        Some(oldest)
    }

    /// Waits until another thread that took the last event is in [`Self::next`] again, or has ended; `patience` at most.
    pub fn await_reader(&self, patience: Duration) {
        const LOOK: Duration = Duration::from_millis(1);
        let reader = self.last_reader.load(Ordering::Acquire);
        let is_away = || self.readers.load(Ordering::Acquire) == 0 && lives(reader);
        let end = Instant::now() + patience;
        while reader != 0 && reader != this_thread() && is_away() && Instant::now() < end {
            sleep(LOOK);
        }
    }

    /// Takes out the events that are `of` an object which is about to go; it sees the oldest first.
    pub fn withdraw(&self, of: impl FnMut(&T) -> bool) -> Vec<T> {
        let mut events = self.events();
        let (withdrawn, left): (Vec<_>, Vec<_>) = events.drain(..).partition(of);
        events.extend(left);
        if events.is_empty() && !withdrawn.is_empty() {
            self.ready.clear();
        }
        withdrawn
    }
}

/// A thread is in [`EventQueue::next`]. When that is over, the descriptor is readable again if there is more: waiting took all that it held,
/// perhaps without an event, as the thread was cancelled.
struct Reading<T>(Arc<EventQueue<T>>);

impl<T> Reading<T> {
    fn of(queue: &Arc<EventQueue<T>>) -> Self {
        queue.readers.fetch_add(1, Ordering::AcqRel);
        Self(queue.clone())
    }
}

impl<T> Drop for Reading<T> {
    fn drop(&mut self) {
        self.0.readers.fetch_sub(1, Ordering::AcqRel);
        let events = self.0.events();
        if !events.is_empty() {
            self.0.ready.signal();
        }
    }
}

fn this_thread() -> libc::pid_t {
    // SAFETY: no memory is passed.
    unsafe { libc::gettid() }
}

/// True if this process has such a thread.
fn lives(thread: libc::pid_t) -> bool {
    // SAFETY: no memory is passed; signal 0 is none.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, 0) == 0 }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    fn is_ready(queue: &EventQueue<u32>) -> bool {
        let mut entry = libc::pollfd { fd: queue.fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one live pollfd is passed.
        (unsafe { libc::poll(&raw mut entry, 1, 0) }) == 1
    }

    #[test]
    fn the_descriptor_is_readable_while_events_are_queued() {
        let queue = Arc::new(EventQueue::new().unwrap());
        assert!(!is_ready(&queue));
        queue.push(1);
        queue.push(2);
        assert_eq!(EventQueue::next(&queue, |_| ()).unwrap(), 1);
        assert!(is_ready(&queue));
        assert_eq!(EventQueue::next(&queue, |_| ()).unwrap(), 2);
        assert!(!is_ready(&queue));
    }

    #[test]
    fn a_child_does_not_take_wakeups_from_its_parent() {
        let queue = Arc::new(EventQueue::new().unwrap());
        queue.push(1);
        let mut status = 0;
        // SAFETY: the child takes no lock that another thread of the parent's may have, and ends here.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::alarm(10);
                crate::begin_generation();
                // Without a descriptor to spare, at first.
                let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
                libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
                let none = libc::rlimit { rlim_cur: 0, ..limit };
                libc::setrlimit(libc::RLIMIT_NOFILE, &raw const none);
                drop(queue.events());
                libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
                queue.push(2);
                let is_own = EventQueue::next(&queue, |_| ()).is_ok_and(|event| event == 2);
                libc::_exit((!is_own || is_ready(&queue)).into());
            }
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        }
        assert_eq!(status, 0);
        assert!(is_ready(&queue));
        assert_eq!(EventQueue::next(&queue, |_| ()).unwrap(), 1);
    }

    #[test]
    fn withdrawn_events_leave_nothing_to_read() {
        let queue = Arc::new(EventQueue::new().unwrap());
        for event in [1, 2, 1] {
            queue.push(event);
        }
        assert_eq!(queue.withdraw(|event| *event == 1), [1, 1]);
        assert_eq!(EventQueue::next(&queue, |_| ()).unwrap(), 2);
        assert!(!is_ready(&queue));
        queue.push(1);
        assert_eq!(queue.withdraw(|event| *event == 1), [1]);
        assert!(!is_ready(&queue));
    }

    #[test]
    fn a_reader_that_is_cancelled_leaves_the_descriptor_as_it_was() {
        let queue = Arc::new(EventQueue::new().unwrap());
        queue.push(1);
        let reading = Reading::of(&queue);
        queue.ready.wait().unwrap();
        assert!(!is_ready(&queue));
        drop(reading);
        assert!(is_ready(&queue));
        assert_eq!(queue.take(|_| ()), Some(1));
        assert!(!is_ready(&queue));
    }

    #[test]
    fn a_returning_reader_is_waited_for() {
        const PATIENCE: Duration = Duration::from_secs(20);
        let queue = Arc::new(EventQueue::new().unwrap());
        queue.push(1);
        let (sender, taken) = mpsc::channel();
        let (open, gate) = mpsc::channel();
        let reader = {
            let queue = queue.clone();
            thread::spawn(move || {
                sender.send(EventQueue::next(&queue, |_| ()).unwrap()).unwrap();
                gate.recv().unwrap();
                EventQueue::next(&queue, |_| ()).unwrap()
            })
        };
        taken.recv().unwrap();
        let waiter = {
            let queue = queue.clone();
            thread::spawn(move || queue.await_reader(PATIENCE))
        };
        // Enough for one that does not wait to end.
        thread::sleep(Duration::from_millis(20));
        assert!(!waiter.is_finished());
        open.send(()).unwrap();
        waiter.join().unwrap();
        assert_eq!(queue.readers.load(Ordering::Acquire), 1);
        queue.push(2);
        reader.join().unwrap();
        let begin = Instant::now();
        queue.await_reader(PATIENCE);
        queue.push(3);
        EventQueue::next(&queue, |_| ()).unwrap();
        queue.await_reader(PATIENCE);
        assert!(begin.elapsed() < PATIENCE, "one that has ended, and the own thread, are not waited for");
    }

    #[test]
    fn threads_that_wait_get_each_event_once() {
        const EVENTS: u32 = 20_000;
        const LIMIT: Duration = Duration::from_secs(20);
        let queue = Arc::new(EventQueue::new().unwrap());
        let (sender, taken) = mpsc::channel();
        for _ in 0..4 {
            let (queue, sender) = (queue.clone(), sender.clone());
            thread::spawn(move || while sender.send(EventQueue::next(&queue, |_| ()).unwrap()).is_ok() {});
        }
        (0..EVENTS).for_each(|event| queue.push(event));
        let mut taken: Vec<_> = (0..EVENTS).map(|_| taken.recv_timeout(LIMIT).unwrap()).collect();
        taken.sort_unstable();
        assert!(taken.into_iter().eq(0..EVENTS));
        assert!(!is_ready(&queue));
    }
}
