//! Locks a mutex, unless a thread has panicked while it held it.

use std::sync::{Mutex, MutexGuard};

/// Locks `mutex`.
///
/// # Panics
/// If a thread has panicked while it held the lock: what the lock guards may be half done, and nothing can be relied upon.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .expect("a thread panicked while it held this lock, so that what it guards cannot be relied upon")
}
