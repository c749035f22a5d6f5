//! Locks that are held across `fork`.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The lock that a forking thread holds from the first function of `pthread_atfork` to the other two. It is not thread-local,
/// since a thread may fork in its last moments, after its thread-local variables were destroyed.
#[derive(Debug)]
pub struct HeldInFork<T> {
    /// The thread that forks, if one does; it is the same in the child.
    thread: AtomicUsize,
    held: UnsafeCell<Option<T>>,
}

// SAFETY: only the thread that `thread` names looks at what is held.
unsafe impl<T> Sync for HeldInFork<T> {}

impl<T> HeldInFork<T> {
    /// Nothing is held.
    #[must_use]
    pub const fn new() -> Self {
        Self { thread: AtomicUsize::new(0), held: UnsafeCell::new(None) }
    }

    /// Stores `held`.
    ///
    /// # Safety
    /// `held` contains a lock, and all callers of this hold that lock.
    pub unsafe fn put(&self, held: T) {
        // SAFETY: the caller's promise: no other thread has put a value here, and so none looks at it.
        unsafe { *self.held.get() = Some(held) };
        self.thread.store(this_thread(), Ordering::Release);
    }

    /// The value that this thread holds.
    pub fn take(&self) -> Option<T> {
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
