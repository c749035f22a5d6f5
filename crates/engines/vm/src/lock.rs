//! Locks: a daemon aborts at the first panic, so a poisoned one means that a test has failed.

use std::sync::{Mutex, MutexGuard};

/// Locks a mutex.
///
/// # Panics
/// If a thread has panicked while it held the lock: what it guards may be half done.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("a thread panicked while it held this lock, so what it guards cannot be relied upon")
}
