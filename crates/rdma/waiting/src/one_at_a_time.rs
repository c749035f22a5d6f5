//! A lock that `fork` does not wait for.

use std::cell::UnsafeCell;
use std::sync::{Mutex, MutexGuard};

use crate::lock;

/// A lock for long operations, so that `fork` does not wait for it: a child, which has no thread to continue an operation of its
/// parent, gets a new one.
#[derive(Debug, Default)]
pub struct OneAtATime(UnsafeCell<Mutex<()>>);

// SAFETY: all threads share a mutex, but for `renew`, for which there are no others.
unsafe impl Sync for OneAtATime {}

impl OneAtATime {
    /// No thread has it.
    #[must_use]
    pub const fn new() -> Self {
        Self(UnsafeCell::new(Mutex::new(())))
    }

    /// Waits for its turn.
    pub fn enter(&self) -> MutexGuard<'_, ()> {
        // SAFETY: it is written by `renew` alone, for which there are no other threads.
        lock(unsafe { &*self.0.get() })
    }

    /// The holder does not exist any more.
    ///
    /// # Safety
    /// Only a child that was just forked calls this, by a thread that did not have it.
    pub unsafe fn renew(&self) {
        // SAFETY: the caller's promise: this is the only thread, and it has no guard.
        unsafe { self.0.get().write(Mutex::new(())) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_lock_is_free() {
        static TURN: OneAtATime = OneAtATime::new();
        // As of a thread that is not there any more.
        std::mem::forget(TURN.enter());
        // SAFETY: no other thread uses it.
        unsafe { TURN.renew() };
        drop(TURN.enter());
    }
}
