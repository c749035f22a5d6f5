//! Locks that no panic may poison: a daemon ends on a panic, so half-changed state is never read.

use std::sync::{Mutex, MutexGuard};

/// The guard of `mutex`.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no thread panics while it holds the lock")
}
