//! What is held across `fork`.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::SignalsBlocked;

/// What a thread that forks holds from the first function of `pthread_atfork` to the other two. It is none of the thread's own
/// variables: a thread may fork in its last moments, when it has those no more. Signals wait meanwhile: a handler that forks would let go of
/// what is held.
#[derive(Debug)]
pub struct HeldInFork<T> {
    /// The thread that forks, if one does; it is the same in the child.
    thread: AtomicUsize,
    held: UnsafeCell<Option<(T, SignalsBlocked)>>,
}

// SAFETY: only the thread that `thread` names looks at what is held.
unsafe impl<T> Sync for HeldInFork<T> {}

impl<T> HeldInFork<T> {
    /// Nothing is held.
    #[must_use]
    pub const fn new() -> Self {
        Self { thread: AtomicUsize::new(0), held: UnsafeCell::new(None) }
    }

    /// Holds this.
    ///
    /// # Safety
    /// In it is a lock without which nobody calls this.
    pub unsafe fn put(&self, held: T) {
        let blocked = SignalsBlocked::new();
        // SAFETY: the caller's promise: nobody else has put anything here, and so nobody looks at it.
        unsafe { *self.held.get() = Some((held, blocked)) };
        self.thread.store(this_thread(), Ordering::Release);
    }

    /// What this thread holds.
    pub fn take(&self) -> Option<(T, SignalsBlocked)> {
        if self.thread.load(Ordering::Acquire) != this_thread() {
            return None;
        }
        self.thread.store(0, Ordering::Release);
        // SAFETY: this thread has put it here, and the lock in it is still held.
        unsafe { (*self.held.get()).take() }
    }
}

impl<T> Default for HeldInFork<T> {
    fn default() -> Self {
        Self::new()
    }
}

fn this_thread() -> usize {
    // SAFETY: the call has no preconditions.
    unsafe { libc::pthread_self() as usize }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::signals::is_blocked;

    #[test]
    fn no_signal_handler_runs_while_locks_are_held() {
        let held = HeldInFork::new();
        // SAFETY: there is only this thread.
        unsafe { held.put(1) };
        assert!(is_blocked(libc::SIGUSR1));
        let taken = held.take();
        assert_eq!(taken.as_ref().map(|(held, _)| *held), Some(1));
        drop(taken);
        assert!(!is_blocked(libc::SIGUSR1) && held.take().is_none());
    }
}
