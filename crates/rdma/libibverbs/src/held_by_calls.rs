//! Locks that one call of the program takes and another releases.

use std::cell::UnsafeCell;

use libc::pthread_mutex_t;

/// A lock without a guard.
pub(crate) struct HeldByCalls(UnsafeCell<pthread_mutex_t>);

impl Default for HeldByCalls {
    fn default() -> Self {
        Self(UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER))
    }
}

impl HeldByCalls {
    pub(crate) fn take(&self) {
        // SAFETY: the mutex is live and initialised.
        unsafe { libc::pthread_mutex_lock(self.0.get()) };
    }

    /// # Safety
    /// The calling thread has taken it.
    pub(crate) unsafe fn leave(&self) {
        // SAFETY: the caller's promise.
        unsafe { libc::pthread_mutex_unlock(self.0.get()) };
    }
}
