//! Locks of the overlay's threads.

use std::sync::{Mutex, MutexGuard};

/// Locks `mutex`. A poisoned lock is a panic: the daemon aborts at the first one.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no thread panics while it holds the lock")
}
